"""A round of training on a network: a client's side, the server's side, and the messages between them.

    step        the server sends         client j computes                           client j replies
    "update"    `Request`                labels by its own source, a local update    `Reply`
    "show"      the round's new model    its upload after the mean (`AfterMean`)     the upload and its bytes

The round is the simulation's (`jaxfed.training.round.round`), with clients that are asked for their updates.
One that does not reply has left the round, as if it had not been drawn. A step is a pure function of the
client's own state and one message, so each may run in a process of its own. `Ask` sends the messages.

Leaves a client: what the simulated method sends, and the metrics of its round: loss, number of steps, mean
weight of its pseudo-labels, number of its unlabeled examples.

With XCLP's labels (lines 6 and 7 of Algorithm 2) a client first labels with the others, by the session of
`jaxfed.xclp.network`. Its labels never leave it. One that leaves the labeling has left the round.

    "embed"   `Request`            computes V^(j) by the model, and keeps it      number of its points
    messages of a session          takes part in Algorithm 1                      frames
    "end"     its masked sums      keeps its labels and confidences, forgets V^(j)

With sums under masks (`jaxfed.training.round.masked_sums`) it replies with its update to nobody. One that
leaves the sum has left the round.

    "update"               computes its update, keeps z_j                  how many numbers it has
    messages of a session  takes part in the sum                           frames
    "end"                  forgets z_j
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.errors import ProtocolError, UsageError
from jaxfed.federation.algorithm import Ask, Check, ClientSide, Init, OnNetwork, Round, Unusable
from jaxfed.federation.clients import UNLABELED, Federation
from jaxfed.federation.cohort import Array, Cohort, arranged, own_examples
from jaxfed.federation.communication import Communication
from jaxfed.federation.execution import client_map
from jaxfed.secure.row_sums import server_sums
from jaxfed.secure.session import exchanges
from jaxfed.secure.session.neighborhoods import enough_partners
from jaxfed.secure.session.remote_session import RemoteSession
from jaxfed.secure.session.replayed_party import ReplayedParty
from jaxfed.settings import choose_one_of
from jaxfed.training.aggregate import largest_weight
from jaxfed.training.consensus import fewest_clients
from jaxfed.training.pseudo_labels.propagated_labels import XclpLabels
from jaxfed.training.pseudo_labels.pseudo_label import PseudoLabel, PseudoLabels, completed
from jaxfed.training.round.client_round import ClientUpdate, Shared
from jaxfed.training.round.masked_sums import (
    Summand,
    SummedClients,
    sum_in,
    summand_from,
    summand_of,
    vector_of,
)
from jaxfed.training.round.parts import Parts, nothing_sent
from jaxfed.training.round.runner import CohortClients, Outcome, Stage
from jaxfed.training.server_state import ServerState
from jaxfed.training.specification import AT_CLIENTS, BY_XCLP
from jaxfed.xclp.network import check_network, check_points, labeled_by_clients, take_part
from jaxfed.xclp.steps.codes import drawn_seed

UPDATE, SHOW, EMBED = "update", "show", "embed"

_ROUNDED = 1 + 1e-5  # a sum of probabilities may be a little above 1
_LARGEST_METRIC = 1e20  # one that is not finite in the mean would end the run


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
        stored: OwnState,
        message: Request,
        cohort: Cohort,
        label: PseudoLabel | None = None,
    ) -> tuple[OwnState, Any]:
        """Return the new own state and the reply of `cohort`'s one client; `label`: labels of the round."""
        parts, cohort, state = self.parts, arranged(cohort), client_view(message, stored)
        keys = jax.random.wrap_key_data(jnp.asarray(message.keys))
        done = int(message.round) - (step != UPDATE)  # rounds before this one
        stage = parts.stage(done)
        if step != UPDATE:
            y = jnp.asarray(cohort.y)
            labels = PseudoLabels(y, (y >= 0).astype(jnp.float32), {})
            return stored, self.compiled(step, stage, state, cohort, labels, (), keys[-1], 0)
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
        if step != UPDATE and (step != SHOW or messages.after_mean is None):
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
            if step == SHOW:
                return _only(client.shown(state, key))
            done = state.round - parts.first_round(stage)
            shared = Shared(state.model, state.control, rate, done)
            updates, trains = client.updates(state, shared, received, key)
            stored = _own_state(client.stored(state, updates))
            return stored, _only(updates._replace(client_state=(), optimizer_state=())), trains[0]

        return jax.jit(answered, static_argnums=(0, 1))


