"""Training one model by local updates: the round that FedAvg and its relatives have in common.

    a server that has labels trains on them        (jaxfed.training.round.labels_at_server)
    given labels, and pseudo-labels of the round   (jaxfed.training.pseudo_labels.pseudo_label)
    each client trains on them, and the server takes the mean's step    (jaxfed.training.round.clients_part)

A method consists of a `LocalUpdate`, state at clients and server, and the name of a pseudo-labeler; this
file makes a `FederatedAlgorithm` of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort, arranged
from jaxfed.federation.communication import Communication, num_bytes_of
from jaxfed.federation.ragged import on_device
from jaxfed.training.ingredients import Training
from jaxfed.training.pseudo_labels.label_sources import BY_OWN_LABELS, check_source
from jaxfed.training.pseudo_labels.pseudo_label import WITHIN_CLIENTS
from jaxfed.training.round import labels_at_server
from jaxfed.training.round.client_round import AfterMean, LocalUpdate
from jaxfed.training.round.clients_part import SERVER, TrainRound, clients_part
from jaxfed.training.round.judgement import judged_by
from jaxfed.training.round.labels_at_server import ServerPart
from jaxfed.training.round.model_messages import count_models, num_bytes_received
from jaxfed.training.round.server_roles import NO_MEMORY, Judge, Memory, by_network
from jaxfed.training.round.uploads import RECORDING, parameter_views
from jaxfed.training.server.aggregate import Aggregate
from jaxfed.training.server.server_state import (
    ServerState,
    Teacher,
    stacked_for,
)

# Separate these random streams from labels and local steps; `fold_in` of 0 and 1 gives the keys of `split`.
_TEACHER = 0x74636872
_MEMORY = 0x6D656D6F


class Send(Protocol):
    """Hook for further messages of the server to each client of a cohort; host code between two rounds."""

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
    after_mean: AfterMean | None = None,
    server_part: ServerPart | None = None,
) -> FederatedAlgorithm:
    """Build a federated algorithm from `local_update` and the training specification.

    Args:
        training: see `Training`.
        local_update: one client's round.
        pseudo_label: a name in `training.pseudo_labels`.
        keep_teacher: keep the model that stage 2 starts from in `ServerState.teacher`. A client receives
            it once, in the first round of stage 2 that it takes part in; in the very first it is the model
            that all receive.
        init_control: parameters -> `ServerState.control`; it grows by the sum of the clients'
            `ClientUpdate.correction` over the number of all clients.
        init_client: model (parameters and statistics), federation -> each client's initial state.
        server_step: parameters after the aggregate's step, the round's new control -> parameters.
        sends_control: whether control goes to the clients, and their corrections to the server; False if the
            server computes it from what it has, and clients never see it (FedDyn).
        send: messages to single clients (`Client.received`).
        download_bytes: parameters -> bytes in which one client receives them.
        memory: the server's store of `ClientUpdate.upload`.
        judge: the classifier of a state; by default `by_network`.
        after_mean: the clients' upload after they receive the round's new model, in place of
            `ClientUpdate.upload`; None: no such upload, and they do not receive the model.
        server_part: the server's training if it has the labels (`Training.server`) and clients have none;
            None: the method needs labels at clients. No client takes part in rounds on given labels alone.

    Raises:
        UsageError: unknown pseudo-labels, labels at a place where the method cannot use them; in `init`, new
            points at clients, or labels of a server that `training` does not have.
    """
    own = labels_at_server.examples_of(training)
    if own is not None and server_part is None:
        raise UsageError(
            "this method needs labels at the clients",
            key="server",
            owner="Training",
            allowed="use None",
        )
    if own is not None and pseudo_label in BY_OWN_LABELS:
        raise UsageError(
            f"with pseudo_label={pseudo_label!r} each client labels by its own labels",
            key="server",
            owner="Training",
            allowed="use None",
        )
    check_source(pseudo_label, training.pseudo_labels)
    joining = server_part.update if server_part and server_part.joins else None
    turn_from = partial(labels_at_server.turn_of, training, server_part)

    def stages_of(aggregate: Aggregate) -> tuple[Stage, Stage]:
        using = replace(training, aggregate=aggregate)
        train_stage = partial(
            clients_part, using, local_update, server_step, after_mean=after_mean, joining=joining
        )
        first = "none", train_stage(stage=1), turn_from(0)
        if pseudo_label == "none":
            return first, first
        return first, (
            pseudo_label,
            train_stage(stage=2),
            turn_from(training.labeled_only_rounds),
        )

    judge = judge or by_network(training)
    sources = {name: training.pseudo_labels[name] for name in {"none", pseudo_label}}

    def init(key: jax.Array, federation: Federation) -> ServerState:
        if any(map(len, federation.partition.new)):
            raise UsageError(
                "training a model needs federation.test='central': here clients hold new points"
            )
        if len(federation.server) and own is None:
            raise UsageError(
                "the server of these clients has labels: Training(model, server=federation.server_examples) "
                "is needed"
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
            client_optimizers=stacked_for(
                num_clients, _first_optimizer_state(training, parameters)
            ),
        )

    def round_by(
        stages: tuple[Stage, Stage], state: ServerState, cohort: Cohort, key: jax.Array
    ) -> tuple[ServerState, Metrics]:
        number = int(state.round)
        is_first = number == training.labeled_only_rounds  # of stage 2
        source, train, turn = stages[number >= training.labeled_only_rounds]
        told: Metrics = {}
        if own is not None:
            state, told = turn(state, own, jax.random.fold_in(key, SERVER))
        if keep_teacher and is_first:
            state = state._replace(teacher=_teacher(state.model, key, len(state.teacher.holders)))
        cohort = arranged(cohort, training.clients_multiple)
        if own is not None and source == "none":
            cohort = labels_at_server.nobody_of(cohort)
        cohort = cohort._replace(x=on_device(cohort.x))  # one transfer for labeling and training
        label_key, train_key = jax.random.split(key)
        communication = Communication()
        if keep_teacher and number >= training.labeled_only_rounds:
            state, num_new = _with_teacher(state, cohort)
            num_bytes = num_bytes_received(state.teacher.model, training.batch_statistics)
            communication.down("teacher", 0 if is_first else num_new * num_bytes)
        parties = labels_at_server.beside(cohort, own, source, training.clients_multiple)
        labels = sources[source](state, parties, label_key, communication)
        if parties is not cohort:
            rows = len(cohort.client_id)
            labels = labels._replace(label=labels.label[:rows], weight=labels.weight[:rows])
        received = send(state, cohort, communication)
        after, metrics, sent, uploads = train(state, cohort, labels, received, own, train_key)
        remembered = memory.update(
            after.memory,
            jnp.asarray(cohort.client_id),
            uploads,
            after.round,
            jax.random.fold_in(train_key, _MEMORY),
            communication,
        )
        after = after._replace(memory=remembered)
        num_bytes = download_bytes(nnx.filter_state(state.model, nnx.Param))
        count_models(
            communication,
            state if sends_control else state._replace(control=()),
            cohort,
            training.batch_statistics,
            int(num_bytes),
            sent,
            again=after_mean is not None,
        )
        metrics = {**metrics, **told, **labels.metrics}
        if own is not None:  # where no client trains, the loss is the server's
            alone = jnp.where(metrics["clients"] > 0, 0, metrics["server_train_loss"])
            metrics["train_loss"] = metrics["train_loss"] + alone
        return after, {**metrics, "communication": communication.metrics()}

    def needs_labels(round_number: int) -> bool:
        is_within = round_number <= training.labeled_only_rounds or pseudo_label in WITHIN_CLIENTS
        return is_within and own is None

    return FederatedAlgorithm(
        init,
        partial(round_by, stages_of(training.aggregate)),
        needs_labels=needs_labels,
        judged_after=training.labeled_only_rounds,
        views=parameter_views(
            lambda: partial(round_by, stages_of(RECORDING)), judge, training.clients_multiple
        ),
        labeled_only_rounds=0 if pseudo_label == "none" else training.labeled_only_rounds,
        **judged_by(judge)._asdict(),
    )


# Name of the labels' source, the clients' part, and the part of a server with labels.
Stage = tuple[str, TrainRound, Callable[..., tuple[ServerState, Metrics]]]


def _first_optimizer_state(training: Training, parameters: nnx.State) -> Any:
    """Initial state of each client's optimizer if it is kept, else (); each round sets its learning rate."""
    if training.client_optimizer == "fresh":
        return ()
    return training.optimizer(jnp.float32(0)).init(parameters)


def _teacher(model: nnx.State, key: jax.Array, num_clients: int) -> Teacher:
    return Teacher(model, jax.random.fold_in(key, _TEACHER), np.zeros(num_clients, bool))


def _with_teacher(state: ServerState, cohort: Cohort) -> tuple[ServerState, int]:
    """Add the cohort to the teacher's holders; return the state, and the number of new holders."""
    ids = np.asarray(cohort.client_id)
    ids = ids[ids >= 0]
    before = np.asarray(state.teacher.holders)
    after = before.copy()
    after[ids] = True
    return state._replace(teacher=state.teacher._replace(holders=after)), int(np.sum(~before[ids]))
