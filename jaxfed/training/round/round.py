"""The round of FedAvg and its relatives: label, train each client, average, step.

    labels    of the round, given ones and pseudo-labels       (`jaxfed.training.pseudo_labels.pseudo_label`)
    delta_k   client k's local update on them                  (`jaxfed.training.round.client_round`)
    w <- w + optimizer( sum_k p_k delta_k / sum_k p_k )        (`server_optimizer`, `weighted_mean`)

`one_round` is the round on the host, `trained` its part that is compiled as one program. A method is a
`LocalUpdate`, the name of its source of labels, and the parts that it adds
(`jaxfed.training.round.parts`). `jaxfed.training.round.runner` runs the program in one process;
`jaxfed.training.round.network` plays the same round between a server and clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics, OnNetwork
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication
from jaxfed.federation.method import with_attributes
from jaxfed.training.aggregate import Aggregate, check_weights, in_all, weighted_sum
from jaxfed.training.local.batches import ClientData
from jaxfed.training.round.client_round import ClientUpdate, LocalUpdate, Shared
from jaxfed.training.round.parts import (
    MODEL_ALONE,
    NO_CONTROL,
    Classifier,
    Control,
    Hook,
    Messages,
    Parts,
    evaluation_by,
    network_classifier,
)
from jaxfed.training.round.runner import CohortClients, Outcome, Stage, placed, simulated
from jaxfed.training.server_state import ServerState, is_finite, with_statistics
from jaxfed.training.specification import SERVER_LEARNING_RATE, Training, check_source


def federated_training(
    training: Training,
    local_update: LocalUpdate,
    *,
    pseudo_label: str,
    init_client: Callable[[nnx.State, Federation, jax.Array], Any] = lambda model, *_: (),
    control: Control = NO_CONTROL,
    messages: Messages = MODEL_ALONE,
    hooks: Sequence[Hook] = (),
    server_update: LocalUpdate | None = None,
    server_joins: bool = False,
    classifier: Classifier | None = None,
    takes_all: bool = False,
) -> FederatedAlgorithm:
    """Build a federated algorithm from `local_update` and the training specification.

    Args:
        training: see `Training`.
        local_update: one client's round.
        pseudo_label: a name in `training.pseudo_labels`.
        init_client: model (parameters and statistics), federation, key of the run -> the state that each
            client starts with.
        control: values beside the model that grow by the clients' corrections.
        messages: messages between the server and single clients, beside the model.
        hooks: host code before labeling and after the server's step, in this order.
        server_update: the server's training if it has the labels (`ServerTraining.examples`) and clients
            have none; None: the method needs labels at clients.
        server_joins: True if it starts from the same model as the clients and counts in their mean, instead
            of training before them.
        classifier: the classifier of a state; None: the server's network.
        takes_all: True if the loss has a use for examples that the source does not label: after rounds on
            given labels alone they take part, with a placeholder label of weight 0.

    Raises:
        UsageError: pseudo-labels or a value of `labels_at` that does not suit; in `init`, such a federation.
    """
    server = None
    if training.server.examples is not None:
        from jaxfed.training.round.labels_at_server import server_of

        server = server_of(training, server_update, pseudo_label, joins=server_joins)
    check_source(pseudo_label, training.pseudo_labels)
    classifier = classifier or network_classifier(training)
    parts = Parts(
        *(training, local_update, pseudo_label, init_client, control, messages, tuple(hooks)),
        *(server, classifier, takes_all, aggregate_of(training)),
    )
    round_ = with_attributes(
        partial(one_round, parts, simulated(parts, trained)),
        parts=parts,
        stage_1=training.labeled_only_rounds,
        has_stage_2=pseudo_label != "none",
        needs_labels_in=lambda number: parts.needs_labels(parts.stage(number - 1)),
        on_network=partial(_on_network, parts),
    )
    return FederatedAlgorithm(parts.checked_state, round_, *evaluation_by(classifier))


def one_round(
    parts: Parts, stages: Sequence[Stage], state: ServerState, cohort: Cohort, key: jax.Array
) -> tuple[ServerState, Metrics]:
    """Return the state after a round of a method, and the round's metrics."""
    training, server = parts.training, parts.server
    metrics: Metrics = {}
    stage = parts.stage(int(state.round))
    label, run = stages[stage - 1]
    first_round = parts.first_round(stage)
    state = parts.control.scaled(state, training.labeled_only_rounds)
    (label_key, train_key), communication = jax.random.split(key), Communication()
    cohort = placed(cohort, training.execution)
    if server is not None:  # it trains on its labels first
        state, metrics = server.turn(state, key, first_round)
        cohort = server.cohort(cohort, parts.source(stage))
    for hook in parts.hooks:
        state = hook.before(state, cohort, key, communication)

    # Label.
    labels = label(state, cohort, label_key, communication)

    # Train each client, average, step.
    received = parts.messages.send(state, cohort, communication)
    rate = training.local.rate_of(int(state.round) - first_round)
    server_data = None if server is None else server.examples
    result = run(state, cohort, labels, received, server_data, train_key, rate)
    check_weights(result.weights, state.model)

    after, cohort = result.state, cohort._replace(client_id=result.client_id)
    for hook in parts.hooks:
        after = hook.after(after, cohort, result.uploads, train_key, communication)
    parts.messages.count_bytes(
        *(communication, state, result.client_id, result.sent, parts.control),
        training.local.batch_statistics,
    )
    if result.communication:
        communication.add(result.communication)
    metrics = {**result.metrics, **metrics, **labels.metrics}
    if server is not None:
        metrics = server.metrics(metrics)
    return after, {**metrics, "communication": communication.metrics()}


