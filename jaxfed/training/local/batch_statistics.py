"""BatchNorm's statistics measured afresh: the static statistics of HeteroFL and SemiFL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.ragged import Ragged
from jaxfed.training.local.local_update import rebuilt
from jaxfed.training.local.losses import taken

if TYPE_CHECKING:
    from jaxfed.models import Model


def measured_statistics(
    model: Model,
    state: nnx.State,
    x: jax.Array | Ragged,
    mask: jax.Array,
    key: jax.Array,
    *,
    batch_size: int,
) -> nnx.State:
    """Mean over a client's batches of the statistics that each batch has under `state`.

    A layer moves its running statistics by r <- m r + (1 - m) s, s the batch's and m its momentum.
    Two calls with r = 0 and r = 1 on one batch give m, and then r = 0 on any batch gives s. So every
    model whose statistics are running means can be measured from outside (Diao et al., ICLR 2021,
    Section 3; their cumulative average).

    Args:
        model: its `train_apply` is called; dropout is on, as in training.
        state: parameters to measure; its statistics are ignored.
        x: [N, ...], examples; the valid ones come first.
        mask: bool [N], False on padding.
        key: typed key of the dropout.
        batch_size: B. The client's first examples fill the last batch: its statistics count them, its weight
            does not.

    Returns:
        The statistics part of a state; zeros for a client without examples.
    """
    parameters, statistics = nnx.split_state(state, nnx.Param, ...)
    zeros = jax.tree.map(jnp.zeros_like, statistics)
    count = jnp.sum(mask, dtype=jnp.int32)

    def moved(start: nnx.State, number: jax.Array) -> tuple[nnx.State, jax.Array]:
        position = number * batch_size + jnp.arange(batch_size)
        batch = taken(x, position % jnp.maximum(count, 1))
        _, after = model.train_apply(
            rebuilt(nnx.merge_state(parameters, start)), batch, jax.random.fold_in(key, number)
        )
        share = jnp.sum(position < count) / jnp.maximum(count, 1)
        return nnx.split_state(after, nnx.Param, ...)[1], share.astype(jnp.float32)

    ones = jax.tree.map(jnp.ones_like, statistics)
    momentum = jax.tree.map(
        jnp.subtract, moved(ones, jnp.int32(0))[0], moved(zeros, jnp.int32(0))[0]
    )

    def add(number: jax.Array, total: nnx.State) -> nnx.State:
        after, share = moved(zeros, number)
        return jax.tree.map(lambda t, r, m: t + share * r / (1 - m), total, after, momentum)

    return jax.lax.fori_loop(0, (count + batch_size - 1) // batch_size, add, zeros)
