"""The server's side of a round of training on a network, and both sides of a method.

The round is the simulation's (`jaxfed.training.round.round`), with clients that are asked for their updates.
One that does not reply has left the round, as if it had not been drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import Init, Round, Sides
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Array, Cohort
from jaxfed.federation.communication import Communication
from jaxfed.federation.sides import Ask, Check, ClientSide, Unusable
from jaxfed.settings import choose_one_of
from jaxfed.training.pseudo_labels.label_sources import BY_XCLP
from jaxfed.training.pseudo_labels.pseudo_label import PseudoLabel, PseudoLabels
from jaxfed.training.round.client_round import ClientUpdate, Shared
from jaxfed.training.round.network.client_side import (
    AFTER_MEAN,
    MEASURE,
    SHOW,
    UPDATE,
    ClientStage,
    LabeledByClients,
    Reply,
    TrainingClient,
    client_view,
    message_of,
    row_of,
)
from jaxfed.training.round.parts import Parts
from jaxfed.training.round.runner import Outcome, Stage
from jaxfed.training.server.aggregate import largest_weight
from jaxfed.training.server.server_state import ServerState

if TYPE_CHECKING:
    from jaxfed.training.pseudo_labels.propagated_labels import XclpLabels

# Sources that label a client's examples by themselves and the model: no other client, no teacher.
AT_CLIENTS = ("none", "unlabeled", "network", "per_client_lp")

_ROUNDED = 1 + 1e-5  # a sum of probabilities may be a little above 1


def training_sides(
    parts: Parts, trained: Callable[..., Outcome], one_round: Callable[..., Any]
) -> Sides:
    """Return the server's side and a client's.

    Args:
        parts: the method.
        trained: `jaxfed.training.round.round.trained`.
        one_round: `jaxfed.training.round.round.one_round`.

    Raises:
        UsageError: not all clients of a cohort are to train.
    """
    training, pseudo_label = parts.training, parts.pseudo_label
    if training.training_cohort_size:
        raise UsageError(
            "on a network all clients of a round train",
            key="training_cohort_size",
            owner="training",
            value=training.training_cohort_size,
            allowed="set it to 0",
        )
    joint = _joint_source(pseudo_label, training.pseudo_labels[pseudo_label])

    def stage(number: int) -> ClientStage:
        label = training.pseudo_labels[parts.source(number)]
        if joint is not None and number == 2:
            from jaxfed.training.round.network.joint_labels import no_labels as label
        return ClientStage(parts, number, label)

    first = stage(1)
    stages = first, first if pseudo_label == "none" else stage(2)
    client = TrainingClient(parts, stages)

    def server(ask: Ask, federation: Federation) -> tuple[Init, Round]:
        labels: Any = labels_at_clients
        if joint is not None:
            from jaxfed.training.round.network.joint_labels import JointLabels

            labels = JointLabels(joint, ask, federation)
        elif pseudo_label not in AT_CLIENTS:
            raise UsageError(
                "on a network clients label their own examples",
                key="pseudo_label",
                value=pseudo_label,
                allowed=choose_one_of((*AT_CLIENTS, *BY_XCLP)),
            )

        def served(number: int, label: Any) -> Stage:
            stage = stages[number - 1]
            clients = AskedClients(parts, stage, ask, federation)

            def run(
                state: ServerState, cohort: Cohort, labels: LabeledByClients, *others: Any
            ) -> Outcome:
                return trained(parts, number, clients.of(cohort, labels), state, *others)

            return Stage(stage.source, stage.first_round, label, run)

        stages_there = served(1, labels_at_clients), served(2, labels)
        return client.init_server, partial(one_round, parts, stages_there)

    if joint is not None:
        from jaxfed.training.round.network.joint_labels import JointlyLabelingClient

        return Sides(server, JointlyLabelingClient(client, joint).side())
    return Sides(server, ClientSide(client.init, client.answer, client.form))


def labels_at_clients(
    state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
) -> LabeledByClients:
    """Return the key that each client will label with, in place of labels that the server does not see."""
    del state, cohort, communication
    return LabeledByClients(key, {})


class AskedClients:
    """The clients of a round on a network: the methods of `CohortClients`, by requests to each.

    Attributes:
        client_id: int32 [K], the clients of the round that are still there; -1 for others.
        metrics: of the labels that they made.
    """

    client_id: np.ndarray
    metrics: dict[str, jax.Array]
    _labels: LabeledByClients

    def __init__(self, parts: Parts, stage: ClientStage, ask: Ask, federation: Federation) -> None:
        """Reach clients by `ask`; the federation has the form of their examples, `stage` their programs."""
        self._parts, self._stage, self._ask = parts, stage, ask
        self._example = federation.x.shape[1:], federation.x.dtype
        self._num_examples = () if federation.census is None else federation.census.examples
        self._programs: dict[Callable[..., Any], Callable[..., Any]] = {}

    def of(self, cohort: Cohort, labels: LabeledByClients) -> AskedClients:
        """Return the clients of this cohort that have labels."""
        there = copy(self)
        there._labels, there.metrics = labels, {}
        there.client_id = _those_in(cohort.client_id, labels.clients)
        return there

    def at_server(self, function: Callable[..., Any], *fixed: Any) -> Callable[..., Any]:
        """Return the server's function with these first arguments, compiled."""
        if function not in self._programs:
            self._programs[function] = jax.jit(partial(function, *fixed))
        return self._programs[function]

    def updates(
        self, state: ServerState, shared: Shared, received: Any, key: jax.Array
    ) -> tuple[ClientUpdate, jax.Array]:
        """Ask for the local updates: those that arrive, [K, ...], and bool [K], which clients train."""
        keys = self._keys(key)
        messages = {
            int(client): message_of(UPDATE, self._parts, state, _row(received, row), keys)
            for row, client in enumerate(self.client_id)
            if client >= 0
        }
        form = self._form_of_reply(state, received, keys)
        number = int(state.round) + 1
        replies = self._ask(UPDATE, messages, form, round_number=number, check=self._check_update)
        reply: Reply = self._stacked(replies, form)
        self.metrics = _mean_over_examples(reply.labels, reply.unlabeled)
        return reply.update, reply.trains

    def measured(self, state: ServerState, key: jax.Array) -> tuple[nnx.State, jax.Array]:
        """Ask for each client's statistics of the state's model, and its number of examples."""
        ids = self.client_id
        found = self._after_mean(MEASURE, state, key)
        self.client_id = ids  # who leaves here counts as a client of the round
        return found

    def shown(self, state: ServerState, key: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        """Ask for the uploads after the state's model, and their bytes."""
        return self._after_mean(SHOW, state, key)

    def stored(self, state: ServerState, before: ServerState, updates: ClientUpdate) -> ServerState:
        """Return the state as it is: clients keep theirs."""
        del before, updates
        return state

    def _keys(self, key: jax.Array) -> jax.Array:
        return jax.random.key_data(jnp.stack([self._labels.key, key]))

    def _after_mean(self, step: str, state: ServerState, key: jax.Array) -> Any:
        """Send the new model to the clients that are still there, and return their replies [K, ...]."""
        keys = self._keys(key)
        message = message_of(step, self._parts, state, (), keys)
        form = self._form_of_reply(state, (), keys, step)
        messages = {int(client): message for client in self.client_id if client >= 0}
        check: Check = self._check_measured if step == MEASURE else _whole
        replies = self._ask(step, messages, form, round_number=int(state.round), check=check)
        return self._stacked(replies, form)

    def _stacked(self, replies: Mapping[int, Any], form: Any) -> Any:
        """Return the replies in the clients' order, [K, ...]; who did not reply has left the round.

        Its row has zeros, its weight included, so that it changes no mean.
        """
        self.client_id = _those_in(self.client_id, replies)
        nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), form)
        rows = [replies[int(client)] if client >= 0 else nothing for client in self.client_id]
        return jax.tree.map(
            lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *rows
        )

    def _check_update(self, client: int, reply: Reply) -> Any:
        num_examples = self._num_examples[client]
        weighting = self._parts.training.server.weigh
        _in_range("weight", reply.update.weight, largest_weight(weighting, num_examples))
        _in_range("unlabeled", reply.unlabeled, num_examples)
        return reply.update.delta, reply.update.correction, reply.update.upload

    def _check_measured(self, client: int, reply: tuple[Any, jax.Array]) -> Any:
        _in_range("number of examples", reply[1], self._num_examples[client])
        return reply[0]

    def _form_of_reply(
        self, state: ServerState, received: Any, keys: jax.Array, step: str = UPDATE
    ) -> Any:
        """Return the form of a reply, which does not depend on a client's number of examples."""
        stage, (shape, dtype) = self._stage, self._example

        def reply() -> Any:
            y = jnp.zeros((1, 1), jnp.int32)
            cohort = Cohort(y[0], jnp.zeros((1, 1, *shape), dtype), y, y == 0)
            labels = PseudoLabels(y, jnp.ones((1, 1)), {})
            message = message_of(step, self._parts, state, _row(received, 0), keys)
            view, key = client_view(message, row_of(state)), jax.random.wrap_key_data(keys)[1]
            if step in AFTER_MEAN:
                return stage.after_mean(step, view, cohort, labels, key)
            first = jax.tree.map(lambda leaf: leaf[:1], received)
            _, update, trains = stage.update(view, cohort, labels, first, key, np.float32(0))
            labeled = jax.eval_shape(
                lambda: stage.label(view, cohort, key, Communication()).metrics
            )
            return Reply(update, trains, dict(labeled), jnp.float32(0))

        return jax.eval_shape(reply)