def trained(
    parts: Parts,
    stage: int,
    clients: CohortClients,
    state: ServerState,
    received: Any,
    server_data: ClientData | None,
    key: jax.Array,
    rate: Any,
) -> Outcome:
    """Train each client, average, and step.

    Args:
        parts: the method.
        stage: 1 or 2.
        clients: those of the cohort, with its labels; on a network, others with the same methods.
        state: before the round.
        received: messages to single clients beside the model (`Messages.send`).
        server_data: the examples of a server with labels.
        key: typed, of the round's training.
        rate: float32 scalar, the round's learning rate: an argument, not a constant, so one compiled program
            serves all rates.
    """
    shared = Shared(state.model, state.control, rate, state.round - parts.first_round(stage))
    updates, trains = clients.updates(state, shared, received, key)
    step = clients.at_server(stepped, parts, stage)
    after, metrics = step(state, shared, updates, trains, server_data, key)
    if parts.training.local.batch_statistics == "static":
        measured = clients.measured(after, key)
        after = clients.at_server(with_measured, parts)(after, *measured, server_data, key)
    after = clients.stored(after, updates)
    uploads, sent = updates.upload, updates.sent
    if parts.messages.after_mean is not None:
        uploads, sent_after = clients.shown(after, key)
        sent = dict(sent) | sent_after
    is_one = jnp.asarray(clients.client_id) >= 0
    sent = jax.tree.map(lambda number: jnp.where(is_one, number, 0), sent)
    metrics |= clients.metrics
    return Outcome(after, metrics, sent, uploads, updates.weight, clients.client_id)


