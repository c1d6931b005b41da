"""The server's side of a round of training on a network.

`ServerStage` takes the place of a simulation's stage in `jaxfed.training.round.round`. The round is the same,
but clients are asked for their updates. One that does not reply has left the round, as if it had not been
drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Array, Cohort
from jaxfed.federation.communication import Communication
from jaxfed.federation.sides import Ask, Check, Unusable
from jaxfed.settings import choose_one_of
from jaxfed.training.local.local_update import ClientUpdate
from jaxfed.training.pseudo_labels.pseudo_label import PseudoLabels
from jaxfed.training.round.network.client_side import ClientStage, message_of
from jaxfed.training.round.network.messages import (
    AFTER_MEAN,
    MEASURE,
    SHOW,
    UPDATE,
    LabeledByClients,
    Reply,
    client_view,
    row_of,
)
from jaxfed.training.round.stage_program import Trained, of_clients
from jaxfed.training.server.aggregate import largest_weight
from jaxfed.training.server.server_state import ServerState

# Sources that label a client's examples by themselves and the model: no other client, no teacher.
AT_CLIENTS = ("none", "unlabeled", "network", "per_client_lp")
JOINT = ("xclp", "xclp_prototypes")  # `jaxfed.training.round.network.joint_labels`

_ROUNDED = 1 + 1e-5  # a sum of probabilities may be a little above 1

# state, cohort, key, where bytes are counted -> what the server has of the labels
ServerLabeling = Callable[[ServerState, Cohort, jax.Array, Communication], LabeledByClients]


class ServerStage:
    """One stage of a run at the server."""

    def __init__(
        self, stage: ClientStage, ask: Ask, federation: Federation, label: ServerLabeling | None
    ) -> None:
        """Serve clients such as the federation's, which `ask` reaches.

        Args:
            stage: the clients'.
            ask: reaches them.
            federation: as the server knows it.
            label: the server's part of the labeling; None: each client labels alone.

        Raises:
            UsageError: the stage's labels are made in another way.
        """
        if label is None and stage.source not in AT_CLIENTS:
            raise UsageError(
                "on a network clients label their own examples",
                key="pseudo_label",
                value=stage.source,
                allowed=choose_one_of((*AT_CLIENTS, *JOINT)),
            )
        self.source, self._stage, self._ask, self._label = stage.source, stage, ask, label
        self._example = federation.x.shape[1:], federation.x.dtype
        self._num_examples = () if federation.census is None else federation.census.examples
        program = stage.program

        @jax.jit
        def serve(
            state: ServerState, updates: ClientUpdate, trains: jax.Array, own: Any, key: jax.Array
        ) -> tuple[ServerState, dict[str, jax.Array]]:
            shared = program.step.shared(state)
            return program.server_part(state, updates, trains, own, key, shared=shared)

        self._serve, self._with_measured = serve, jax.jit(program.with_measured)

    def turn(self, state: ServerState, key: jax.Array) -> tuple[ServerState, dict[str, jax.Array]]:
        """Return the state as it is: on a network the server has no labels."""
        del key
        return state, {}

    def label(
        self, state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
    ) -> LabeledByClients:
        """Have the clients label jointly, or return the key that each will label with."""
        if self._label is None:
            return LabeledByClients(key, {})
        return self._label(state, cohort, key, communication)

    def train(
        self,
        state: ServerState,
        cohort: Cohort,
        labels: LabeledByClients,
        received: Any,
        own: Any,
        key: jax.Array,
    ) -> Trained:
        """Ask the clients for their updates, and take the server's step by those that arrive."""
        program = self._stage.program
        keys = jax.random.key_data(jnp.stack([labels.key, key]))
        messages = {
            int(client): message_of(UPDATE, program, state, _row(received, row), keys)
            for row, client in enumerate(np.asarray(cohort.client_id))
            if client >= 0 and (labels.clients is None or int(client) in labels.clients)
        }
        form = self._form_of_reply(state, received, keys)
        number = int(state.round) + 1
        replies = self._ask(UPDATE, messages, form, round_number=number, check=self._check_update)
        ids = _still_there(cohort.client_id, replies)
        reply: Reply = _stacked(ids, replies, form)
        after, metrics = self._serve(state, reply.update, reply.trains, own, key)
        metrics |= _mean_over_examples(reply.labels, reply.unlabeled)
        uploads, sent = reply.update.upload, reply.update.sent
        if program.measures:
            _, (statistics, counts) = self._after_mean(MEASURE, after, ids, keys)
            after = self._with_measured(after, statistics, counts, own, key)
        if program.messages.after_mean is not None:
            ids, (uploads, sent_after) = self._after_mean(SHOW, after, ids, keys)
            sent = dict(sent) | sent_after
        return Trained(after, metrics, of_clients(sent, ids), uploads, ids)

    def _after_mean(
        self, step: str, state: ServerState, ids: np.ndarray, keys: jax.Array
    ) -> tuple[np.ndarray, Any]:
        """Send the new model to the clients that are still there: the ids that remain, replies [K, ...]."""
        message = message_of(step, self._stage.program, state, (), keys)
        form = self._form_of_reply(state, (), keys, step)
        messages = {int(client): message for client in ids if client >= 0}
        check: Check = self._check_measured if step == MEASURE else _whole
        replies = self._ask(step, messages, form, round_number=int(state.round), check=check)
        ids = _still_there(ids, replies)
        return ids, _stacked(ids, replies, form)

    def _check_update(self, client: int, reply: Reply) -> Any:
        num_examples = self._num_examples[client]
        weighting = self._stage.program.training.server.weigh
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
            message = message_of(step, stage.program, state, _row(received, 0), keys)
            view, key = client_view(message, row_of(state)), jax.random.wrap_key_data(keys)[1]
            if step in AFTER_MEAN:
                return stage.after_mean(step, view, cohort, labels, key)
            first = jax.tree.map(lambda leaf: leaf[:1], received)
            _, update, trains = stage.update(view, cohort, labels, first, key)
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


def _still_there(client_id: Array, replies: Mapping[int, Any]) -> np.ndarray:
    """The ids int32 [K] of the clients that replied; -1 in place of the others."""
    return np.array([c if int(c) in replies else -1 for c in np.asarray(client_id)], np.int32)


def _stacked(ids: np.ndarray, replies: Mapping[int, Any], form: Any) -> Any:
    """The replies in the order of the ids, [K, ...]; zeros for a row without a client.

    Zeros include a client's weight, so that such a row changes no mean.
    """
    nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), form)
    rows = [replies[int(client)] if client >= 0 else nothing for client in ids]
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *rows)


def _mean_over_examples(metrics: dict[str, jax.Array], count: jax.Array) -> dict[str, jax.Array]:
    """Means of each client's metrics [K], weighted by its number of examples [K]."""
    total = jnp.maximum(jnp.sum(count), 1)
    return {name: jnp.sum(value * count) / total for name, value in metrics.items()}
