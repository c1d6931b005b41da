"""A client's side of a round of training on a network, and the messages between it and the server.

    step        the server sends    client j computes                           client j replies
    "update"    `Request`           labels by its own source, a local update    `Reply`
    "measure"   `NewModel`          its "static" statistics of the new model    these, number of examples
    "show"      `NewModel`          its upload after the mean (`AfterMean`)     the upload and its bytes

A step is a pure function of the client's own state and one message, so each may run in a process of its own.

Leaves a client: what the simulated method sends, and the metrics of its round: loss, number of steps, mean
weight of its pseudo-labels, number of its unlabeled examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort, arranged
from jaxfed.federation.communication import Communication
from jaxfed.federation.execution.client_map import client_map
from jaxfed.training.pseudo_labels.pseudo_label import PseudoLabel, PseudoLabels
from jaxfed.training.round.client_round import ClientUpdate, Shared
from jaxfed.training.round.parts import Parts
from jaxfed.training.round.server_hooks import nothing_sent
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


class ClientStage:
    """One stage of a run at a client.

    Attributes:
        source: name of the source of labels.
        first_round: number of rounds before the stage.
        label: the labeling by this source.
        update: the compiled local update: state, cohort, labels, received, key, learning rate -> own state,
            update, trains.
        after_mean: the compiled reply to a new model: step, state, cohort, labels, key -> reply.
    """

    def __init__(self, parts: Parts, stage: int, label: PseudoLabel) -> None:
        """Compile the computations of stage 1 or 2, for a cohort of one client."""
        self.source, self.first_round, self.label = (
            parts.source(stage),
            parts.first_round(stage),
            label,
        )
        clients = parts.clients(stage, partial(client_map, strategy="map"))

        def update(
            state: ServerState,
            cohort: Cohort,
            labels: PseudoLabels,
            received: Any,
            key: jax.Array,
            rate: Any,
        ) -> tuple[OwnState, ClientUpdate, jax.Array]:
            client = clients.of(cohort, labels)
            shared = Shared(state.model, state.control, rate, state.round - self.first_round)
            updates, trains = client.updates(state, shared, received, key)
            after = client.stored(state, state, updates)
            own = OwnState(after.clients, after.statistics, after.client_optimizers)
            return own, _only(updates._replace(client_state=(), optimizer_state=())), trains[0]

        def after_mean(
            step: str, state: ServerState, cohort: Cohort, labels: PseudoLabels, key: jax.Array
        ) -> Any:
            client = clients.of(cohort, labels)
            return _only((client.measured if step == MEASURE else client.shown)(state, key))

        self.update = jax.jit(update)
        self.after_mean = jax.jit(after_mean, static_argnums=0)


@dataclass(frozen=True, eq=False)
class TrainingClient:
    """A client of a method that `federated_training` makes: the functions of a `ClientSide`.

    Attributes:
        parts: the method.
        stages: the two stages of a run.
    """

    parts: Parts
    stages: tuple[ClientStage, ClientStage]

    def init_server(self, key: jax.Array, federation: Federation) -> ServerState:
        """Return the server's state before the first round, without rows of clients."""
        return self.parts.first_state(0, key, federation)

    def init(self, key: jax.Array, federation: Federation) -> OwnState:
        """Return the client's own state before its first round."""
        state = self.parts.first_state(1, key, federation)
        return OwnState(state.clients, state.statistics, state.client_optimizers)

    def answer(
        self,
        step: str,
        own: OwnState,
        message: Any,
        cohort: Cohort,
        label: PseudoLabel | None = None,
    ) -> tuple[OwnState, Any]:
        """Return the client's new own state and its reply.

        Args:
            step: name of the step.
            own: the client's state.
            message: the server's.
            cohort: the client alone.
            label: labels of the round, if not the stage's own.
        """
        cohort, state = arranged(cohort), client_view(message, own)
        given = jnp.asarray(cohort.y)
        labels = PseudoLabels(given, (given >= 0).astype(jnp.float32), {})
        if step != UPDATE:
            stage = self.stage(int(message.round) - 1)
            key = jax.random.wrap_key_data(jnp.asarray(message.key))
            return own, stage.after_mean(step, state, cohort, labels, key)
        stage = self.stage(int(message.round))
        label_key, key = jax.random.wrap_key_data(jnp.asarray(message.keys))
        labels = (label or stage.label)(state, cohort, label_key, Communication())
        received = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], message.received)
        rate = self.parts.training.local.rate_of(int(message.round) - stage.first_round)
        after, update, trains = stage.update(
            state, cohort, labels._replace(metrics={}), received, key, rate
        )
        unlabeled = jnp.float32(np.sum(np.asarray(cohort.mask) & (np.asarray(cohort.y) < 0)))
        return after, Reply(update, trains, dict(labels.metrics), unlabeled)

    def form(self, step: str, federation: Federation) -> Any:
        """Return the form of a message of the server, a pytree of `jax.ShapeDtypeStruct`.

        Raises:
            UsageError: the method has no such step.
        """
        messages = self.parts.messages
        steps = {
            UPDATE: True,
            MEASURE: self.parts.training.local.batch_statistics == "static",
            SHOW: messages.after_mean is not None,
        }
        if not steps.get(step):
            raise UsageError(f"the method has no step {step!r}")
        key, send = jax.random.key(0), messages.send

        def message(state: ServerState, received: Any) -> Any:
            keys = jax.random.key_data(jnp.stack([key, key]))
            return message_of(step, self.parts, state, received, keys)

        if step != UPDATE or send is nothing_sent:
            return jax.eval_shape(lambda: message(self.init_server(key, federation), ()))
        state = self.init_server(key, federation)  # a method makes its own messages on the host
        received = jax.tree.map(_row_0, send(state, nobody(), Communication()))
        return jax.eval_shape(lambda: message(state, received))

    def stage(self, rounds_done: int) -> ClientStage:
        """Return the stage of a round."""
        return self.stages[rounds_done >= self.parts.training.labeled_only_rounds]


def message_of(
    step: str, parts: Parts, state: ServerState, received: Any, keys: jax.Array
) -> Request | NewModel:
    """Return the server's message to one client; `keys` are data of the labeling's and the training's."""
    if step != UPDATE:
        return NewModel(state.model, state.round, keys[1])
    control = state.control if parts.control.is_sent else ()
    return Request(state.model, control, state.round, received, keys)


def _only(stacked: Any) -> Any:
    """The one row of a cohort of one client."""
    return jax.tree.map(_row_0, stacked)


def _row_0(leaf: jax.Array) -> jax.Array:
    return leaf[0]
