"""Training one model by local updates: the round that FedAvg and its relatives have in common.

    given labels, and pseudo-labels of the round   (jaxfed.training.pseudo_label)
    each client trains on them                     (local_update, one client's view)
    the server takes the mean's step               (jaxfed.training.aggregate)

A method is a `LocalUpdate`, what clients and server keep for it, and a name of a pseudo-labeler; this
file makes a `FederatedAlgorithm` of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics, Predictions
from jaxfed.federation.clients import UNLABELED, Federation
from jaxfed.federation.cohort import Array, Cohort
from jaxfed.federation.communication import Communication, num_bytes_of
from jaxfed.federation.evaluate import accuracy, balanced_accuracy, over_clients
from jaxfed.training.aggregate import weighted_mean
from jaxfed.training.batch_statistics import measured_statistics
from jaxfed.training.client_round import Client, LocalUpdate, Shared
from jaxfed.training.ingredients import Training
from jaxfed.training.local_update import ClientData, ClientUpdate, usable
from jaxfed.training.model_messages import count_models, num_bytes_received
from jaxfed.training.pseudo_label import WITHIN_CLIENTS, PseudoLabels
from jaxfed.training.server_roles import NO_MEMORY, Judge, Memory, by_network
from jaxfed.training.server_state import (
    ServerState,
    Teacher,
    client_keys,
    cohort_statistics,
    gather,
    scatter,
    stacked_for,
)

_EVALUATION_BATCH = 500

# Set their randomness apart from labels and local steps; `fold_in` of 0 and 1 are the keys of `split`.
_TEACHER = 0x74636872
_STATISTICS = 0x73746174
_MEMORY = 0x6D656D6F


class Send(Protocol):
    """What the server sends each client of a cohort beside the model; host code between two rounds."""

    def __call__(self, state: ServerState, cohort: Cohort, communication: Communication) -> Any:
        """Return a pytree [K, ...], one shape for all rounds, and count its bytes."""
        ...


def nothing_sent(state: ServerState, cohort: Cohort, communication: Communication) -> Any:
    """Send the model and no more."""
    del state, cohort, communication
    return ()


def federated_training(
    training: Training,
    local_update: LocalUpdate,
    *,
    pseudo_label: str,
    keep_teacher: bool = False,
    init_control: Callable[[nnx.State], Any] = lambda parameters: (),
    init_client: Callable[[nnx.State, Federation], Any] = lambda model, federation: (),
    server_step: Callable[[nnx.State, Any], nnx.State] = lambda parameters, control: parameters,
    sends_control: bool = True,
    send: Send = nothing_sent,
    download_bytes: Callable[[nnx.State], Any] = num_bytes_of,
    memory: Memory = NO_MEMORY,
    judge: Judge | None = None,
) -> FederatedAlgorithm:
    """A federated algorithm of `local_update` and the training's ingredients.

    Args:
        training: see `Training`.
        local_update: one client's round.
        pseudo_label: a name in `training.pseudo_labels`.
        keep_teacher: keep the model that stage 2 starts from in `ServerState.teacher`. A client receives
            it once, in the first round of stage 2 that it takes part in; in the very first it is the model
            that all receive.
        init_control: parameters -> `ServerState.control`; it grows by the sum of the clients'
            `ClientUpdate.correction` over the number of all clients.
        init_client: model (parameters and statistics), federation -> what each client keeps at first.
        server_step: parameters after the aggregate's step, the round's new control -> parameters.
        sends_control: whether control goes to the clients, and their corrections to the server; False where
            the server makes it of what it has, and clients never see it (FedDyn).
        send: what reaches one client alone (`Client.received`).
        download_bytes: parameters -> bytes in which one client receives them.
        memory: what the server keeps of `ClientUpdate.upload`.
        judge: how a state classifies; by default `by_network`.

    Raises:
        UsageError: unknown pseudo-labels; in `init`, new points at clients, or nothing to test on.
    """
    if pseudo_label not in training.pseudo_labels:
        allowed = ", ".join(map(repr, training.pseudo_labels))
        raise UsageError(f"pseudo_label={pseudo_label!r}: allowed are {allowed}")
    train_stage = partial(_train_round, training, local_update, server_step, memory.update)
    needed, probabilities = judge or by_network(training)
    probabilities = jax.jit(probabilities)
    stage_1 = training.pseudo_labels["none"], train_stage(stage=1)
    stage_2 = stage_1
    if pseudo_label != "none":
        stage_2 = (
            training.pseudo_labels[pseudo_label],
            train_stage(stage=2),
        )

    def init(key: jax.Array, federation: Federation) -> ServerState:
        if any(map(len, federation.partition.new)):
            raise UsageError(
                "training a model needs federation.test='central': here clients hold new points"
            )
        given = training.initial_model
        model = training.model.init(key) if given is None else given
        parameters, statistics = nnx.split_state(model, nnx.Param, ...)
        num_clients = federation.num_clients
        keep_statistics = training.batch_statistics == "local"
        return ServerState(
            model=model,
            optimizer=training.aggregate.init(model),
            teacher=_teacher(model, key, num_clients) if keep_teacher else (),
            control=init_control(parameters),
            statistics=stacked_for(num_clients, statistics) if keep_statistics else (),
            clients=stacked_for(num_clients, init_client(model, federation)),
            round=jnp.int32(0),
            memory=memory.init(model, federation),
        )

    def round(state: ServerState, cohort: Cohort, key: jax.Array) -> tuple[ServerState, Metrics]:
        number = int(state.round)
        is_first = number == training.labeled_only_rounds  # of stage 2
        if keep_teacher and is_first:
            state = state._replace(teacher=_teacher(state.model, key, len(state.teacher.holders)))
        find_labels, train = stage_1 if number < training.labeled_only_rounds else stage_2
        cohort = _arranged(cohort, training.clients_multiple)
        cohort = cohort._replace(x=jnp.asarray(cohort.x))  # one transfer for labeling and training
        label_key, train_key = jax.random.split(key)
        communication = Communication()
        if keep_teacher and number >= training.labeled_only_rounds:
            state, num_new = _with_teacher(state, cohort)
            num_bytes = num_bytes_received(state.teacher.model, training.batch_statistics)
            communication.down("teacher", 0 if is_first else num_new * num_bytes)
        labels = find_labels(state, cohort, label_key, communication)
        received = send(state, cohort, communication)
        after, metrics, sent = train(state, cohort, labels, received, train_key)
        num_bytes = download_bytes(nnx.filter_state(state.model, nnx.Param))
        count_models(
            communication,
            state if sends_control else state._replace(control=()),
            cohort,
            training.batch_statistics,
            int(num_bytes),
            sent,
        )
        return after, {**metrics, **labels.metrics, "communication": communication.metrics()}

    def validate(state: ServerState, federation: Federation) -> Metrics:
        return _quality("validation", state, federation, federation.validation)

    def evaluate(state: ServerState, federation: Federation) -> Metrics:
        return _quality("test", state, federation, federation.test)

    def evaluate_clients(state: ServerState, federation: Federation) -> Metrics:
        unlabeled = federation.partition.unlabeled
        indices = np.concatenate(unlabeled)
        owner = np.repeat(np.arange(federation.num_clients), list(map(len, unlabeled)))
        label, truth = _labels(state, federation, indices), federation.y[indices]
        return over_clients("unlabeled", label, truth, owner, federation.num_clients)

    def needs_labels(round_number: int) -> bool:
        return round_number <= training.labeled_only_rounds or pseudo_label in WITHIN_CLIENTS

    def predict(state: ServerState, x: np.ndarray) -> np.ndarray:
        what, parts = needed(state), []
        for start in range(0, len(x), _EVALUATION_BATCH):
            # The last batch repeats examples, so that all have one shape.
            rows = np.resize(
                np.arange(start, min(start + _EVALUATION_BATCH, len(x))), _EVALUATION_BATCH
            )
            parts.append(np.asarray(probabilities(what, x[rows])))
        if not parts:
            rows = np.zeros((_EVALUATION_BATCH, *x.shape[1:]), x.dtype)
            return np.asarray(probabilities(what, rows))[:0]
        return np.concatenate(parts)[: len(x)]

    def predictions(state: ServerState, federation: Federation) -> Predictions:
        test = federation.test
        probability = predict(state, federation.x[test])
        return Predictions(
            client=np.full(len(test), -1, np.int32),
            example=test,
            role=np.full(len(test), "test"),
            label=probability.argmax(axis=1).astype(np.int32),
            confidence=probability.max(axis=1),
        )

    def _labels(state: ServerState, federation: Federation, indices: np.ndarray) -> np.ndarray:
        return predict(state, federation.x[indices]).argmax(axis=1)

    def _quality(
        name: str, state: ServerState, federation: Federation, indices: np.ndarray
    ) -> Metrics:
        if not len(indices):
            return {}
        label = _labels(state, federation, indices)
        truth = federation.y[indices]
        return {
            f"{name}_accuracy": accuracy(label, truth),
            f"{name}_balanced_accuracy": balanced_accuracy(label, truth),
        }

    return FederatedAlgorithm(
        init,
        round,
        evaluate,
        validate,
        needs_labels,
        evaluate_clients,
        predictions,
        predict,
    )


TrainRound = Callable[
    [ServerState, Cohort, PseudoLabels, Any, jax.Array],
    tuple[ServerState, dict[str, jax.Array], Any],
]


def _train_round(
    training: Training,
    local_update: LocalUpdate,
    server_step: Callable[[nnx.State, Any], nnx.State],
    remember: Callable[..., Any],
    *,
    stage: int,
) -> TrainRound:
    """Local updates, aggregation and the clients' states: one compiled program."""
    batches = training.labeled_batches if stage == 1 else training.batches
    first_round = 0 if stage == 1 else training.labeled_only_rounds

    def update(shared: Shared, inputs: tuple[Client, jax.Array]) -> ClientUpdate:
        client, key = inputs
        return local_update(shared, client, key, batches=batches)

    def measure(model: nnx.State, inputs: tuple[ClientData, jax.Array]) -> nnx.State:
        data, key = inputs
        return measured_statistics(
            training.model, model, data.x, data.mask, key, batch_size=batches.capacity
        )

    update_clients = training.map_clients(update)
    measure_clients = training.map_clients(measure)

    @jax.jit
    def train_round(
        state: ServerState, cohort: Cohort, labels: PseudoLabels, received: Any, key: jax.Array
    ) -> tuple[ServerState, dict[str, jax.Array], Any]:
        ids, keys = cohort.client_id, client_keys(key, cohort)
        x, y, mask = map(jnp.asarray, (cohort.x, cohort.y, cohort.mask))
        data = ClientData(x, labels.label, labels.weight, y >= 0, mask)
        stage_round = state.round - first_round
        learning_rate = jnp.float32(training.learning_rate(stage_round.astype(jnp.float32)))
        shared = Shared(state.model, state.control, learning_rate, stage_round)
        clients = Client(data, gather(state.clients, ids), cohort_statistics(state, ids), received)
        updates = update_clients(shared, (clients, keys))
        is_client = jnp.asarray(ids) >= 0
        weights = jnp.where(is_client, updates.weight, 0)
        model, optimizer = training.aggregate.apply(
            state.model, updates.delta, weights, state.optimizer
        )
        num_clients = _num_stacked(state.clients)
        control = jax.tree.map(
            lambda control, change: control + change.sum(axis=0) / num_clients,
            state.control,
            updates.correction,
        )
        parameters, statistics = nnx.split_state(model, nnx.Param, ...)
        anyone = jnp.any(weights > 0)
        parameters = jax.tree.map(
            lambda new, old: jnp.where(anyone, new, old),
            server_step(parameters, control),
            parameters,
        )
        model = nnx.merge_state(parameters, statistics)
        if training.batch_statistics == "static":
            measure_keys = client_keys(jax.random.fold_in(key, _STATISTICS), cohort)
            measured = measure_clients(model, (data, measure_keys))
            examples = jnp.sum(cohort.mask, axis=1).astype(jnp.float32)
            statistics = jax.tree.map(
                lambda new, old: jnp.where(jnp.any(examples > 0), new, old),
                weighted_mean(measured, examples),
                statistics,
            )
        own = state.statistics
        if training.batch_statistics == "local":
            received = nnx.split_state(state.model, nnx.Param, ...)[1]
            moved = nnx.split_state(updates.delta, nnx.Param, ...)[1]
            own = scatter(own, ids, jax.tree.map(lambda a, b: a[None] + b, received, moved))
        trained = jnp.where(jnp.any(usable(data), axis=1), weights, 0)
        metrics = weighted_mean(updates.metrics, trained)
        sent = jax.tree.map(lambda count: jnp.where(is_client, count, 0), updates.sent)
        state = state._replace(
            model=nnx.merge_state(parameters, statistics),
            optimizer=optimizer,
            control=control,
            statistics=own,
            clients=scatter(state.clients, ids, updates.client_state),
            round=state.round + 1,
            memory=remember(
                state.memory,
                jnp.asarray(ids),
                updates.upload,
                state.round + 1,
                jax.random.fold_in(key, _MEMORY),
            ),
        )
        # A step may spoil the model after its loss has been taken.
        metrics["train_loss"] = jnp.where(_is_finite(model), metrics["train_loss"], jnp.nan)
        metrics |= {"clients": jnp.sum(trained > 0), "learning_rate": learning_rate}
        return state, metrics, sent

    return train_round


