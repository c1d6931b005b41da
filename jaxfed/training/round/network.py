"""A round of training on a network: a client's side, the server's side, and the messages between them.

    step        the server sends         client j computes                           client j replies
    "update"    `Request`                labels by its own source, a local update    `Reply`
    "measure"   the round's new model    its "static" statistics of it               these, number of examples
    "show"      the round's new model    its upload after the mean (`AfterMean`)     the upload and its bytes

The round is the simulation's (`jaxfed.training.round.round`), with clients that are asked for their updates.
One that does not reply has left the round, as if it had not been drawn. A step is a pure function of the
client's own state and one message, so each may run in a process of its own. Simulations need nothing of this
file; it knows no transport: `jaxfed.federation.algorithm.Ask` is what sends.

Leaves a client: what the simulated method sends, and the metrics of its round: loss, number of steps, mean
weight of its pseudo-labels, number of its unlabeled examples.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import Ask, Check, Unusable
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Array, Cohort, arranged
from jaxfed.federation.communication import Communication
from jaxfed.federation.execution.client_map import client_map
from jaxfed.training.aggregate import largest_weight
from jaxfed.training.pseudo_labels.pseudo_label import PseudoLabel, PseudoLabels
from jaxfed.training.round.client_round import ClientUpdate, Shared
from jaxfed.training.round.parts import Parts, nothing_sent
from jaxfed.training.round.runner import CohortClients
from jaxfed.training.server_state import ServerState

UPDATE, MEASURE, SHOW, EMBED = "update", "measure", "show", "embed"
AFTER_MEAN = (MEASURE, SHOW)

_ROUNDED = 1 + 1e-5  # a sum of probabilities may be a little above 1


class OwnState(NamedTuple):
    """A client's `ServerState.clients` and kept optimizer state, which stay with it; leaves [1, ...]."""

    client: Any
    optimizer: Any


class Request(NamedTuple):
    """Message of the server to one client of a round.

    Fields:
        model: parameters and statistics; after the mean, the round's new ones.
        control: `ServerState.control` if clients receive it, else ().
        round: int32, rounds done; after the mean, this one too.
        received: the server's message to this client alone, else ().
        keys: uint32, data of the keys of the round's labeling and training; after the mean, of the latter.
    """

    model: nnx.State
    control: Any
    round: jax.Array
    received: Any
    keys: jax.Array


class Reply(NamedTuple):
    """A client's update, whether it trains, and metrics of its labeling, means over `unlabeled` examples."""

    update: ClientUpdate
    trains: jax.Array
    labels: dict[str, jax.Array]
    unlabeled: jax.Array


class LabeledByClients(NamedTuple):
    """Key and metrics of a labeling that the server does not see; `clients` have labels, None: all."""

    key: jax.Array
    metrics: Mapping[str, Any]
    clients: frozenset[int] | None = None


