"""Training data of one client: its examples, the labels of the round, and which rows take part."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxfed.federation.ragged import Ragged


class ClientData(NamedTuple):
    """One client's examples with the labels it trains on.

    Fields:
        x: [N, ...]; in a cohort with very unequal client sizes a `Ragged`, which is read by rows.
        label: int32 [N], given or pseudo-label; -1 keeps the example out of training.
        weight: float32 [N], in [0, 1].
        is_labeled: bool [N], the label was given.
        mask: bool [N], False on padding.
    """

    x: jax.Array | Ragged
    label: jax.Array
    weight: jax.Array
    is_labeled: jax.Array
    mask: jax.Array


def usable(data: ClientData) -> jax.Array:
    """bool [N]: examples that take part in training."""
    return data.mask & (data.label >= 0)


def extent(data: ClientData) -> jax.Array:
    """int32 scalar: the number of leading rows that include all the client's examples."""
    return jnp.max(jnp.where(data.mask, jnp.arange(1, len(data.mask) + 1, dtype=jnp.int32), 0))


def class_counts(label: jax.Array, member: jax.Array, num_classes: int) -> jax.Array:
    """Number of members, bool [N], of each class by their labels int32 [N]: float32 [C]."""
    return jnp.sum(jnp.where(member[:, None], jax.nn.one_hot(label, num_classes), 0), axis=0)
