"""Agreement of a client with its helpers: the mean divergence of their predictions, and their majority vote.

Predictions p, p_j are probabilities of C classes, given by their logarithms.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxfed.training.server.aggregate import weighted_sum


def mean_divergence(others: jax.Array, own: jax.Array, is_there: jax.Array) -> jax.Array:
    """1/H sum_j KL(p_j || p), float32 [B], of log p_j [H, B, C] and log p [B, C].

    The mean is over the j with `is_there`, bool [H]; 0 without any.
    """
    count = jnp.maximum(jnp.sum(is_there), 1).astype(jnp.float32)
    each = jnp.sum(jnp.exp(others) * (others - own[None]), axis=-1)
    return weighted_sum(is_there.astype(jnp.float32), each) / count


def majority(others: jax.Array, own: jax.Array, is_there: jax.Array) -> jax.Array:
    """The class that most of p and p_j predict, int32 [B], ties to the smallest; see `mean_divergence`."""
    num_classes = own.shape[-1]

    def vote(log_probability: jax.Array) -> jax.Array:
        return jax.nn.one_hot(jnp.argmax(log_probability, axis=-1), num_classes)

    votes = vote(own) + weighted_sum(is_there.astype(jnp.float32), vote(others))
    return jnp.argmax(votes, axis=-1).astype(jnp.int32)