def stepped(
    parts: Parts,
    stage: int,
    state: ServerState,
    shared: Shared,
    updates: ClientUpdate,
    trains: jax.Array,
    server_data: ClientData | None,
    key: jax.Array,
) -> tuple[ServerState, dict[str, jax.Array]]:
    """Take the server's step by the mean of the clients' changes: sum_k p_k delta_k / sum_k p_k.

    `trains`, bool [K], is False for a client that has nothing to train on; other arguments as `trained` has
    them. Returns the state, without the clients' own new states, and means of the clients' metrics.
    """
    deltas, weights = updates.delta, updates.weight
    server_metrics: Metrics = {}
    if parts.server is not None:
        deltas, weights, server_metrics = parts.server.beside_clients(
            updates, state, shared, server_data, key
        )
    # Average, and step: FedAvg's is `server_optimizer`.
    model, optimizer = parts.aggregate.apply(state.model, deltas, weights, state.optimizer)
    control = state.control
    if jax.tree.leaves(control):
        anyone, number = jnp.any(weights > 0), state.num_training[stage - 1]
        model, control = parts.control.moved(model, state, updates.correction, anyone, number)
    used = jnp.where(trains, in_all(updates.weight), 0)
    metrics = weighted_mean(updates.metrics, used)
    # A step may spoil the model after its loss has been taken.
    metrics["train_loss"] = jnp.where(is_finite(model), metrics["train_loss"], jnp.nan)
    metrics |= {"clients": jnp.sum(used > 0), "learning_rate": shared.learning_rate}
    after = state._replace(model=model, optimizer=optimizer, control=control, round=state.round + 1)
    return after, metrics | server_metrics


def server_optimizer(optimizer: optax.GradientTransformation) -> Aggregate:
    """FedAvg's step: a server optimizer's, on the clients' mean change.

        mean = sum_k p_k delta_k / sum_k p_k,    w <- w + optimizer(-mean)

    delta_k is client minus server, so its negative is what an optimizer calls a gradient: SGD with rate 1 is
    FedAvg (McMahan et al., AISTATS 2017), with momentum FedAvgM (Hsu, Qi, Brown, 2019), an `adaptive`
    optimizer FedAdam and its kin. BatchNorm's running statistics are no parameters: they take the plain mean.
    Without clients (all weights 0) the model stays as it is.
    """

    def init(model: nnx.State, key: jax.Array) -> Any:
        del key
        return optimizer.init(nnx.split_state(model, nnx.Param, ...)[0])

    def apply(
        model: nnx.State, deltas: nnx.State, weights: jax.Array, state: Any
    ) -> tuple[nnx.State, Any]:
        parameters, statistics = nnx.split_state(model, nnx.Param, ...)
        step, moved = nnx.split_state(weighted_mean(deltas, weights), nnx.Param, ...)
        gradient = jax.tree.map(jnp.negative, step)
        updates, new_state = optimizer.update(gradient, state, parameters)
        updated = optax.apply_updates(parameters, updates)
        statistics = jax.tree.map(jnp.add, statistics, moved)
        anyone = jnp.any(weights > 0)
        return jax.tree.map(
            lambda new, old: jnp.where(anyone, new, old),
            (nnx.merge_state(updated, statistics), new_state),
            (model, state),
        )

    return Aggregate(init, apply, is_mean=True)


def weighted_mean(stacked: Any, weights: jax.Array) -> Any:
    """sum_k p_k x_k / sum_k p_k over the leading axis of every leaf; zeros where all p_k are 0.

    In full float32 on every device: GPUs would otherwise round factors to TF32's 11 bits.
    """
    share = weights / jnp.where(jnp.any(weights > 0), jnp.sum(weights), 1)
    return jax.tree.map(lambda x: weighted_sum(share, x), stacked)


def aggregate_of(training: Training) -> Aggregate:
    """Return the server's step of a training, by default FedAvg's."""
    return training.server.aggregate or server_optimizer(optax.sgd(SERVER_LEARNING_RATE))


def with_measured(
    parts: Parts,
    state: ServerState,
    measured: nnx.State,
    counts: jax.Array,
    server_data: ClientData | None,
    key: jax.Array,
) -> ServerState:
    """Give the model the mean of measured statistics [K, ...]; without examples it stays as it is."""
    if parts.server is not None:
        measured, counts = parts.server.measured(measured, counts, state.model, server_data, key)
    statistics = jax.tree.map(
        lambda new, old: jnp.where(jnp.any(counts > 0), new, old),
        weighted_mean(measured, counts),
        nnx.split_state(state.model, nnx.Param, ...)[1],
    )
    return state._replace(model=with_statistics(state.model, statistics))


def _on_network(parts: Parts) -> OnNetwork:
    from jaxfed.training.round.network import on_network

    return on_network(parts, trained, one_round)
