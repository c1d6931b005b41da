"""Messages of a round of training on a network.

    step        the server sends    client j computes                           client j replies
    "update"    `Request`           labels by its own source, a local update    `Reply`
    "measure"   `NewModel`          its "static" statistics of the new model    these, number of examples
    "show"      `NewModel`          its upload after the mean (`AfterMean`)     the upload and its bytes

Leaves a client: what the simulated method sends, and the metrics of its round: loss, number of steps, mean
weight of its pseudo-labels, number of its unlabeled examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.federation.cohort import Cohort
from jaxfed.training.local.local_update import ClientUpdate
from jaxfed.training.server.server_state import ServerState

UPDATE, MEASURE, SHOW = "update", "measure", "show"
AFTER_MEAN = (MEASURE, SHOW)


class OwnState(NamedTuple):
    """A client's state between rounds, which stays with it; leaves [1, ...], a row of the simulation's state.

    Fields:
        client: defined by the method (`ServerState.clients`; SCAFFOLD's c_k).
        statistics: with "local" statistics, its running statistics.
        optimizer: the state its optimizer resumes from, if it is kept.
    """

    client: Any
    statistics: Any
    optimizer: Any


class Request(NamedTuple):
    """Message of the server to one client of a round.

    Fields:
        model: parameters and statistics.
        control: `ServerState.control` if clients receive it, else ().
        round: int32, rounds done.
        received: the server's message to this client alone.
        keys: uint32 [2, ...], data of the keys of the round's labeling and training.
    """

    model: nnx.State
    control: Any
    round: jax.Array
    received: Any
    keys: jax.Array


class Reply(NamedTuple):
    """A client's answer to a `Request`.

    Fields:
        update: its update, without its own new state.
        trains: bool, False if it has nothing to train on.
        labels: metrics of its labeling.
        unlabeled: float32, the number of examples that these are means over.
    """

    update: ClientUpdate
    trains: jax.Array
    labels: dict[str, jax.Array]
    unlabeled: jax.Array


class NewModel(NamedTuple):
    """The round's new model, to be measured, or to make an upload by.

    Fields:
        model: parameters and statistics.
        round: int32, rounds done, this one too.
        key: uint32 [...], data of the key of the round's training.
    """

    model: nnx.State
    round: jax.Array
    key: jax.Array


class LabeledByClients(NamedTuple):
    """Stands for the labels of a round at a server that does not see them.

    Fields:
        key: typed, of the labeling.
        metrics: of a labeling that the server takes part in; clients reply with theirs.
        clients: those that have labels; None: all.
    """

    key: jax.Array
    metrics: Mapping[str, Any]
    clients: frozenset[int] | None = None


def client_view(message: Request | NewModel, own: OwnState) -> ServerState:
    """Return the state of a round as one client knows it: what it received, and its own row."""
    return ServerState(
        model=message.model,
        optimizer=(),
        teacher=(),
        control=message.control if isinstance(message, Request) else (),
        statistics=own.statistics,
        clients=own.client,
        round=jnp.asarray(message.round),
        client_optimizers=own.optimizer,
    )


def row_of(state: ServerState) -> OwnState:
    """Return a row of zeros for one client, in the form of the state's rows."""
    return jax.tree.map(
        lambda leaf: jnp.zeros((1, *leaf.shape[1:]), leaf.dtype),
        OwnState(state.clients, state.statistics, state.client_optimizers),
    )


def nobody(number: int = 1) -> Cohort:
    """Return a cohort of padding: rows without a client and without examples."""
    y = np.zeros((number, 0), np.int32)
    return Cohort(np.full(number, -1, np.int32), y.astype(np.float32), y, y.astype(bool))
