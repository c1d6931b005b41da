"""Divergences between predictions, and the majority vote of several predictions.

Predictions p, q are probabilities of C classes, given by logits or by their logarithms.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxfed.training.server.aggregate import weighted_sum


def divergence(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
    """KL(p || q) = sum_c p_c (log p_c - log q_c), float32 [...] of log-probabilities [..., C] twice."""
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)


def divergence_from(logits: jax.Array, target: jax.Array) -> jax.Array:
    """KL(softmax(target) || softmax(logits)), float32 [B] of logits [B, C] twice."""
    return divergence(jax.nn.log_softmax(target), jax.nn.log_softmax(logits))


def squared_difference(logits: jax.Array, target: jax.Array) -> jax.Array:
    """1/C |softmax(logits) - softmax(target)|^2, float32 [B] of logits [B, C] twice."""
    return jnp.mean(jnp.square(jax.nn.softmax(logits) - jax.nn.softmax(target)), axis=-1)


DIFFERENCES = {"mse": squared_difference, "kl": divergence_from}


def mean_divergence(others: jax.Array, own: jax.Array, is_there: jax.Array) -> jax.Array:
    """1/H sum_j KL(p_j || p), float32 [B], of log p_j [H, B, C] and log p [B, C].

    The mean is over the j with `is_there`, bool [H]; 0 without any.
    """
    count = jnp.maximum(jnp.sum(is_there), 1).astype(jnp.float32)
    each = divergence(others, own[None])
    return weighted_sum(is_there.astype(jnp.float32), each) / count


def majority(others: jax.Array, own: jax.Array, is_there: jax.Array) -> jax.Array:
    """The class that most of p and p_j predict, int32 [B], ties to the smallest; see `mean_divergence`."""
    num_classes = own.shape[-1]

    def vote(log_probability: jax.Array) -> jax.Array:
        return jax.nn.one_hot(jnp.argmax(log_probability, axis=-1), num_classes)

    votes = vote(own) + weighted_sum(is_there.astype(jnp.float32), vote(others))
    return jnp.argmax(votes, axis=-1).astype(jnp.int32)
