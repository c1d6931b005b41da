"""The round that FedAvg and its relatives have in common: training one model by local updates.

    1. a server that has labels trains on them        (jaxfed.training.round.labels_at_server)
    2. given labels, and pseudo-labels of the round   (jaxfed.training.pseudo_labels.pseudo_label)
    3. each client trains on them                     (jaxfed.training.round.cohort_step)
    4. the server takes the mean's step               (jaxfed.training.server.aggregate)

`round_by` has them in this order; 3 and 4 are one compiled program (`jaxfed.training.round.stage_program`). A
method is a `LocalUpdate`, the name of its source of labels, and the parts that it adds
(`jaxfed.training.round.server_hooks`). On a network the same round asks clients
(`jaxfed.training.round.network`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import Course, FederatedAlgorithm, Metrics, Sides
from jaxfed.federation.array_checks import check_arrays
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort, arranged
from jaxfed.federation.communication import Communication
from jaxfed.federation.execution.client_map import jitted
from jaxfed.federation.ragged import on_device
from jaxfed.training.pseudo_labels.label_sources import check_source
from jaxfed.training.pseudo_labels.pseudo_label import (
    LABELING_NOTHING,
    WITHIN_CLIENTS,
    PseudoLabel,
    PseudoLabels,
)
from jaxfed.training.round.client_round import LocalUpdate
from jaxfed.training.round.cohort_step import executed
from jaxfed.training.round.evaluation import Evaluation, evaluation_by
from jaxfed.training.round.labels_at_server import (
    ServerPart,
    ServerWithoutLabels,
    Turn,
    server_of,
)
from jaxfed.training.round.model_messages import count_models
from jaxfed.training.round.server_hooks import (
    MODEL_ALONE,
    NO_CONTROL,
    Classifier,
    Control,
    Hook,
    Messages,
    network_classifier,
)
from jaxfed.training.round.stage_program import StageProgram, Trained
from jaxfed.training.round.update_views import RECORDING, parameter_views
from jaxfed.training.server.aggregate import Aggregate, check_weights
from jaxfed.training.server.client_rows import (
    of_cohort,
    rows_for,
    without_tables,
    written_back,
)
from jaxfed.training.server.server_state import ServerState
from jaxfed.training.server.stored_models import with_arrivals
from jaxfed.training.specification import Training, num_outputs

_OF_CLIENTS = ("statistics", "clients", "client_optimizers")  # which no network's outputs depend on


def no_state(model: nnx.State, federation: Federation) -> Any:
    """Return the state of clients without one."""
    del model, federation
    return ()


class Stage(NamedTuple):
    """One of a run's two stages: on given labels alone, then on pseudo-labels too.

    Fields:
        source: name of the source of labels.
        label: the labeling by this source.
        turn: the training of a server with labels, before the clients'.
        train: the compiled part of a round.
    """

    source: str
    label: PseudoLabel
    turn: Turn
    train: Callable[..., Trained]


def federated_training(
    training: Training,
    local_update: LocalUpdate,
    *,
    pseudo_label: str,
    init_client: Callable[[nnx.State, Federation], Any] = no_state,
    control: Control = NO_CONTROL,
    messages: Messages = MODEL_ALONE,
    hooks: Sequence[Hook] = (),
    server_part: ServerPart | None = None,
    classifier: Classifier | None = None,
    takes_all: bool = False,
) -> FederatedAlgorithm:
    """Build a federated algorithm from `local_update` and the training specification.

    Args:
        training: see `Training`.
        local_update: one client's round.
        pseudo_label: a name in `training.pseudo_labels`.
        init_client: model (parameters and statistics), federation -> each client's initial state.
        control: values beside the model that grow by the clients' corrections.
        messages: messages between the server and single clients, beside the model.
        hooks: host code before labeling and after the server's step, in this order.
        server_part: the server's training if it has the labels (`ServerTraining.examples`) and clients have
            none; None: the method needs labels at clients.
        classifier: the classifier of a state; by default `network_classifier`.
        takes_all: True if the loss has a use for examples that the source does not label: after rounds on
            given labels alone they take part, with a placeholder label of weight 0.

    Raises:
        UsageError: pseudo-labels or a place of labels that does not suit; in `init`, such a federation.
    """
    server = server_of(training, server_part, pseudo_label)
    check_source(pseudo_label, training.pseudo_labels)
    classifier, evaluation = _evaluation(training, classifier)
    multiple = training.execution.clients_multiple
    program = partial(StageProgram, local_update=local_update, control=control, messages=messages)
    program = partial(program, server=server, takes_all=takes_all)
    course = _course(training, pseudo_label, takes_all=takes_all)
    places_of, divide = _division(training, course)

    def stages_of(aggregate: Aggregate) -> tuple[Stage, Stage]:
        using = training.with_server(aggregate=aggregate)
        return _stages(using, server, pseudo_label, training.pseudo_labels, program)

    adds_nothing = (init_client, control, messages, *hooks) == (no_state, NO_CONTROL, MODEL_ALONE)
    averages = adds_nothing and _averages_changes(training, server, pseudo_label)
    init_rows = partial(_first_state, training, control, init_client, hooks, course)

    def init(key: jax.Array, federation: Federation) -> ServerState:
        _check(federation, server, training)
        state = init_rows(federation.num_clients, key, federation)
        return _with_outputs(classifier, state, federation)

    def round_by(
        stages: tuple[Stage, Stage], state: ServerState, cohort: Cohort, key: jax.Array
    ) -> tuple[ServerState, Metrics]:
        stage = stages[int(state.round) >= training.labeled_only_rounds]
        state = control.scaled(state, training.labeled_only_rounds)
        (label_key, train_key), communication = jax.random.split(key), Communication()
        # 1. A server that has labels trains on them.
        state, server_metrics = stage.turn(state, key)
        cohort = server.cohort(arranged(cohort, multiple), stage.source)
        cohort = cohort._replace(x=on_device(cohort.x))  # one transfer for labeling and training
        for hook in hooks:
            state = hook.before(state, cohort, key, communication)
        # 2. Where the labels of the round come from.
        labels = stage.label(state, cohort, label_key, communication)
        cohort, labels = divide(state, cohort, labels, key, communication)
        received = messages.send(state, cohort, communication)
        # 3. and 4. Local updates, and the server's step by their mean.
        own = of_cohort(state, cohort.client_id)
        after, metrics, sent, uploads, ids, weights = stage.train(
            own, cohort, labels, received, server.examples, train_key
        )
        check_weights(weights, ids)
        after = written_back(state, after, cohort.client_id)
        cohort = cohort._replace(client_id=ids)
        for hook in hooks:
            after = hook.after(after, cohort, uploads, train_key, communication)
        statistics = training.local.batch_statistics
        count_models(
            communication, state, cohort, sent, statistics, control=control, messages=messages
        )
        metrics = server.metrics({**metrics, **server_metrics, **labels.metrics})
        return after, {**metrics, "communication": communication.metrics()}

    return FederatedAlgorithm(
        init,
        partial(round_by, stages_of(training.server.aggregate)),
        course=course,
        views=parameter_views(
            lambda: partial(round_by, stages_of(RECORDING)), classifier, multiple, places_of
        ),
        sides=partial(_sides, training, program, pseudo_label, init_rows, round_by),
        with_arrivals=with_arrivals if averages else None,
        **evaluation._asdict(),
    )


def _sides(*parts: Any) -> Sides:
    from jaxfed.training.round.network.sides import training_sides

    return training_sides(*parts)


def _stages(
    training: Training,
    server: ServerWithoutLabels,
    pseudo_label: str,
    sources: Mapping[str, PseudoLabel],
    program: Callable[..., StageProgram],
) -> tuple[Stage, Stage]:
    """The two stages of a run; without pseudo-labels both are the first one."""

    def stage(number: int, source: str, first_round: int) -> Stage:
        run = executed(
            lambda map_clients: jitted(program(training, map_clients, stage=number).whole),
            training.execution,
        )

        def train(state: ServerState, *others: Any) -> Trained:
            return run(state, *others, training.local.rate_of(int(state.round) - first_round))

        label = server.label(source, sources[source])
        return Stage(source, label, server.turn(first_round), train)

    first = stage(1, "none", 0)
    if pseudo_label == "none":
        return first, first
    return first, stage(2, pseudo_label, training.labeled_only_rounds)


def _evaluation(training: Training, classifier: Classifier | None) -> tuple[Classifier, Evaluation]:
    """Return the classifier, by default the network, and the evaluation by it."""
    if classifier is not None:
        return classifier, evaluation_by(classifier)
    classifier = network_classifier(training)
    evaluated = partial(without_tables, names=_OF_CLIENTS)
    return classifier, evaluation_by(classifier, evaluated)


def _course(training: Training, pseudo_label: str, *, takes_all: bool) -> Course:
    """Return stage 1, on given labels alone, and stage 2, on those of a source."""
    has_stage_2 = pseudo_label != "none"
    needs_labels = not has_stage_2 or (pseudo_label in WITHIN_CLIENTS and not takes_all)
    return Course(False, training.labeled_only_rounds, has_stage_2, needs_labels)


def _averages_changes(training: Training, server: ServerWithoutLabels, pseudo_label: str) -> bool:
    """True if a round without further parts is the mean of its clients' changes, also of earlier models'."""
    return (
        server.examples is None
        and not training.training_cohort_size
        and pseudo_label in LABELING_NOTHING
        and training.server.aggregate.is_mean
        and training.local.batch_statistics == "averaged"
    )


def _division(
    training: Training, course: Course
) -> tuple[Callable[..., np.ndarray] | None, Callable[..., tuple[Cohort, PseudoLabels]]]:
    """Return the places of the clients that train (None: all), and what leaves the others out."""
    size, multiple = training.training_cohort_size, training.execution.clients_multiple
    if not size:
        return None, lambda state, cohort, labels, key, communication: (cohort, labels)

    from jaxfed.training.round.training_cohort import divided, training_places

    def places_of(state: ServerState, cohort: Cohort, key: jax.Array) -> np.ndarray:
        return training_places(
            cohort, size, key, needs_labels=course.needs_labels_in(int(state.round) + 1)
        )

    def divide(
        state: ServerState,
        cohort: Cohort,
        labels: PseudoLabels,
        key: jax.Array,
        communication: Communication,
    ) -> tuple[Cohort, PseudoLabels]:
        places = places_of(state, cohort, key)
        return divided(cohort, labels, places, communication, state.model, multiple)

    return places_of, divide


def _with_outputs(
    classifier: Classifier, state: ServerState, federation: Federation
) -> ServerState:
    """Return the state after a check that its classifier has an output for every class."""
    outputs = num_outputs(classifier.probabilities, classifier.needed(state), federation)
    if outputs < federation.num_classes:
        raise UsageError(
            f"the network has {outputs} outputs and the clients have {federation.num_classes} classes; use a "
            "network with as many outputs or more"
        )
    return state


def _check(federation: Federation, server: ServerWithoutLabels, training: Training) -> None:
    if training.training_cohort_size and server.examples is not None:
        raise UsageError(
            "needs labels at clients",
            key="training_cohort_size",
            owner="training",
            value=training.training_cohort_size,
            allowed="set it to 0, or federation.labels_at='clients'",
        )
    if any(map(len, federation.partition.new)):
        raise UsageError(
            "training a model needs federation.test='central': here clients hold new points"
        )
    if len(federation.server) and server.examples is None:
        raise UsageError(
            "the server of these clients has labels: use "
            "Training(model, server=ServerTraining(examples=federation.server_examples))"
        )
    if training.server.examples is not None:
        x, y = training.server.examples
        check_arrays(federation, x, "ServerTraining.examples", y)


def _first_state(
    training: Training,
    control: Control,
    init_client: Callable[[nnx.State, Federation], Any],
    hooks: Sequence[Hook],
    course: Course,
    num_rows: int,
    key: jax.Array,
    federation: Federation,
) -> ServerState:
    """The state before the first round, with so many rows of clients' states.

    A client's optimizer state is there if it is kept; each round sets its learning rate.
    """
    training.local.check_examples(federation.x)
    given = training.initial_model
    model = training.model.init(key) if given is None else given
    parameters, statistics = nnx.split_state(model, nnx.Param, ...)
    keeps_statistics = training.local.batch_statistics == "local"
    optimizer: Any = ()
    if training.local.client_optimizer == "kept":
        optimizer = training.local.optimizer(jnp.float32(0)).init(parameters)
    statistics, clients, optimizers = rows_for(
        num_rows,
        (statistics if keeps_statistics else (), init_client(model, federation), optimizer),
        training.execution.host,
    )
    state = ServerState(
        model=model,
        optimizer=training.server.aggregate.init(model),
        teacher=(),
        control=control.init(parameters),
        statistics=statistics,
        clients=clients,
        round=jnp.int32(0),
        client_optimizers=optimizers,
    )
    for hook in hooks:
        state = hook.init(state, federation, key)
    if not jax.tree.leaves(state.control):
        return state
    needs = True, course.needs_labels
    numbers = [federation.num_training(needs_labels=each) for each in needs]
    return state._replace(num_training=np.maximum(numbers, 1).astype(np.float32))
