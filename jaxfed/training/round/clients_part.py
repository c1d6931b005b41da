"""The clients' part of a round, with the server's step, as one compiled program.

local updates of the cohort, side by side      (local_update, one client's view)
the step by their mean                         (jaxfed.training.server.aggregate)
measurements and uploads on the new model      (static statistics; `AfterMean`)
the clients' new states
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.federation.client_map import is_one_cpu, jitted
from jaxfed.federation.clients_at_once import MapClients, fitted
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.ragged import Ragged, apart, joined
from jaxfed.training.ingredients import Training
from jaxfed.training.local.batch_statistics import measured_statistics
from jaxfed.training.local.client_data import ClientData, usable
from jaxfed.training.local.local_update import ClientUpdate
from jaxfed.training.pseudo_labels.pseudo_label import PseudoLabels
from jaxfed.training.round import labels_at_server
from jaxfed.training.round.client_round import AfterMean, Client, LocalUpdate, Shared
from jaxfed.training.server.aggregate import in_all, weighted_mean
from jaxfed.training.server.server_state import (
    ServerState,
    client_keys,
    cohort_statistics,
    gather,
    is_finite,
    scatter,
    with_statistics,
)

# Separate these random streams from local steps, and the server's from all of the clients'.
_STATISTICS = 0x73746174
_AFTER_MEAN = 0x6166746D
SERVER = 0x73657276

TrainRound = Callable[
    [ServerState, Cohort, PseudoLabels, Any, ClientData | None, jax.Array],
    tuple[ServerState, dict[str, jax.Array], Any, Any],
]


def clients_part(
    training: Training,
    local_update: LocalUpdate,
    server_step: Callable[[nnx.State, Any], nnx.State],
    *,
    stage: int,
    after_mean: AfterMean | None,
    joining: LocalUpdate | None,
) -> TrainRound:
    """The program of one stage; its arguments are those of `jaxfed.training.round.round.federated_training`.

    Args:
        training: the training specification.
        local_update: one client's round.
        server_step: parameters after the aggregate's step, the round's new control -> parameters.
        stage: 1 on given labels alone, or 2.
        after_mean: the clients' upload after they receive the new model.
        joining: the local update of a server that trains beside the clients.

    Raises:
        BeyondMemory: at the first run, if it takes more memory than `training.execution.host` allows.
    """

    def program_of(map_clients: MapClients) -> TrainRound:
        return _program(
            replace(training, execution=replace(training.execution, map_clients=map_clients)),
            local_update,
            server_step,
            stage=stage,
            after_mean=after_mean,
            joining=joining,
        )

    train_round = fitted(
        "training in a round",
        program_of,
        training.execution.map_clients,
        training.execution.host,
        lambda state, cohort, *others: len(cohort.client_id),
    )
    if training.execution.clients_multiple == 1 or not is_one_cpu():
        return train_round

    def train_on_cores(*arguments: Any) -> Any:
        return jax.tree.map(_on_one_device, train_round(*arguments))

    return train_on_cores


def _program(
    training: Training,
    local_update: LocalUpdate,
    server_step: Callable[[nnx.State, Any], nnx.State],
    *,
    stage: int,
    after_mean: AfterMean | None,
    joining: LocalUpdate | None,
) -> TrainRound:
    batches = training.local.labeled_batches if stage == 1 else training.local.batches
    first_round = 0 if stage == 1 else training.labeled_only_rounds

    def update(received: tuple[Shared, Any], inputs: tuple[Client, jax.Array]) -> ClientUpdate:
        (shared, examples), (client, key) = received, inputs
        client = client._replace(data=_with(examples, client.data))
        return local_update(shared, client, key, batches=batches)

    def measure(received: tuple[nnx.State, Any], inputs: tuple[ClientData, jax.Array]) -> nnx.State:
        (model, examples), (data, key) = received, inputs
        data = _with(examples, data)
        return measured_statistics(
            training.model, model, data.x, data.mask, key, batch_size=batches.capacity
        )

    def say(
        received: tuple[nnx.State, Any], inputs: tuple[ClientData, nnx.State, jax.Array]
    ) -> tuple[Any, dict[str, jax.Array]]:
        (model, examples), (data, statistics, key) = received, inputs
        assert after_mean is not None
        return after_mean(with_statistics(model, statistics), _with(examples, data), key)

    keeps_optimizers = training.local.client_optimizer == "kept"
    update_clients = training.execution.map_clients(update)
    measure_clients = training.execution.map_clients(measure)
    say_clients = training.execution.map_clients(say)

    @jitted
    def train_round(
        state: ServerState,
        cohort: Cohort,
        labels: PseudoLabels,
        received: Any,
        own: ClientData | None,
        key: jax.Array,
    ) -> tuple[ServerState, dict[str, jax.Array], Any, Any]:
        ids, keys = cohort.client_id, client_keys(key, cohort)
        examples, x = apart(cohort.x if isinstance(cohort.x, Ragged) else jnp.asarray(cohort.x))
        y, mask = jnp.asarray(cohort.y), jnp.asarray(cohort.mask)
        data = ClientData(x, labels.label, labels.weight, y >= 0, mask)
        stage_round = state.round - first_round
        learning_rate = jnp.float32(training.local.learning_rate(stage_round.astype(jnp.float32)))
        shared = Shared(state.model, state.control, learning_rate, stage_round)
        clients = Client(
            data,
            gather(state.clients, ids),
            cohort_statistics(state, ids),
            received,
            gather(state.client_optimizers, ids) if keeps_optimizers else None,
        )
        updates = update_clients((shared, examples), (clients, keys))
        is_client = jnp.asarray(ids) >= 0
        weights = jax.vmap(lambda is_one, weight: jnp.where(is_one, weight, 0))(
            is_client, updates.weight
        )
        deltas, counted, told = updates.delta, weights, {}
        if own is not None and joining is not None:
            server_key = jax.random.fold_in(key, SERVER)
            beside = labels_at_server.updated(training, joining, state, shared, own, server_key)
            deltas = labels_at_server.appended(deltas, beside.delta)
            counted = labels_at_server.appended(weights, beside.weight)
            told = labels_at_server.metrics_of(beside)
        model, optimizer = training.server.aggregate.apply(
            state.model, deltas, counted, state.optimizer
        )
        num_clients = _num_stacked(state.clients)
        control = jax.tree.map(
            lambda control, change: control + change.sum(axis=0) / num_clients,
            state.control,
            updates.correction,
        )
        parameters, statistics = nnx.split_state(model, nnx.Param, ...)
        anyone = jnp.any(counted > 0)
        parameters = jax.tree.map(
            lambda new, old: jnp.where(anyone, new, old),
            server_step(parameters, control),
            parameters,
        )
        model = nnx.merge_state(parameters, statistics)
        if training.local.batch_statistics == "static":
            measure_keys = client_keys(jax.random.fold_in(key, _STATISTICS), cohort)
            measured = measure_clients((model, examples), (data, measure_keys))
            count = jnp.sum(cohort.mask, axis=1).astype(jnp.float32)
            if own is not None:
                server_key = jax.random.fold_in(key, SERVER)
                measured, count = labels_at_server.with_servers(
                    training, measured, count, model, own, server_key
                )
            statistics = jax.tree.map(
                lambda new, old: jnp.where(jnp.any(count > 0), new, old),
                weighted_mean(measured, count),
                statistics,
            )
        own = state.statistics
        if training.local.batch_statistics == "local":
            received = nnx.split_state(state.model, nnx.Param, ...)[1]
            moved = nnx.split_state(updates.delta, nnx.Param, ...)[1]
            own = scatter(own, ids, jax.tree.map(lambda a, b: a[None] + b, received, moved))
        trained = jnp.where(jnp.any(usable(data), axis=1), in_all(weights), 0)
        metrics = weighted_mean(updates.metrics, trained) | told
        state = state._replace(
            model=nnx.merge_state(parameters, statistics),
            optimizer=optimizer,
            control=control,
            statistics=own,
            clients=scatter(state.clients, ids, updates.client_state),
            client_optimizers=scatter(state.client_optimizers, ids, updates.optimizer_state),
            round=state.round + 1,
        )
        # A step may spoil the model after its loss has been taken.
        metrics["train_loss"] = jnp.where(is_finite(model), metrics["train_loss"], jnp.nan)
        metrics |= {"clients": jnp.sum(trained > 0), "learning_rate": learning_rate}
        uploads, sent = updates.upload, updates.sent
        if after_mean is not None:
            say_keys = client_keys(jax.random.fold_in(key, _AFTER_MEAN), cohort)
            inputs = data, cohort_statistics(state, ids), say_keys
            uploads, said = say_clients((state.model, examples), inputs)
            sent = dict(sent) | said
        sent = jax.tree.map(lambda count: jnp.where(is_client, count, 0), sent)
        return state, metrics, sent, uploads

    return train_round


def _with(examples: Any, data: ClientData) -> ClientData:
    """One client's data, with its examples taken from the array that all clients share."""
    return data._replace(x=joined(examples, data.x))


def _on_one_device(leaf: jax.Array) -> jax.Array:
    """Return the array on the first device; otherwise all cores would repeat the computations on it."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = _on_one_device(jax.random.key_data(leaf))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    return jnp.asarray(np.asarray(leaf))


def _num_stacked(clients: Any) -> int:
    """M of client states [M, ...]; 1 without any."""
    leaves = jax.tree.leaves(clients)
    return len(leaves[0]) if leaves else 1
