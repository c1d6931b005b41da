"""Flower's SecAgg+ (after Bell et al., 2020): its workflow and its client's mod in one process.

Nothing is sent: the grid calls the mod for each message. Vectors are quantized to 2^22 levels, sums are in
Z_{2^32}, and masks come from NumPy's Mersenne twister with a seed of 32 bits.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import flwr.compat.common.recorddict_compat as compat
import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import (
    RECORD_KEY_CONFIGS,
    Key,
    Stage,
)
from flwr.server import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import (
    MAIN_CONFIGS_RECORD,
    MAIN_PARAMS_RECORD,
)
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.supercore.task_identity import TaskIdentity

CLIPPING_RANGE = 8.0


class _Grid:
    """Calls each client's mod; clients that leave answer with an error instead of their vector."""

    def __init__(self, vectors: Sequence[np.ndarray], leaving: Iterable[int]) -> None:
        self._vectors, self._leaving = vectors, set(leaving)
        self._contexts = [
            Context(run_id=0, node_id=j, node_config={}, state=RecordDict(), run_config={})
            for j in range(len(vectors))
        ]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        del timeout
        return [self._answer(copy.deepcopy(message)) for message in messages]  # mods change them

    def _answer(self, message: Message) -> Message:
        own = message.metadata.dst_node_id
        stage = message.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]
        if own in self._leaving and stage == Stage.COLLECT_MASKED_VECTORS:
            return Message(Error(code=0, reason="left"), reply_to=message)
        return secaggplus_mod(message, self._contexts[own], self._fit)

    def _fit(self, message: Message, context: Context) -> Message:
        parameters = ndarrays_to_parameters([self._vectors[context.node_id]])
        result = FitRes(Status(Code.OK, ""), parameters, num_examples=1, metrics={})
        content = compat.fitres_to_recorddict(result, keep_input=False)
        return Message(content, reply_to=message)


class _Mean(FedAvg):
    """Selects all clients, and stores the mean that the workflow found."""

    def __init__(self, vectors: Sequence[np.ndarray]) -> None:
        super().__init__()
        self._number = len(vectors)
        self.mean = np.zeros(0)

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        del server_round, client_manager
        proxies = [SimpleNamespace(node_id=j) for j in range(self._number)]
        return [(proxy, FitIns(parameters, {})) for proxy in proxies]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        del server_round, failures
        (self.mean,) = parameters_to_ndarrays(results[0][1].parameters)
        return None, {}


def mean(
    vectors: Sequence[np.ndarray], leaving: Iterable[int], num_partners: int, threshold: int
) -> np.ndarray:
    """The mean of the vectors of those that stay, float64 [d].

    Args:
        vectors: one a client.
        leaving: clients that leave before their upload.
        num_partners: k; Flower counts a client itself among its neighbors.
        threshold: t.
    """
    TaskIdentity.run_id = TaskIdentity.task_id = 1  # of the messages
    TaskIdentity.node_id = 1
    logging.getLogger("flwr").setLevel(logging.ERROR)
    strategy = _Mean(vectors)
    state = RecordDict()
    start = ndarrays_to_parameters([np.zeros(1)])
    state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(
        start, keep_input=True
    )
    state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: 1})
    context = Context(run_id=0, node_id=0, node_config={}, state=state, run_config={})
    workflow = SecAggPlusWorkflow(
        num_partners + 1, threshold, max_weight=1.0, clipping_range=CLIPPING_RANGE
    )
    workflow(_Grid(vectors, leaving), LegacyContext(context, strategy=strategy))
    return strategy.mean
