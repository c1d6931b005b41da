"""Labels at the server: its training on them, its part in labeling, and its share of statistics.

    before the clients   the server trains on its labels, and they receive the result       (`turn`)
    labeling             it is one more party, all of whose points are labeled              (`label`)
    beside the clients   it may train at the same time and count in the mean                (`beside_clients`)
    after them           its examples count in statistics that are measured anew            (`measured`)

Its training is a `LocalUpdate`, like a client's, without a client's state or messages.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.federation.clients import UNLABELED
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication
from jaxfed.federation.method import labels_elsewhere
from jaxfed.random_streams import Stream
from jaxfed.training.local.batches import ClientData
from jaxfed.training.local.local_training import measured_statistics
from jaxfed.training.pseudo_labels.pseudo_label import PseudoLabel, PseudoLabels
from jaxfed.training.round.client_round import ClientRound, ClientUpdate, LocalUpdate, Shared
from jaxfed.training.server_state import ServerState, server_ids, with_statistics, without_tables
from jaxfed.training.specification import BY_OWN_LABELS, OF_ONE_EXAMPLE, Training

ServerMetrics = dict[str, jax.Array]


class ServerWithLabels:
    """A server that holds all labels, in `examples`; no client takes part in rounds on given labels alone."""

    def __init__(
        self, training: Training, update: LocalUpdate, examples: ClientData, *, joins: bool
    ) -> None:
        self._training, self._update, self.examples = training, update, examples
        self._joins = joins
        self._train = jax.jit(self._trained, static_argnames="first_round")

    def turn(
        self, state: ServerState, key: jax.Array, first_round: int
    ) -> tuple[ServerState, ServerMetrics]:
        """Train before the clients, by the round's key; a server that joins them does not.

        With "static" statistics the server measures the new model's on its own examples.
        """
        if self._joins:
            return state, {}
        key = jax.random.fold_in(key, Stream.SERVER_TRAINING)
        rate = self._training.local.rate_of(int(state.round) - first_round)
        model, metrics = self._train(
            without_tables(state), self.examples, key, rate, first_round=first_round
        )
        return state._replace(model=model), metrics

    def _trained(
        self, state: ServerState, data: ClientData, key: jax.Array, rate: Any, *, first_round: int
    ) -> tuple[nnx.State, ServerMetrics]:
        shared = Shared(state.model, state.control, rate, state.round - first_round)
        update_key, measure_key = jax.random.split(key)
        updated = self._updated(state, shared, data, update_key)
        model = jax.tree.map(jnp.add, state.model, updated.delta)
        if self._training.local.batch_statistics == "static":
            model = with_statistics(model, self._statistics(model, data, measure_key))
        return model, _metrics_of(updated)

    def cohort(self, cohort: Cohort, source: str) -> Cohort:
        """Return a cohort of the same shape without clients if they have nothing to train on."""
        if source != "none":
            return cohort
        return cohort._replace(
            client_id=np.full_like(cohort.client_id, -1),
            y=np.full_like(cohort.y, UNLABELED),
            mask=np.zeros_like(cohort.mask),
        )

    def label(self, source: str, label: PseudoLabel) -> PseudoLabel:
        """Return the source's labeling of clients' examples with the server as one more party."""
        if source in OF_ONE_EXAMPLE:  # one more party would add nothing
            return label

        def label_beside(
            state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
        ) -> PseudoLabels:
            rows = len(cohort.client_id)
            parties = beside(cohort, self.examples, self._training.execution.clients_multiple)
            labels = label(state, parties, key, communication)
            return labels._replace(label=labels.label[:rows], weight=labels.weight[:rows])

        return label_beside

    def beside_clients(
        self, updates: ClientUpdate, state: ServerState, shared: Shared, data: Any, key: jax.Array
    ) -> tuple[nnx.State, jax.Array, ServerMetrics]:
        """Return deltas and weights [K + 1, ...] with the server's own if it joins, and its metrics."""
        if not self._joins:
            return updates.delta, updates.weight, {}
        update = self._updated(state, shared, data, jax.random.fold_in(key, Stream.SERVER_TRAINING))
        delta, weight = _appended((updates.delta, updates.weight), (update.delta, update.weight))
        return delta, weight, _metrics_of(update)

    def measured(
        self, statistics: nnx.State, counts: jax.Array, model: nnx.State, data: Any, key: jax.Array
    ) -> tuple[nnx.State, jax.Array]:
        """Append the server's statistics [K + 1, ...] and number of examples [K + 1] to the clients'."""
        key = jax.random.fold_in(key, Stream.SERVER_TRAINING)
        moments = self._statistics(model, data, jax.random.fold_in(key, Stream.BATCH_STATISTICS))
        count = jnp.sum(data.mask).astype(jnp.float32)
        return _appended(statistics, moments), _appended(counts, count)

    def metrics(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Return the metrics; where no client trains, the loss is the server's."""
        alone = jnp.where(metrics["clients"] > 0, 0, metrics["server_train_loss"])
        return {**metrics, "train_loss": metrics["train_loss"] + alone}

    def _updated(
        self, state: ServerState, shared: Shared, data: ClientData, key: jax.Array
    ) -> ClientUpdate:
        batches = self._training.server.batches
        client = ClientRound(self._training, shared, key, batches, data, (), ())
        return self._update(client)

    def _statistics(self, model: nnx.State, data: ClientData, key: jax.Array) -> nnx.State:
        size = self._training.server.batches.capacity
        return measured_statistics(
            self._training.model, model, data.x, data.mask, key, batch_size=size
        )


def server_of(
    training: Training, update: LocalUpdate | None, pseudo_label: str, *, joins: bool
) -> ServerWithLabels:
    """Return the server that has labels; arguments as `federated_training` has them.

    Raises:
        UsageError: the method or its source of labels needs them at clients.
    """
    if update is None:
        raise labels_elsewhere("clients", key="examples", owner="ServerTraining")
    if pseudo_label in BY_OWN_LABELS:
        wrong = f"with pseudo_label={pseudo_label!r} each client labels by its own labels"
        raise UsageError(wrong, key="examples", owner="ServerTraining", allowed="use None")
    assert training.server.examples is not None
    x, y = training.server.examples
    ones = jnp.ones(len(y), dtype=bool)
    data = ClientData(jnp.asarray(x), jnp.asarray(y, jnp.int32), jnp.ones(len(y)), ones, ones)
    return ServerWithLabels(training, update, data, joins=joins)


def beside(cohort: Cohort, data: ClientData, multiple: int) -> Cohort:
    """Append the server's examples in as many further rows as they fill, padded to a multiple (devices)."""
    capacity, count = cohort.mask.shape[1], len(data.label)
    num_rows = -(-count // capacity)
    padding = -(len(cohort.client_id) + num_rows) % multiple

    def rows(array: Any, fill: Any) -> jax.Array:
        widths = [(0, (num_rows + padding) * capacity - count)] + [(0, 0)] * (array.ndim - 1)
        whole = jnp.pad(array, widths, constant_values=fill)
        return whole.reshape(num_rows + padding, capacity, *array.shape[1:])

    ids = np.concatenate([server_ids(num_rows), np.full(padding, -1, np.int32)])
    return Cohort(
        client_id=np.concatenate([cohort.client_id, ids]),
        x=jnp.concatenate([jnp.asarray(cohort.x), rows(data.x, 0)]),  # a `Ragged` is padded here
        y=jnp.concatenate([jnp.asarray(cohort.y), rows(data.label, UNLABELED)]),
        mask=jnp.concatenate([jnp.asarray(cohort.mask), rows(data.mask, False)]),
    )


def _metrics_of(update: ClientUpdate) -> ServerMetrics:
    return {f"server_{name}": value for name, value in update.metrics.items()}


def _appended(stacked: Any, one: Any) -> Any:
    return jax.tree.map(lambda many, last: jnp.concatenate([many, last[None]]), stacked, one)