def _in_range(name: str, values: Any, most: float) -> None:
    """Refuse weights and numbers of examples that would let one client dominate the mean.

    Raises:
        Unusable: one is below 0, or above `most` by more than rounding.
    """
    if np.any(np.asarray(values) < 0):
        raise Unusable(f"{name} is below 0")
    if (largest := np.max(np.asarray(values), initial=0)) > most * _ROUNDED:
        raise Unusable(f"{name} is {largest:g}; by the client's hello it is at most {most:g}")


def _whole(client: int, reply: Any) -> Any:
    """Return the whole reply, because all of it enters a mean or is stored."""
    del client
    return reply


def _row(stacked: Any, row: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[row], stacked)


def _those_in(client_id: Array, there: Container[int] | None) -> np.ndarray:
    """The ids int32 [K] of the clients that are there (None: of all); -1 in place of the others."""
    ids = np.asarray(client_id)
    return np.array([c if there is None or int(c) in there else -1 for c in ids], np.int32)


def _mean_over_examples(metrics: dict[str, jax.Array], count: jax.Array) -> dict[str, jax.Array]:
    """Means of each client's metrics [K], weighted by its number of examples [K]."""
    total = jnp.maximum(jnp.sum(count), 1)
    return {name: jnp.sum(value * count) / total for name, value in metrics.items()}


def _joint_source(name: str, source: PseudoLabel) -> XclpLabels | None:
    """Return the source if it is XCLP with nothing around it, as clients can run it together."""
    if name not in BY_XCLP:
        return None
    from jaxfed.training.pseudo_labels.propagated_labels import XclpLabels

    return source if isinstance(source, XclpLabels) else None