def _is_finite(model: nnx.State) -> jax.Array:
    """bool scalar: whether all numbers of a model are."""
    leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(model)]
    return jnp.all(jnp.stack(leaves))


def _num_stacked(clients: Any) -> int:
    """M of client states [M, ...]; 1 without any."""
    leaves = jax.tree.leaves(clients)
    return len(leaves[0]) if leaves else 1


def _arranged(cohort: Cohort, multiple: int) -> Cohort:
    """The cohort by ascending ids, empty clients (id -1) last and added up to a multiple.

    Sums and ties between equal distances depend on an order, so it is always the same one.
    """
    ids = np.asarray(cohort.client_id)
    order = np.argsort(np.where(ids < 0, np.iinfo(np.int32).max, ids), kind="stable")
    if (order != np.arange(len(ids))).any():
        cohort = Cohort(*(np.asarray(field)[order] for field in cohort))
    missing = -len(ids) % multiple
    if not missing:
        return cohort

    def pad(array: Array, fill: int) -> np.ndarray:
        return np.concatenate([array, np.full((missing, *array.shape[1:]), fill, array.dtype)])

    return Cohort(
        client_id=pad(cohort.client_id, -1),
        x=pad(cohort.x, 0),
        y=pad(cohort.y, UNLABELED),
        mask=pad(cohort.mask, False),
    )


def _teacher(model: nnx.State, key: jax.Array, num_clients: int) -> Teacher:
    return Teacher(model, jax.random.fold_in(key, _TEACHER), np.zeros(num_clients, bool))


def _with_teacher(state: ServerState, cohort: Cohort) -> tuple[ServerState, int]:
    """The state with the whole cohort among the teacher's holders, and how many were none before."""
    ids = np.asarray(cohort.client_id)
    ids = ids[ids >= 0]
    before = np.asarray(state.teacher.holders)
    after = before.copy()
    after[ids] = True
    return state._replace(teacher=state.teacher._replace(holders=after)), int(np.sum(~before[ids]))
