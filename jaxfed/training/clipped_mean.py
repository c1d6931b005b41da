r"""A mean of clients' changes to which none contributes more than a bound, with noise (Geyer et al., 2017).

    mean = 1/K ( sum_k delta_k min(1, S / |delta_k|) + N(0, z^2 S^2 I) ),    w <- w + server_optimizer(-mean)

over the K clients that count, |.| the norm over all parameters together. S is fixed, or the median of the K
norms. What the server's optimizer makes of the mean is made of what the noise protects, and costs nothing.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.training.aggregate import Aggregate, weighted_mean

Bound = Literal["fixed", "median"]


class ClippedMean(NamedTuple):
    """What the server keeps.

    Fields:
        inner: the server optimizer's state.
        key: typed; noise is drawn from it.
        round: int32, means taken.
        norm: float32, the median of the last norms before clipping.
        clipped: float32, the share of clients whose change was longer than S.
    """

    inner: Any
    key: jax.Array
    round: jax.Array
    norm: jax.Array
    clipped: jax.Array


def clipped_mean(
    inner: Aggregate, *, clip: float, noise_multiplier: float, bound: Bound = "fixed"
) -> Aggregate:
    """The server's step; weights are 1 for clients that count and 0 for others.

    Args:
        inner: takes the step; its own mean is over one.
        clip: S where it is fixed.
        noise_multiplier: z; 0 draws none.
        bound: what S is.

    Its state's key is 0's until the method puts another in its place.
    """

    def init(model: nnx.State) -> ClippedMean:
        zero = jnp.float32(0)
        return ClippedMean(inner.init(model), jax.random.key(0), jnp.int32(0), zero, zero)

    def apply(
        model: nnx.State, deltas: nnx.State, weights: jax.Array, state: ClippedMean
    ) -> tuple[nnx.State, ClippedMean]:
        counts = weights > 0
        number = jnp.maximum(jnp.sum(counts), 1).astype(jnp.float32)
        norms = jax.vmap(norm)(deltas)
        median = jnp.nan_to_num(jnp.nanmedian(jnp.where(counts, norms, jnp.nan)))
        most = jnp.float32(clip) if bound == "fixed" else median
        factors = shrinking(norms, most)
        mean = weighted_mean(jax.vmap(scaled)(deltas, factors), counts.astype(jnp.float32))
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
    """min(1, S / |x|), by which what is longer than S becomes as long; 1 of what has no length."""
    return jnp.minimum(1, most / jnp.maximum(norms, jnp.finfo(jnp.float32).tiny))


def scaled(tree: Any, factor: jax.Array) -> Any:
    """factor x."""
    return jax.tree.map(lambda leaf: factor * leaf, tree)


def noisy(tree: Any, key: jax.Array, deviation: jax.Array) -> Any:
    """x + N(0, deviation^2 I), a draw for each number."""
    leaves, form = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(
        form,
        [
            leaf + deviation * jax.random.normal(own, leaf.shape, jnp.float32)
            for leaf, own in zip(leaves, keys, strict=True)
        ],
    )