@dataclass(frozen=True, eq=False)
class TrainingClient:
    """A client of a method that `federated_training` makes, with the labelings of the two stages."""

    parts: Parts
    labels: tuple[PseudoLabel, PseudoLabel]

    def init_server(self, key: jax.Array, federation: Federation) -> ServerState:
        """Return the server's state before the first round, without rows of clients."""
        return self.parts.first_state(0, key, federation)

    def init(self, key: jax.Array, federation: Federation) -> OwnState:
        """Return the client's own state before its first round."""
        return _own_state(self.parts.first_state(1, key, federation))

    def answer(
        self,
        step: str,
        own: OwnState,
        message: Request,
        cohort: Cohort,
        label: PseudoLabel | None = None,
    ) -> tuple[OwnState, Any]:
        """Return the new own state and the reply of `cohort`'s one client; `label`: labels of the round."""
        parts, cohort, state = self.parts, arranged(cohort), client_view(message, own)
        keys = jax.random.wrap_key_data(jnp.asarray(message.keys))
        done = int(message.round) - (step != UPDATE)  # rounds before this one
        stage = parts.stage(done)
        if step != UPDATE:
            given = jnp.asarray(cohort.y)
            labels = PseudoLabels(given, (given >= 0).astype(jnp.float32), {})
            return own, self.compiled(step, stage, state, cohort, labels, (), keys[-1], 0)
        labels = (label or self.labels[stage - 1])(state, cohort, keys[0], Communication())
        received = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], message.received)
        rate = parts.training.local.rate_of(done - parts.first_round(stage))
        after, update, trains = self.compiled(
            step, stage, state, cohort, labels._replace(metrics={}), received, keys[-1], rate
        )
        number = jnp.float32(np.sum(np.asarray(cohort.mask) & (np.asarray(cohort.y) < 0)))
        return after, Reply(update, trains, dict(labels.metrics), number)

    def form(self, step: str, federation: Federation) -> Any:
        """Return the form of a message of the server, a pytree of `jax.ShapeDtypeStruct`."""
        messages = self.parts.messages
        steps = {
            UPDATE: True,
            MEASURE: self.parts.training.local.batch_statistics == "static",
            SHOW: messages.after_mean is not None,
        }
        if not steps.get(step):
            raise UsageError(f"the method has no step {step!r}")
        key, send = jax.random.key(0), messages.send
        keys = jax.random.key_data(jnp.stack([key, key]))
        if step != UPDATE or send is nothing_sent:
            return jax.eval_shape(
                lambda: message_of(step, self.parts, self.init_server(key, federation), (), keys)
            )
        state = self.init_server(key, federation)  # a method makes its own messages on the host
        received = _only(send(state, _nobody(), Communication()))
        return jax.eval_shape(lambda: message_of(step, self.parts, state, received, keys))

    @cached_property
    def compiled(self) -> Callable[..., Any]:
        """The compiled part of a step: a reply after the mean, else own state, update, whether it trains."""

        def answered(
            step: str,
            stage: int,
            state: ServerState,
            cohort: Cohort,
            labels: PseudoLabels,
            received: Any,
            key: jax.Array,
            rate: Any,
        ) -> Any:
            parts, map_clients = self.parts, partial(client_map, strategy="map")
            client = CohortClients(parts, stage, map_clients, cohort, labels)
            if step == MEASURE:
                return _only(client.measured(state, key))
            if step == SHOW:
                return _only(client.shown(state, key))
            done = state.round - parts.first_round(stage)
            shared = Shared(state.model, state.control, rate, done)
            updates, trains = client.updates(state, shared, received, key)
            own = _own_state(client.stored(state, updates))
            return own, _only(updates._replace(client_state=(), optimizer_state=())), trains[0]

        return jax.jit(answered, static_argnums=(0, 1))


def client_view(message: Request, own: OwnState) -> ServerState:
    """Return the state of a round as one client knows it: what it received, and its own row."""
    return ServerState(
        model=message.model,
        optimizer=(),
        teacher=(),
        control=message.control,
        clients=own.client,
        round=jnp.asarray(message.round),
        client_optimizers=own.optimizer,
    )


def message_of(
    step: str, parts: Parts, state: ServerState, received: Any, keys: jax.Array
) -> Request:
    """Return the server's message to one client; `keys` are data of the labeling's and the training's."""
    if step != UPDATE:
        return Request(state.model, (), state.round, (), keys[1:])
    control = state.control if parts.control.is_sent else ()
    return Request(state.model, control, state.round, received, keys)


def labels_at_clients(
    state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
) -> LabeledByClients:
    """Return the key that each client will label with."""
    del state, cohort, communication
    return LabeledByClients(key, {})


