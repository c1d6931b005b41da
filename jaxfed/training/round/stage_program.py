"""The compiled computations of a round in one stage: the clients' part, and the server's.

    clients_part   local updates                                                (one client's data and state)
    server_part    the mean's step, control, metrics                            (what clients sent)
    measured       "static" statistics of the new model at clients, and their mean
    shown          uploads after the new model

`whole` is all of them as one program, which a simulation runs. On a network each side runs its own ones
(`jaxfed.training.round.network`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.cohort import Array, Cohort
from jaxfed.federation.execution.client_map import MapClients
from jaxfed.training.local.client_data import ClientData, usable
from jaxfed.training.local.local_update import ClientUpdate
from jaxfed.training.pseudo_labels.pseudo_label import PseudoLabels
from jaxfed.training.round.client_round import LocalUpdate, Shared
from jaxfed.training.round.cohort_step import (
    CohortData,
    CohortStep,
    labeled_cohort,
    metrics_of,
    with_clients,
)
from jaxfed.training.round.labels_at_server import ServerWithoutLabels
from jaxfed.training.round.server_hooks import Control, Messages
from jaxfed.training.server.aggregate import WEIGHTINGS, weighted_mean
from jaxfed.training.server.server_state import ServerState
from jaxfed.training.specification import Training


class Trained(NamedTuple):
    """Result of the compiled part of a round.

    Fields:
        state: the state after the server's step.
        metrics: of the clients, and of a server that trained beside them.
        sent: {kind of message: int32 [K]}, `ClientUpdate.sent`.
        uploads: `ClientUpdate.upload`, [K, ...].
        client_id: int32 [K], the clients whose updates these are; on a network some may have left.
        weights: the clients' weights by a user's own weighting, to be checked (`check_weights`); else ().
    """

    state: ServerState
    metrics: dict[str, jax.Array]
    sent: Any
    uploads: Any
    client_id: Array
    weights: Any = ()


class StageProgram:
    """The computations of one stage; all methods are jit-traceable."""

    def __init__(
        self,
        training: Training,
        map_clients: MapClients,
        *,
        local_update: LocalUpdate,
        control: Control,
        messages: Messages,
        server: ServerWithoutLabels,
        stage: int,
        takes_all: bool = False,
    ) -> None:
        """Lift a method's local update to a cohort; arguments as those of `federated_training`.

        `measures`: clients measure "static" statistics of the new model. `is_local`: they keep theirs.
        In stage 1 no method takes examples without labels.
        """
        self._stage = stage
        self.step = CohortStep(
            training, local_update, messages.after_mean, map_clients, stage=stage
        )
        self.training, self.control, self.messages = training, control, messages
        self.server = server
        self.measures = training.local.batch_statistics == "static"
        self._is_own_weighting = training.server.weigh not in WEIGHTINGS.values()
        self.is_local = training.local.batch_statistics == "local"
        self._takes_all = takes_all and stage == 2

    def labeled(self, cohort: Cohort, labels: PseudoLabels) -> CohortData:
        """Return the cohort's data with the round's labels, and placeholders of weight 0 if all take part."""
        if self._takes_all:
            is_without = jnp.asarray(cohort.mask) & (labels.label < 0)
            labels = labels._replace(
                label=jnp.where(is_without, 0, labels.label),
                weight=jnp.where(is_without, 0, labels.weight),
            )
        return labeled_cohort(cohort, labels)

    def whole(
        self,
        state: ServerState,
        cohort: Cohort,
        labels: PseudoLabels,
        received: Any,
        own: ClientData | None,
        key: jax.Array,
        rate: jax.Array,
    ) -> Trained:
        """Run the clients' part and the server's.

        Args:
            state: before the round.
            cohort: the clients.
            labels: of the round.
            received: beside the model.
            own: the examples of a server with labels.
            key: typed, of the round's training.
            rate: float32 scalar, the round's learning rate: no constant of the program, so that programs
                of one method at several rates are one.
        """
        clients, ids = self.labeled(cohort, labels), cohort.client_id
        shared = self.step.shared(state, rate)
        updates = self.step.updates(state, shared, clients, received, key)
        trains = jnp.any(usable(clients.data), axis=1)
        after, metrics = self.server_part(state, updates, trains, own, key, shared=shared)
        if self.measures:
            after = self.with_measured(
                after, *self.step.measured(after.model, clients, key), own, key
            )
        after = with_clients(after, state, ids, updates, is_local=self.is_local)
        uploads, sent = updates.upload, updates.sent
        if self.messages.after_mean is not None:
            uploads, sent_after = self.step.shown(after, clients, key)
            sent = dict(sent) | sent_after
        weights = updates.weight if self._is_own_weighting else ()
        return Trained(after, metrics, of_clients(sent, ids), uploads, ids, weights)

    def server_part(
        self,
        state: ServerState,
        updates: ClientUpdate,
        trains: jax.Array,
        own: ClientData | None,
        key: jax.Array,
        *,
        shared: Shared,
    ) -> tuple[ServerState, dict[str, jax.Array]]:
        """FedAvg: take the server's step by the weighted mean of the clients' changes.

        Args:
            state: before the round.
            updates: of the clients, [K, ...].
            trains: bool [K], False for a client that has nothing to train on.
            own: the examples of a server with labels.
            key: typed, of the round's training.
            shared: what all clients received.

        Returns:
            The state after the round, without the clients' own new states, and metrics.
        """
        deltas, weights, server_metrics = self.server.joined(
            updates.delta, updates.weight, state, shared, own, key
        )
        model, optimizer = self.training.server.aggregate.apply(
            state.model, deltas, weights, state.optimizer
        )
        anyone = jnp.any(weights > 0)
        control = state.control
        if jax.tree.leaves(control):
            number = state.num_training[self._stage - 1]
            model, control = self.control.moved(model, state, updates.correction, anyone, number)
        metrics = metrics_of(updates, trains, model, shared.learning_rate) | server_metrics
        after = state._replace(
            model=model, optimizer=optimizer, control=control, round=state.round + 1
        )
        return after, metrics

    def with_measured(
        self,
        state: ServerState,
        measured: nnx.State,
        counts: jax.Array,
        own: ClientData | None,
        key: jax.Array,
    ) -> ServerState:
        """Give the model the mean of measured statistics [K, ...]; without examples it stays as it is."""
        measured, counts = self.server.measured(measured, counts, state.model, own, key)
        parameters, statistics = nnx.split_state(state.model, nnx.Param, ...)
        statistics = jax.tree.map(
            lambda new, old: jnp.where(jnp.any(counts > 0), new, old),
            weighted_mean(measured, counts),
            statistics,
        )
        return state._replace(model=nnx.merge_state(parameters, statistics))


def of_clients(sent: Any, client_id: Array) -> Any:
    """Numbers [K] of the cohort's clients; 0 on padding."""
    return jax.tree.map(lambda count: jnp.where(jnp.asarray(client_id) >= 0, count, 0), sent)
