r"""Mean of clipped client updates, with Gaussian noise (Geyer et al., 2017).

    mean = 1/K ( sum_k delta_k min(1, S / |delta_k|) + N(0, z^2 S^2 I) ),    w <- w + server_optimizer(-mean)

over the K clients with a positive weight, |.| the norm over all parameters together. The server optimizer's
step is post-processing of the noisy mean: it costs no privacy.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxfed.random_streams import Stream
from jaxfed.training.aggregate import Aggregate, weighted_sum


class ClippedMean(NamedTuple):
    """State that the server keeps between rounds.

    Fields:
        inner: the server optimizer's state.
        key: typed; noise is drawn from it.
        round: int32, number of means computed.
        norm: float32, the median of the last round's norms before clipping.
        clipped: float32, the share of clients whose norm was above S.
    """

    inner: Any
    key: jax.Array
    round: jax.Array
    norm: jax.Array
    clipped: jax.Array


def clipped_mean(inner: Aggregate, *, clip: float, noise_multiplier: float) -> Aggregate:
    """The server's step, taken by `inner`; S is `clip`. Clients with a positive weight count equally."""

    def init(model: nnx.State, key: jax.Array) -> ClippedMean:
        noise_key, zero = jax.random.fold_in(key, Stream.NOISE), jnp.float32(0)
        return ClippedMean(inner.init(model, key), noise_key, jnp.int32(0), zero, zero)

    def apply(
        model: nnx.State, deltas: nnx.State, weights: jax.Array, state: ClippedMean
    ) -> tuple[nnx.State, ClippedMean]:
        counts = weights > 0
        number = jnp.maximum(jnp.sum(counts), 1).astype(jnp.float32)
        norms = jax.vmap(norm)(deltas)
        median = jnp.nan_to_num(jnp.nanmedian(jnp.where(counts, norms, jnp.nan)))
        most = jnp.float32(clip)
        factors = shrinking(norms, most)
        shares = counts.astype(jnp.float32) / number
        mean = jax.tree.map(partial(weighted_sum, shares), jax.vmap(scaled)(deltas, factors))
        if noise_multiplier:
            key = jax.random.fold_in(state.key, state.round)
            mean = noisy(mean, key, noise_multiplier * most / number)
        anyone = jnp.any(counts).astype(jnp.float32)
        one = jax.tree.map(lambda leaf: leaf[None], mean)
        updated, after = inner.apply(model, one, anyone[None], state.inner)
        clipped = jnp.sum(counts & (norms > most)).astype(jnp.float32) / number
        return updated, ClippedMean(after, state.key, state.round + 1, median, clipped)

    return Aggregate(init, apply)


def norm(tree: Any) -> jax.Array:
    """|x| over all leaves together, float32 scalar."""
    return jnp.sqrt(
        sum((jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)), jnp.float32(0))
    )


def shrinking(norms: jax.Array, most: jax.Array | float) -> jax.Array:
    """min(1, S / |x|): the factor that clips x to norm S; 1 for x = 0."""
    return jnp.minimum(1, most / jnp.maximum(norms, jnp.finfo(jnp.float32).tiny))


def scaled(tree: Any, factor: jax.Array) -> Any:
    """Return factor * x."""
    return jax.tree.map(lambda leaf: factor * leaf, tree)


def noisy(tree: Any, key: jax.Array, deviation: jax.Array) -> Any:
    """x + N(0, deviation^2 I), an independent draw for each number."""
    draws = optax.tree_utils.tree_random_like(key, tree, jax.random.normal)
    return jax.tree.map(lambda leaf, draw: leaf + deviation * draw, tree, draws)