@dataclass(eq=False)
class AskedClients:
    """The clients of a round on a network: the methods of `CohortClients`, by requests to each.

    `client_id`, int32 [K], has the clients that are still there, and -1 for others; `metrics` those of the
    labels that they made; `federation` is as the server knows it.
    """

    client: TrainingClient
    stage: int
    ask: Ask
    federation: Federation
    at_server: Callable[..., Any]
    cohort: Cohort
    labels: LabeledByClients

    def __post_init__(self) -> None:
        self.metrics, self.communication = dict[str, jax.Array](), Communication()
        self.client_id = _those_in(self.cohort.client_id, self.labels.clients)
        self.parts = self.client.parts

    def updates(
        self, state: ServerState, shared: Shared, received: Any, key: jax.Array
    ) -> tuple[ClientUpdate, jax.Array]:
        """Ask for the local updates: those that arrive, [K, ...], and bool [K], which clients train."""
        reply: Reply = self._asked(UPDATE, state, received, key, self._check_update)
        total = jnp.maximum(jnp.sum(reply.unlabeled), 1)
        self.metrics = {
            name: jnp.sum(value * reply.unlabeled) / total for name, value in reply.labels.items()
        }
        return reply.update, reply.trains

    def measured(self, state: ServerState, key: jax.Array) -> tuple[nnx.State, jax.Array]:
        """Ask for each client's statistics of the state's model, and its number of examples."""
        ids = self.client_id
        found = self._asked(MEASURE, state, (), key, self._check_measured)
        self.client_id = ids  # who leaves here counts as a client of the round
        return found

    def shown(self, state: ServerState, key: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        """Ask for the uploads after the state's model, and their bytes."""
        return self._asked(SHOW, state, (), key, lambda client, reply: reply)

    def stored(self, state: ServerState, updates: ClientUpdate) -> ServerState:
        """Return the state as it is: clients keep theirs."""
        del updates
        return state

    def requests(
        self, step: str, state: ServerState, received: Any, key: jax.Array
    ) -> tuple[dict[int, Request], Any]:
        """Return the messages to the clients that are still there, and the form of their replies."""
        keys = jax.random.key_data(jnp.stack([self.labels.key, key]))
        rows = {int(client): row for row, client in enumerate(self.client_id) if client >= 0}
        messages = {
            client: message_of(step, self.parts, state, _row(received, row), keys)
            for client, row in rows.items()
        }
        return messages, jax.eval_shape(lambda: self._reply(step, state, received, key))

    def keep(self, clients: Container[int]) -> None:
        """Leave out the clients of the round that are not among these."""
        self.client_id = _those_in(self.client_id, clients)

    def _asked(
        self, step: str, state: ServerState, received: Any, key: jax.Array, check: Check
    ) -> Any:
        """Ask the clients that are still there; replies in their order, [K, ...].

        Who does not reply has left the round: its row has zeros, its weight included.
        """
        messages, form = self.requests(step, state, received, key)
        number = int(state.round) + (step == UPDATE)
        replies = self.ask(step, messages, form, round_number=number, check=check)
        self.keep(replies)
        nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), form)
        stacked = [replies[int(client)] if client >= 0 else nothing for client in self.client_id]
        return jax.tree.map(
            lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *stacked
        )

    def _reply(self, step: str, state: ServerState, received: Any, key: jax.Array) -> Any:
        """Reply of a client with one example, whose form is that of all replies; traced, not computed."""
        client, stage, x = self.client, self.stage, self.federation.x
        y = jnp.zeros((1, 1), jnp.int32)
        cohort = Cohort(y[0], jnp.zeros((1, 1, *x.shape[1:]), x.dtype), y, y == 0)
        labels = PseudoLabels(y, jnp.ones((1, 1)), {})
        own = jax.tree.map(
            lambda leaf: jnp.zeros((1, *leaf.shape[1:]), leaf.dtype), _own_state(state)
        )
        keys = jax.random.key_data(jnp.stack([key, key]))
        view = client_view(message_of(step, self.parts, state, (), keys), own)
        received = jax.tree.map(lambda leaf: leaf[:1], received)
        found = client.compiled(step, stage, view, cohort, labels, received, key, np.float32(0))
        if step in AFTER_MEAN:
            return found
        labeled = client.labels[stage - 1](view, cohort, key, Communication())
        _, update, trains = found
        return Reply(update, trains, dict(labeled.metrics), jnp.float32(0))

    def _num_examples(self, client: int) -> int:
        assert self.federation.census is not None
        return self.federation.census.examples[client]

    def _check_update(self, client: int, reply: Reply) -> Any:
        num_examples = self._num_examples(client)
        weighting = self.parts.training.server.weigh
        _in_range("weight", reply.update.weight, largest_weight(weighting, num_examples))
        _in_range("unlabeled", reply.unlabeled, num_examples)
        return reply.update.delta, reply.update.correction, reply.update.upload

    def _check_measured(self, client: int, reply: tuple[Any, jax.Array]) -> Any:
        _in_range("number of examples", reply[1], self._num_examples(client))
        return reply[0]


def _in_range(name: str, values: Any, most: float) -> None:
    """Raise `Unusable` for a weight or number by which one client would dominate the mean."""
    if not np.all(np.asarray(values) >= 0):
        raise Unusable(f"{name} is no number from 0 on")
    if (largest := np.max(np.asarray(values), initial=0)) > most * _ROUNDED:
        raise Unusable(f"{name} is {largest:g}; by the client's hello it is at most {most:g}")


def _own_state(state: ServerState) -> OwnState:
    return OwnState(state.clients, state.client_optimizers)


def _nobody() -> Cohort:
    """A cohort of padding: one row without a client and without examples."""
    y = np.zeros((1, 0), np.int32)
    return Cohort(np.full(1, -1, np.int32), y.astype(np.float32), y, y.astype(bool))


def _row(stacked: Any, row: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[row], stacked)


def _only(stacked: Any) -> Any:
    return _row(stacked, 0)


def _those_in(client_id: Array, there: Container[int] | None) -> np.ndarray:
    ids = np.asarray(client_id)
    return np.array([c if there is None or int(c) in there else -1 for c in ids], np.int32)
