"""Models of earlier rounds, from which clients of asynchronous rounds train (`jaxfed.federation.clock`).

    delta_k = w_k - w^(v),   w <- w + mean_k p_k (1 + t - v)^-a delta_k

with v the number of server steps before client k began, and t the number before this step.

FedBuff (Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, AISTATS 2022): a stale change is scaled
down, and its weight p_k is not. Running statistics are treated like parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.federation.cohort import Array
from jaxfed.training.server.server_state import ServerState, stacked_for

if TYPE_CHECKING:
    from jaxfed.federation.clock.schedule import Arrivals


class Start(NamedTuple):
    """The stored model and staleness of one client's work, or of a round's clients [K].

    Fields:
        slot: int32, the stored model that it begins with.
        staleness: int32, number of server steps since then.
        scale: float32, factor of its model change.
    """

    slot: jax.Array
    staleness: jax.Array
    scale: jax.Array


class StoredModels(NamedTuple):
    """Models that clients train from, and the starts of a round's clients.

    Fields:
        models: [V, ...], V the largest number in use at a time.
        client: int32 [K], the clients that arrive in the round.
        start: their starts, [K].
    """

    models: nnx.State
    client: jax.Array
    start: Start


def with_arrivals(
    state: ServerState, stored: StoredModels | tuple[()], arrivals: Arrivals
) -> ServerState:
    """Return the state that an asynchronous round begins with: its model stored, its arrivals set."""
    if not stored:
        models = stacked_for(arrivals.num_slots, state.model)
    else:
        slot = arrivals.store if arrivals.store >= 0 else arrivals.num_slots
        models = _with_model(stored.models, state.model, jnp.int32(slot))
    scale = ((1.0 + arrivals.staleness) ** -arrivals.exponent).astype(np.float32)
    start = Start(*map(jnp.asarray, (arrivals.slot, arrivals.staleness, scale)))
    return state._replace(stored=StoredModels(models, jnp.asarray(arrivals.client), start))


@jax.jit
def _with_model(models: nnx.State, model: nnx.State, slot: jax.Array) -> nnx.State:
    """Return the stored models with this one in a slot; a slot out of range changes nothing."""
    return jax.tree.map(lambda rows, leaf: rows.at[slot].set(leaf, mode="drop"), models, model)


def starts_of(state: ServerState, client_id: Array) -> Start | None:
    """Return the starts of a cohort's clients, [K]; None in synchronous rounds.

    A padding client (id -1) gets that of some other client.
    """
    if not state.stored:
        return None
    row = jnp.argmax(state.stored.client[None] == jnp.asarray(client_id)[:, None], axis=1)
    return jax.tree.map(lambda leaf: leaf[row], state.stored.start)


def model_at(models: nnx.State, start: Start) -> nnx.State:
    """Return the stored model that one client begins with."""
    return jax.tree.map(lambda rows: rows[start.slot], models)


def scaled(deltas: nnx.State, start: Start | None) -> nnx.State:
    """Return the clients' model changes [K, ...], scaled by their staleness."""
    if start is None:
        return deltas
    return jax.tree.map(lambda rows: jax.vmap(jnp.multiply)(start.scale, rows), deltas)
