"""Helpers: the clients with the most similar model outputs, and the part of their models that is sent.

For every client the server stores what it last received: the part psi of its model, and the model's
outputs on one fixed random input. A client's helpers are the other clients with the nearest outputs
(FedMatch, Section 3.2), found by a KD-tree, as in the authors' code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.algorithms.fedmatch.sparse_message import num_bytes_of_nonzero
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication
from jaxfed.training.server.client_rows import gather, of_cohort, took_part
from jaxfed.training.server.server_state import ServerState

if TYPE_CHECKING:
    from jaxfed.models import Model
    from jaxfed.training.round.server_hooks import Send

_NO_CLIENT = -1
_MEAN = _DEVIATION = 125 / 255  # of the random input
_INPUT_SEED = 0


class Seen(NamedTuple):
    """The server's record of one client: its psi, and its outputs on the random input, float32 [C]."""

    psi: nnx.State
    outputs: jax.Array
    is_known: jax.Array


class Helpers(NamedTuple):
    """The H helpers of a client: psi [H, ...], and bool [H], False in slots without a helper."""

    psi: nnx.State
    is_there: jax.Array


def seen(model: Model, state: nnx.State, psi: nnx.State, shape: tuple[int, ...]) -> Seen:
    """Return the record of a client that sent psi; `state` is its model, `shape` that of one example."""
    logits = model.apply(state, random_input(shape))
    return Seen(psi, jax.nn.softmax(logits[0]), jnp.asarray(True))


def unseen(psi: nnx.State, num_classes: int) -> Seen:
    """Return the record of a client that has sent nothing yet."""
    return Seen(psi, jnp.zeros(num_classes), jnp.asarray(False))


def random_input(shape: tuple[int, ...]) -> jax.Array:
    """The input [1, ...] on which all models are compared, the same in every round.

    A normal with mean and deviation 125, truncated to 0..255 and divided by 255: an image in [0, 1].
    """
    lower, upper = (0 - _MEAN) / _DEVIATION, (1 - _MEAN) / _DEVIATION
    key = jax.random.key(_INPUT_SEED)
    normal = jax.random.truncated_normal(key, lower, upper, (1, *shape))
    return jnp.clip(_MEAN + _DEVIATION * normal, 0, 1)  # against rounding errors


def helper_sender(num_helpers: int, interval: int) -> Send:
    """Return the hook that sends each client its helpers' psi, in every `interval`-th round.

    Other rounds send nothing. Zeros of psi are not sent (`jaxfed.algorithms.fedmatch.sparse_message`).
    """

    @jax.jit
    def collect(known: nnx.State, helper_id: jax.Array) -> tuple[Helpers, jax.Array]:
        psi = gather(known, helper_id)
        sizes = jax.vmap(jax.vmap(num_bytes_of_nonzero))(psi)
        return Helpers(psi, helper_id >= 0), sizes

    def send(state: ServerState, cohort: Cohort, communication: Communication) -> Helpers:
        client_id, known = np.asarray(cohort.client_id), state.clients
        helper_id = np.full((len(client_id), num_helpers), _NO_CLIENT, np.int32)
        if (int(state.round) + 1) % interval == 0:
            seen_id = took_part(known.is_known)
            seen_id = seen_id[np.asarray(gather(known.is_known, seen_id))]
            outputs = np.asarray(gather(known.outputs, seen_id))
            helper_id = nearest_clients(outputs, seen_id, client_id, num_helpers)
        helpers, sizes = collect(of_cohort(known.psi, helper_id), jnp.asarray(helper_id))
        if (helper_id >= 0).any():
            sent = np.where(helper_id >= 0, sizes, 0)
            communication.down("helpers", int(np.sum(sent, dtype=np.int64)))
        return helpers

    return send


def nearest_clients(
    outputs: np.ndarray, seen_id: np.ndarray, client_id: np.ndarray, num_helpers: int
) -> np.ndarray:
    """Each client's nearest others by Euclidean distance of outputs, int32 [K, H].

    Empty slots hold -1: all slots of a client that the server has not seen yet, and some if fewer than H
    others are.

    Args:
        outputs: [N, C], of the clients that the server has seen.
        seen_id: their numbers, int [N], ascending.
        client_id: the cohort's numbers, int [K]; -1 for padding.
        num_helpers: H.
    """
    from scipy.spatial import cKDTree  # here, because it takes a tenth of a second to import

    helper_id = np.full((len(client_id), num_helpers), _NO_CLIENT, np.int32)
    asking = np.flatnonzero(np.isin(client_id, seen_id))
    if len(asking) and len(seen_id) > 1:
        own = outputs[np.searchsorted(seen_id, client_id[asking])]
        _, neighbors = cKDTree(outputs).query(own, k=min(num_helpers + 1, len(seen_id)))
        for row, found in zip(asking, seen_id[neighbors], strict=True):
            others = found[found != client_id[row]][:num_helpers]
            helper_id[row, : len(others)] = others
    return helper_id
