"""Bytes of the models sent in a round, counted by kind of message."""

from __future__ import annotations

from typing import Any

import numpy as np
from flax import nnx

from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication, num_bytes_of
from jaxfed.training.round.server_hooks import Control, Messages
from jaxfed.training.server.server_state import ServerState


def count_models(
    communication: Communication,
    state: ServerState,
    cohort: Cohort,
    sent: Any,
    batch_statistics: str,
    *,
    control: Control,
    messages: Messages,
) -> None:
    """Count the models that the cohort receives and sends, and the method's further messages.

    `state` is the one that the clients received, `sent` their `ClientUpdate.sent`, each [K]. With `AfterMean`
    uploads clients also receive the round's new model, as they do for "static" statistics.
    """
    num_clients = int(np.sum(np.asarray(cohort.client_id) >= 0))
    parameters, statistics = nnx.split_state(state.model, nnx.Param, ...)
    download_bytes = int(messages.download_bytes(parameters))
    if messages.shares_model:
        communication.down("parameters", num_clients * download_bytes)
    if messages.shares_model and "parameters" not in sent:
        communication.up("parameters", num_clients * num_bytes_of(parameters))
    for kind, num_bytes in dict(sent).items():
        communication.up(kind, int(np.asarray(num_bytes).sum(dtype=np.int64)))
    num_bytes = num_clients * num_bytes_of(state.control) if control.is_sent else 0
    if num_bytes:
        communication.down("control", num_bytes)
        communication.up("control", num_bytes)
    num_bytes = num_clients * num_bytes_of(statistics) if messages.shares_model else 0
    if num_bytes and batch_statistics == "averaged":
        communication.down("statistics", num_bytes)
        communication.up("statistics", num_bytes)
    measures = bool(num_bytes) and batch_statistics == "static"
    if measures or messages.after_mean is not None:
        communication.down("parameters", num_clients * download_bytes)
    if measures:
        communication.up("statistics", num_bytes)
