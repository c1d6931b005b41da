"""Both sides of a method of `federated_training`, made of the parts that its simulation has."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax

from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import Init, Round, Sides
from jaxfed.federation.clients import Federation
from jaxfed.federation.execution.client_map import client_map
from jaxfed.federation.sides import Ask, ClientSide
from jaxfed.training.round.network.client_side import ClientStage, TrainingClient
from jaxfed.training.round.network.messages import OwnState
from jaxfed.training.round.network.server_side import JOINT, ServerStage
from jaxfed.training.round.stage_program import StageProgram
from jaxfed.training.server.server_state import ServerState
from jaxfed.training.specification import Training

if TYPE_CHECKING:
    from jaxfed.training.pseudo_labels.propagated_labels import XclpLabels


def training_sides(
    training: Training,
    program: Callable[..., StageProgram],
    pseudo_label: str,
    init_rows: Callable[[int, jax.Array, Federation], ServerState],
    round_by: Callable[..., Any],
) -> Sides:
    """Return the server's side and a client's.

    Args:
        training: the training specification.
        program: training, map_clients, stage -> computations of a stage.
        pseudo_label: the method's source of labels in the second stage.
        init_rows: number of rows of clients' states, key, federation -> state.
        round_by: stages, state, cohort, key -> state and metrics.

    Raises:
        UsageError: not all clients of a cohort are to train.
    """

    if training.training_cohort_size:
        raise UsageError(
            "on a network all clients of a round train",
            key="training_cohort_size",
            owner="training",
            value=training.training_cohort_size,
            allowed="set it to 0",
        )
    joint = _joint_source(pseudo_label, training)

    def stage(number: int, source: str) -> ClientStage:
        one_by_one = partial(client_map, strategy="map")
        label = training.pseudo_labels[source]
        if joint is not None and source != "none":
            from jaxfed.training.round.network.joint_labels import no_labels as label
        return ClientStage(source, label, program(training, one_by_one, stage=number))

    first = stage(1, "none")
    stages = first, first if pseudo_label == "none" else stage(2, pseudo_label)
    init_server = partial(init_rows, 0)

    def init_own(key: jax.Array, federation: Federation) -> OwnState:
        state = init_rows(1, key, federation)
        return OwnState(state.clients, state.statistics, state.client_optimizers)

    def server(ask: Ask, federation: Federation) -> tuple[Init, Round]:
        label = None
        if joint is not None:
            from jaxfed.training.round.network.joint_labels import JointLabels

            label = JointLabels(joint, ask, federation)
        served = (
            ServerStage(stages[0], ask, federation, None),
            ServerStage(stages[1], ask, federation, label),
        )
        return init_server, partial(round_by, served)

    client = TrainingClient(stages, training.labeled_only_rounds, init_server, init_own)
    if joint is not None:
        from jaxfed.training.round.network.joint_labels import JointlyLabelingClient

        return Sides(server, JointlyLabelingClient(client, joint).side())
    return Sides(server, ClientSide(client.init, client.answer, client.form))


def _joint_source(name: str, training: Training) -> XclpLabels | None:
    """Return the source if it is XCLP with nothing around it, as clients can run it together."""
    if name not in JOINT:
        return None
    from jaxfed.training.pseudo_labels.propagated_labels import XclpLabels

    source = training.pseudo_labels[name]
    return source if isinstance(source, XclpLabels) else None
