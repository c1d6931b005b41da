"""Batches of a client's own labels, in epochs that continue from round to round.

A round of FedCT is a handful of steps, far less than an epoch. So a client's epochs span its rounds: step s,
counted over all rounds, takes batch s mod E of epoch s div E, with E batches per epoch. Every epoch has the
client's labeled examples in a new random order.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxfed.kernels.permutation import permuted
from jaxfed.training.local.client_data import ClientData, usable
from jaxfed.training.local.plan import BatchPlan

_AHEAD = 32  # steps whose rows are drawn at once


def own_batches(
    data: ClientData, key: jax.Array, *, size: int, done: jax.Array, steps: jax.Array
) -> BatchPlan:
    """Return the rows of one client's next steps, from its own usable examples.

    Args:
        data: the client's examples, [N, ...]; padding and unlabeled ones change nothing.
        key: typed, the client's own, the same in all rounds.
        size: examples per batch; the last batch of an epoch is filled with unused examples.
        done: int32 scalar, steps in all rounds before.
        steps: int32 scalar, steps of this round.

    Cost: one stable sort of N flags per round, and one call of `permuted` per 32 steps.
    """
    is_own = usable(data)
    own = jnp.argsort(~is_own, stable=True).astype(jnp.int32)
    count = jnp.sum(is_own, dtype=jnp.int32)
    there = jnp.maximum(count, 1)
    per_epoch = (there + size - 1) // size

    def rows(step: jax.Array) -> tuple[jax.Array, jax.Array]:
        number = done + step
        position = number % per_epoch * size + jnp.arange(size, dtype=jnp.int32)
        epoch_key = jax.random.fold_in(key, number // per_epoch)
        return own[permuted(epoch_key, position % there, there)], position < count

    return BatchPlan(steps, rows, ahead=_AHEAD)
