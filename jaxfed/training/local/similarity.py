"""Losses of features in a batch, by their cosines: instance discrimination, and equal neighborhoods.

    cos(a, b) = a . b / (max(|a|, 0.01) max(|b|, 0.01))

Rows that are not in use count neither as examples nor as others.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxfed.training.local.losses import mean_where

# A cosine's slope is 1 over the length. Features that are nearly 0, as of a ReLU layer without a norm, would
# take the model away in one step.
_SHORTEST = 0.01


def unit(vectors: jax.Array) -> jax.Array:
    """Vectors [..., D] divided by their length or 0.01, the larger one."""
    squares = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squares, _SHORTEST**2))


def instance_discrimination(views: jax.Array, used: jax.Array, temperature: float) -> jax.Array:
    """SimCLR's loss of two views of a batch (Chen et al., ICML 2020, NT-Xent), float32 scalar:

        mean over views z of  -log [ exp(cos(z, z') / T) / sum_{v != z} exp(cos(z, v) / T) ]

    z' is the other view of the same example, v any other view.

    Args:
        views: float32 [2 B, D]; row i and row B + i are views of example i.
        used: bool [B].
        temperature: T.
    """
    size = len(used)
    close = unit(views) @ unit(views).T / temperature
    number = jnp.arange(2 * size)
    is_other = number[None, :] == ((number + size) % (2 * size))[:, None]
    both = jnp.concatenate([used, used])
    counts = both[None, :] & (number[None, :] != number[:, None])
    every = jax.nn.logsumexp(jnp.where(counts, close, -jnp.inf), axis=-1)
    return mean_where(every - jnp.sum(jnp.where(is_other, close, 0), axis=-1), both)


def neighborhood_difference(one: jax.Array, other: jax.Array, used: jax.Array) -> jax.Array:
    """Mean over pairs i, j of (cos(a_i, a_j) - cos(b_i, b_j))^2, float32 scalar.

    Args:
        one: a, float32 [B, D].
        other: b, float32 [B, D'].
        used: bool [B].
    """
    difference = unit(one) @ unit(one).T - unit(other) @ unit(other).T
    return mean_where(mean_where(jnp.square(difference), used), used)
