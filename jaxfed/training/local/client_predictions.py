"""Predictions of one model for all examples of one client, outside its training steps.

    p_i = softmax(f(weak(x_i))),   f in evaluation mode

They give the thresholds of FlexMatch, FreeMatch and (FL)^2, estimates of a client's class shares, and labels
that are fixed for a round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.ragged import by_extent
from jaxfed.training.local.client_data import ClientData, extent, usable
from jaxfed.training.local.losses import Augment, taken, view

if TYPE_CHECKING:
    from jaxfed.models import Model

_AT_ONCE = 256


def client_logits(
    model: Model, state: nnx.State, data: ClientData, key: jax.Array, weak: Augment | None
) -> jax.Array:
    """Logits float32 [N, C] for each of the client's examples, on one weak view; 0 on padding behind them.

    An example's view depends on its number and the key alone. Cost: one forward pass over the client's data.
    """

    def classify(number: jax.Array) -> jax.Array:
        x = view(weak, jax.random.fold_in(key, number), taken(data.x, number[None]))
        return model.apply(state, x)[0].astype(jnp.float32)

    def of_length(length: int) -> jax.Array:
        numbers = jnp.arange(length)
        own = jax.lax.map(classify, numbers, batch_size=min(_AT_ONCE, length))
        return jnp.pad(own, ((0, len(data.mask) - length), (0, 0)))

    return by_extent(data.x, extent(data), of_length)


def is_unlabeled(data: ClientData) -> jax.Array:
    """bool [N]: the client's examples that train without a given label."""
    return usable(data) & ~data.is_labeled