def client_view(message: Request, stored: OwnState) -> ServerState:
    """Return the state of a round as one client knows it: what it received, and its own row."""
    return ServerState(
        model=message.model,
        optimizer=(),
        teacher=(),
        control=message.control,
        clients=stored.client,
        round=jnp.asarray(message.round),
        client_optimizers=stored.optimizer,
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
            client: message_of(step, self.parts, state, _only(received, row), keys)
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
        client, stage, x = self.client, self.stage, self.federation.x
        y = jnp.zeros((1, 1), jnp.int32)
        cohort = Cohort(y[0], jnp.zeros((1, 1, *x.shape[1:]), x.dtype), y, y == 0)
        labels = PseudoLabels(y, jnp.ones((1, 1)), {})
        stored = jax.tree.map(
            lambda leaf: jnp.zeros((1, *leaf.shape[1:]), leaf.dtype), _own_state(state)
        )
        keys = jax.random.key_data(jnp.stack([key, key]))
        view = client_view(message_of(step, self.parts, state, (), keys), stored)
        received = jax.tree.map(lambda leaf: leaf[:1], received)
        outputs = client.compiled(step, stage, view, cohort, labels, received, key, np.float32(0))
        if step == SHOW:
            return outputs
        labeled = client.labels[stage - 1](view, cohort, key, Communication())
        _, update, trains = outputs
        return Reply(update, trains, dict(labeled.metrics), jnp.float32(0))

    def _check_update(self, client: int, reply: Reply) -> Any:
        assert self.federation.census is not None
        num_examples = self.federation.census.examples[client]
        most = largest_weight(self.parts.training.server.weigh, num_examples)
        _in_range("weight", reply.update.weight, most)
        _in_range("unlabeled", reply.unlabeled, num_examples)
        for name, value in {**reply.labels, **reply.update.metrics}.items():
            _in_range(name, np.abs(value), _LARGEST_METRIC)
        return reply.update.delta, reply.update.correction, reply.update.upload


def _in_range(name: str, values: Any, most: float) -> None:
    """Raise `Unusable` for a weight or number by which one client would dominate the mean."""
    if not np.all(np.asarray(values) >= 0):
        raise Unusable(f"{name} is no number from 0 on")
    if (largest := np.max(np.asarray(values), initial=0)) > most * _ROUNDED:
        raise Unusable(f"{name} is {largest:g}, above {most:g}")


def _own_state(state: ServerState) -> OwnState:
    return OwnState(state.clients, state.client_optimizers)


def _nobody() -> Cohort:
    y = np.zeros((1, 0), np.int32)
    return Cohort(np.full(1, -1, np.int32), y.astype(np.float32), y, y.astype(bool))


def _only(stacked: Any, row: int = 0) -> Any:
    return jax.tree.map(lambda leaf: leaf[row], stacked)


def _those_in(client_id: Array, present: Container[int] | None) -> np.ndarray:
    ids = np.asarray(client_id)
    return np.array([c if present is None or int(c) in present else -1 for c in ids], np.int32)


NO_LABELS = {
    **exchanges.NO_SESSION,
    **dict.fromkeys(("vectors", "given", "point", "label", "confidence"), b""),
}


def no_labels(
    state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
) -> PseudoLabels:
    """Return the given labels alone; stands for a client's labels where they are not known."""
    del state, key, communication
    y = jnp.asarray(cohort.y)
    return completed(cohort, jnp.full(y.shape, UNLABELED), jnp.zeros(y.shape))


def labeled_jointly(
    source: XclpLabels,
    ask: Ask,
    federation: Federation,
    state: ServerState,
    cohort: Cohort,
    key: jax.Array,
    communication: Communication,
) -> LabeledByClients:
    """Have the clients label their examples by XCLP; who leaves is no part of the round."""
    p = replace(source.parameters, seed=drawn_seed(key))
    number, message = int(state.round) + 1, _embed(state, key)
    asked = {int(client): message for client in np.asarray(cohort.client_id) if client >= 0}
    check = partial(check_points, federation)
    points = ask(EMBED, asked, {"points": 0}, round_number=number, check=check)
    ids = list(points)
    labeling = labeled_by_clients(
        len(ids),
        exchanges.carried(ask, ids, {"round": number, "seed": p.seed}),
        {address: points[client]["points"] for address, client in enumerate(ids)},
        p,
        source.execution,
    )
    communication.add(labeling.communication)
    metrics = {"steps": labeling.accuracy.steps, "residual": labeling.accuracy.residual}
    return LabeledByClients(key, metrics, frozenset(ids[address] for address in labeling.clients))


def _embed(state: ServerState, key: jax.Array) -> Request:
    return Request(state.model, (), state.round, (), jax.random.key_data(key[None]))


@dataclass(frozen=True, eq=False)
class JointlyLabelingClient:
    """A client that labels with the others, by the simulation's `source`, then trains."""

    training: TrainingClient
    source: XclpLabels

    @property
    def side(self) -> ClientSide:
        """The functions of a client."""
        return ClientSide(self._init, self._answer, self._form, self._stored)

    def _init(self, key: jax.Array, federation: Federation) -> dict[str, Any]:
        return {**NO_LABELS, "training": self.training.init(key, federation)}

    def _stored(self, key: jax.Array, federation: Federation) -> dict[str, Any]:
        form = jax.eval_shape(lambda: self.training.init(key, federation))
        return {**NO_LABELS, "training": form}

    def _form(self, step: str, federation: Federation) -> Any:
        if step in (UPDATE, SHOW):
            return self.training.form(step, federation)
        if step != EMBED:
            return exchanges.REQUEST
        key = jax.random.key(0)
        return jax.eval_shape(lambda: _embed(self.training.init_server(key, federation), key))

    def _answer(
        self, step: str, stored: Mapping[str, Any], request: Any, cohort: Cohort
    ) -> tuple[dict[str, Any], Any]:
        if step in (UPDATE, SHOW):
            source = self._labels_of(stored, request) if step == UPDATE else None
            after, reply = self.training.answer(step, stored["training"], request, cohort, source)
            return {**stored, "training": after}, reply
        if step == EMBED:
            return self._embedded(stored, request, cohort)
        [number] = exchanges.terms_of(request, "round")
        point = np.frombuffer(stored["point"], np.uint8).astype(bool)
        if not len(point) or stored["round"] != number:
            raise ProtocolError(f"step {step!r} of round {number} without points of that round")
        y = np.frombuffer(stored["given"], np.int32)
        vectors = np.frombuffer(stored["vectors"], np.float32).reshape(len(y), -1)
        client, kept, frames = take_part(self.source.parameters, step, stored, request, vectors, y)
        if step == exchanges.END:
            prediction = client.prediction()
            label = np.full(len(point), UNLABELED, np.int32)
            confidence = np.zeros(len(point), np.float32)
            label[point], confidence[point] = prediction.labels, prediction.confidences
            kept |= {"round": number, "vectors": b"", "given": b"", "point": b""}
            kept |= {"label": label.tobytes(), "confidence": confidence.tobytes()}
        return {**stored, **kept}, {"frames": frames}

    def _embedded(
        self, stored: Mapping[str, Any], request: Request, cohort: Cohort
    ) -> tuple[dict[str, Any], Any]:
        [key] = jax.random.wrap_key_data(jnp.asarray(request.keys))
        state = client_view(request, stored["training"])
        entered = self.source.points(state, arranged(cohort), key)
        point = np.asarray(entered.mask)[0]
        [x], y = own_examples(entered.x), np.asarray(entered.y)[0]
        vectors = np.asarray(x[: len(point)][point], np.float32)
        after = {
            **NO_LABELS,
            "training": stored["training"],
            "round": int(request.round) + 1,
            "vectors": vectors.tobytes(),
            "given": y[point].astype(np.int32).tobytes(),
            "point": point.astype(np.uint8).tobytes(),
        }
        return after, {"points": len(vectors)}

    def _labels_of(self, stored: Mapping[str, Any], request: Any) -> PseudoLabel | None:
        if self.training.parts.stage(int(request.round)) == 1:
            return None
        if stored["round"] != int(request.round) + 1 or not stored["label"]:
            raise ProtocolError("training without labels of the round")
        arrays = (
            np.frombuffer(stored["label"], np.int32),
            np.frombuffer(stored["confidence"], np.float32),
        )

        def labels(
            state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
        ) -> PseudoLabels:
            del state, key, communication
            return completed(cohort, *(values[None] for values in arrays))

        return labels


ROLE = "updates"
STEPS = frozenset((UPDATE, EMBED))  # of the side in the clear, but for sessions
NO_SUMMAND = {**exchanges.NO_SESSION, "summand": b""}


@dataclass(frozen=True, eq=False)
class SummingClient:
    """A client whose update enters a sum alone: the functions of a `ClientSide`.

    Attributes:
        inner: the client's side of the same method in the clear.
    """

    inner: ClientSide

    @property
    def side(self) -> ClientSide:
        """The functions of a client."""
        return ClientSide(self._init, self._answer, self._form, self._stored)

    def _init(self, key: jax.Array, federation: Federation) -> dict[str, Any]:
        return {**NO_SUMMAND, "inner": self.inner.init(key, federation)}

    def _stored(self, key: jax.Array, federation: Federation) -> dict[str, Any]:
        return {**NO_SUMMAND, "inner": self.inner.state_form(key, federation)}

    def _form(self, step: str, federation: Federation) -> Any:
        return self.inner.form(step, federation) if step in STEPS else exchanges.REQUEST

    def _answer(
        self, step: str, stored: Mapping[str, Any], request: Any, cohort: Cohort
    ) -> tuple[dict[str, Any], Any]:
        if step in STEPS or not stored["summand"]:
            inner, reply = self.inner.answer(step, stored["inner"], request, cohort)
            is_once = isinstance(inner, dict) and bool(inner.get("once"))
            after = {**NO_SUMMAND, "once": is_once, "inner": inner}
            if step != UPDATE:
                return after, reply
            vector = vector_of(_summand(jax.tree.map(np.asarray, reply)))
            kept = {"summand": vector.tobytes(), "round": int(request.round) + 1}
            return after | kept, {"numbers": vector.size}
        address, number = exchanges.terms_of(request, "address", "round")
        if stored["round"] != number:
            raise ProtocolError(f"step {step!r} of round {number} without an update of that round")
        vector = np.frombuffer(stored["summand"]).reshape(-1, 1)
        roles = server_sums.roles(ROLE, server_sums.client, vector, is_resilient=True)

        def party_of(seed: bytes) -> ReplayedParty:
            return ReplayedParty(address, seed, roles, may_be_sparse=True)

        kept, frames = exchanges.answered(step, stored, request, party_of)
        forgotten = {"summand": b""} if step == exchanges.END else {}
        return {**stored, **forgotten, **kept}, {"frames": frames}


class SummedAskedClients(SummedClients, AskedClients):
    """The clients of a round on a network, of which the server receives the sums."""

    def total(self, state: ServerState, shared: Shared, received: Any, key: jax.Array) -> Summand:
        """Return the sum over the clients that stay until their upload."""
        requests, form = self.requests(UPDATE, state, received, key)
        nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), form)
        empty = _summand(nothing)
        size, number = vector_of(empty).size, int(state.round) + 1

        def check(client: int, reply: Mapping[str, Any]) -> None:
            if reply["numbers"] != size:
                raise Unusable(f"{reply['numbers']} numbers in place of {size}")

        ids = sorted(self.ask(UPDATE, requests, {"numbers": 0}, round_number=number, check=check))
        total, summed = None, list[int]()
        if len(ids) >= fewest_clients(self.parts.training.server.sums):
            carry = exchanges.carried(self.ask, ids, {"round": number})
            partners = enough_partners(len(ids), 1)
            role = server_sums.role_of(ROLE, len(ids), partners)
            session = RemoteSession(
                len(ids), carry, {server_sums.client: role}, mask_partners=partners
            )
            total = sum_in(session, dict.fromkeys(range(len(ids))), size)
            summed = [ids[address] for address in session.contributors]
            session.later_all(session.clients)
            session.flush(exchanges.END)
            self.communication.add(session.communication())
        self.keep(summed)
        return empty if total is None else summand_from(total, empty)


