"""Distributed distillation: each network is drawn to the mean of all networks' probabilities.

I. Bistritz, A. J. Mann, N. Bambos. "Distributed Distillation for On-Device Learning". NeurIPS 2020. Client n
minimizes

    L_n(theta) + rho E_{u in U} |s_n(theta; u) - z(u)|^2,        s = softmax of its logits

with z its estimate of the clients' mean answer, which in the paper travels over a graph of devices. Here, as
in FedCT (arXiv 2310.05696, the row DD of its tables), a server is in the middle: after b local steps

    z(u) <- (1 / K) sum_k s_k(u)

over the clients of the round, so z is exact, not an estimate. FedCT does not state rho. The step size
is constant unless `training.schedule` makes it decay. (The code released with FedCT averages answers
and does not train on them.) The loss is `jaxfed.learners.networks`, "squared_distance".

An upload is |U| C numbers in float32, and so is the download.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication
from jaxfed.federation.method import method
from jaxfed.learners.client_fit import (
    asked,
    check_answers,
    check_clients,
    count,
    first_turns,
    speaking,
    take_turn,
    with_turns,
)
from jaxfed.learners.evaluation import judged_by_clients
from jaxfed.learners.learner import Learner, PublicTargets
from jaxfed.settings import Count, NotNegative
from jaxfed.training.consensus import (
    ABSTAINED,
    ConsensusSums,
    fewest_clients,
    largest_share,
    summed_answers,
)


class DistillationState(NamedTuple):
    """State before a round.

    Fields:
        learner: the networks of all clients.
        soft: float32 [U, C], z.
        label: int32 [U], its largest class; -1 before any answer.
        weight: float32 [U], 1 where there is a z.
        turns: int32 [M], communications that each client took part in.
        round: int32, rounds done.
    """

    learner: Any
    soft: np.ndarray
    label: np.ndarray
    weight: np.ndarray
    turns: np.ndarray
    round: np.ndarray


@method(
    title="Distributed distillation",
    cites="Bistritz, Mann, Bambos, NeurIPS 2020",
    leaves="its probabilities of public examples, or their masked sum",
    takes=("network", "public", "num_classes"),
)
def distributed_distillation(
    *,
    network: Callable[..., Learner],
    public: np.ndarray,
    num_classes: int,
    steps: Count = 50,
    rho: NotNegative = 1.0,
    sums: ConsensusSums = "plaintext",
) -> FederatedAlgorithm:
    """Distributed distillation with a server in the middle.

    Args:
        network: keywords -> clients' networks; `functools.partial(jaxfed.learners.network, training=...)`.
        public: U, [U, ...].
        num_classes: C.
        steps: b, local steps of a round.
        rho: weight of the distance to the mean answer.
        sums: how the server adds answers.

    Raises:
        UsageError: `init` gets a federation without public examples, with new points at clients, or with
            labels at the server.
    """
    learner = network(public_loss="squared_distance", pseudo_weight=rho)
    check_answers(learner, "predict_proba")

    def init(key: jax.Array, federation: Federation) -> DistillationState:
        check_clients(federation, num_classes, public)
        return DistillationState(
            learner=learner.init(key, federation),
            soft=np.zeros((len(public), num_classes), np.float32),
            label=np.full(len(public), ABSTAINED, np.int32),
            weight=np.zeros(len(public), np.float32),
            turns=first_turns(federation),
            round=count(0),
        )

    def round(
        state: DistillationState, cohort: Cohort, key: jax.Array
    ) -> tuple[DistillationState, Metrics]:
        targets = PublicTargets(public, state.label, state.weight, state.soft)
        turn = take_turn(learner, state.learner, cohort, targets, key, steps)
        turn, answers = asked(turn, learner, "predict_proba", public, num_classes)
        voters = speaking(turn.client_id, answers)
        communication = Communication()
        label, weight, soft = state.label, state.weight, state.soft
        num_voters = int(np.sum(voters >= 0))
        if num_voters >= fewest_clients(sums):  # else nobody hears of another z
            total = summed_answers(answers, voters, sums, communication)
            label, weight, soft = map(np.asarray, largest_share(jnp.asarray(total)))
            communication.down("mean", num_voters * soft.nbytes)
        turns = with_turns(state.turns, voters)
        after = DistillationState(
            turn.state, soft, label, weight, turns, count(int(state.round) + 1)
        )
        metrics: Metrics = {
            **turn.metrics,
            "voters": num_voters,
            "consensus_change": float(np.mean(label != state.label)),
        }
        return after, {**metrics, "communication": communication.metrics()}

    judged = judged_by_clients(learner, num_classes, has_consensus=True)
    return FederatedAlgorithm(init, round, *judged)
