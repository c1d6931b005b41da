"""Both sides of a method of `federated_training`, made of the parts that its simulation has."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from jaxfed.federation.algorithm import Init, Round, Sides
from jaxfed.federation.clients import Federation
from jaxfed.federation.execution.client_map import client_map
from jaxfed.federation.sides import Ask, ClientSide
from jaxfed.training.round.network.client_side import ClientStage, TrainingClient
from jaxfed.training.round.network.messages import OwnState
from jaxfed.training.round.network.server_side import ServerStage
from jaxfed.training.round.stage_program import StageProgram
from jaxfed.training.server.server_state import ServerState
from jaxfed.training.specification import Training


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
    """

    def stage(number: int, source: str) -> ClientStage:
        one_by_one = partial(client_map, strategy="map")
        label = training.pseudo_labels[source]
        return ClientStage(source, label, program(training, one_by_one, stage=number))

    first = stage(1, "none")
    stages = first, first if pseudo_label == "none" else stage(2, pseudo_label)
    init_server = partial(init_rows, 0)

    def init_own(key: jax.Array, federation: Federation) -> OwnState:
        state = init_rows(1, key, federation)
        return OwnState(state.clients, state.statistics, state.client_optimizers)

    def server(ask: Ask, federation: Federation) -> tuple[Init, Round]:
        served = tuple(ServerStage(each, ask, federation) for each in stages)
        return init_server, partial(round_by, served)

    client = TrainingClient(stages, training.labeled_only_rounds, init_server, init_own)
    return Sides(server, ClientSide(client.init, client.answer, client.form))
