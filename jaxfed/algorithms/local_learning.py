"""Each client alone: local learning of models that share nothing.

    h^i <- A^i(D^i, h^i)        at client i, in each of a round's b steps

FedCT (`jaxfed.algorithms.fedct`) without its consensus: the lower baseline for it. The tables of FedCT's
paper do not contain it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.method import method
from jaxfed.learners.client_fit import check_clients, count, first_turns, take_turn, with_turns
from jaxfed.learners.evaluation import judged_by_clients
from jaxfed.learners.learner import Learner
from jaxfed.settings import Count


class LocalState(NamedTuple):
    """State before a round.

    Fields:
        learner: the models of all clients.
        turns: int32 [M], rounds that each client trained in.
        round: int32, rounds done.
    """

    learner: Any
    turns: np.ndarray
    round: np.ndarray


@method(title="Each client alone", leaves="nothing", takes=("learner", "num_classes"))
def local_learning(*, learner: Learner, num_classes: int, steps: Count = 50) -> FederatedAlgorithm:
    """Local learning: each client trains on its own labels alone.

    Args:
        learner: A, of all clients.
        num_classes: C.
        steps: b, local steps of a round; fits of estimators are one whatever their number.

    Raises:
        UsageError: `init` gets a federation with new points at clients, or with labels at the server.
    """

    def init(key: jax.Array, federation: Federation) -> LocalState:
        check_clients(federation, num_classes)
        return LocalState(learner.init(key, federation), first_turns(federation), count(0))

    def round(state: LocalState, cohort: Cohort, key: jax.Array) -> tuple[LocalState, Metrics]:
        turn = take_turn(learner, state.learner, cohort, None, key, steps)
        turns = with_turns(state.turns, turn.client_id)
        return LocalState(turn.state, turns, count(int(state.round) + 1)), turn.metrics

    return FederatedAlgorithm(init, round, *judged_by_clients(learner, num_classes))
