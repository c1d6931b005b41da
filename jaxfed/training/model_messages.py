"""What the models of a round cost on the wire, counted by kind of message."""

from __future__ import annotations

from typing import Any

import numpy as np
from flax import nnx

from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication, num_bytes_of
from jaxfed.training.server_state import ServerState


def num_bytes_received(model: nnx.State, batch_statistics: str) -> int:
    """Of a model that a client labels with: all of it, or what is not the client's own."""
    parameters, _ = nnx.split_state(model, nnx.Param, ...)
    return num_bytes_of(parameters if batch_statistics == "local" else model)


def count_models(
    communication: Communication,
    state: ServerState,
    cohort: Cohort,
    batch_statistics: str,
    download_bytes: int,
    sent: Any,
    *,
    again: bool = False,
) -> None:
    """Models down and up, what else a method sends with them, for each client of the cohort.

    `download_bytes` is a client's, `sent` the clients' `ClientUpdate.sent`, each [K]. If `again`, clients
    receive the model that the round has come to, too, as they do for statistics that are "static".
    """
    num_clients = int(np.sum(np.asarray(cohort.client_id) >= 0))
    parameters, statistics = nnx.split_state(state.model, nnx.Param, ...)
    communication.down("parameters", num_clients * download_bytes)
    if "parameters" not in sent:
        communication.up("parameters", num_clients * num_bytes_of(parameters))
    for kind, num_bytes in dict(sent).items():
        communication.up(kind, int(np.asarray(num_bytes).sum(dtype=np.int64)))
    num_bytes = num_clients * num_bytes_of(state.control)
    if num_bytes:
        communication.down("control", num_bytes)
        communication.up("control", num_bytes)
    num_bytes = num_clients * num_bytes_of(statistics)
    if num_bytes and batch_statistics == "averaged":
        communication.down("statistics", num_bytes)
        communication.up("statistics", num_bytes)
    measures = bool(num_bytes) and batch_statistics == "static"
    if measures or again:
        communication.down("parameters", num_clients * download_bytes)
    if measures:
        communication.up("statistics", num_bytes)