def _summand(reply: Reply) -> Summand:
    return summand_of(reply.update, reply.trains, reply.labels, reply.unlabeled)


def on_network(
    parts: Parts, trained: Callable[..., Outcome], one_round: Callable[..., Any]
) -> OnNetwork:
    """Return a method's server and client, by `trained` and `one_round` of `jaxfed.training.round.round`.

    Raises:
        UsageError: settings that do not run on a network, as a labeling by more than a client's own examples.
    """
    training, pseudo_label = parts.training, parts.pseudo_label
    training.local.require_averaged_statistics("on a network")
    if who := training.server.presence:
        wrong = "clients of a network leave by themselves"
        raise UsageError(wrong, key="presence", owner="ServerTraining", value=who, allowed="use ()")
    source = training.pseudo_labels[pseudo_label]
    joint = source if isinstance(source, XclpLabels) else None  # labels by all clients together
    if joint is None:
        client = TrainingClient(parts, (training.pseudo_labels["none"], source))
        side = ClientSide(client.init, client.answer, client.form)
    else:
        check_network(joint.parameters)
        client = TrainingClient(parts, (training.pseudo_labels["none"], no_labels))
        side = JointlyLabelingClient(client, joint).side
    asked = AskedClients
    if training.server.sums != "plaintext":
        asked, side = SummedAskedClients, SummingClient(side).side

    def server(ask: Ask, federation: Federation) -> tuple[Init, Round]:
        if joint is None and pseudo_label not in AT_CLIENTS:
            raise UsageError(
                "on a network clients label their own examples",
                key="pseudo_label",
                value=pseudo_label,
                allowed=choose_one_of((*AT_CLIENTS, *BY_XCLP)),
            )
        labels = labels_at_clients
        if joint is not None:
            labels = partial(labeled_jointly, joint, ask, federation)
        compiled = cache(lambda function, *fixed: jax.jit(partial(function, *fixed)))

        def served(stage: int, label: Any) -> Stage:
            def run(
                state: ServerState, cohort: Cohort, labels: LabeledByClients, *others: Any
            ) -> Outcome:
                clients = asked(client, stage, ask, federation, compiled, cohort, labels)
                result = trained(parts, stage, clients, state, *others)
                return result._replace(communication=clients.communication)

            return label, run

        stages = served(1, labels_at_clients), served(2, labels)
        return client.init_server, partial(one_round, parts, stages)

    return OnNetwork(server, side)
