"""DS-FL: networks learn a sharpened mean answer.

S. Itahara, T. Nishio, Y. Koda, M. Morikura, K. Yamamoto. "Distillation-Based Semi-Supervised Federated
Learning for Communication-Efficient Collaborative Training with Non-IID Private Data". arXiv 2008.06180.
Clients have networks of their own. In every round the server draws public examples d anew, without labels:

    update        `steps` on the client's own labels
    predict       p_k(u) = softmax of client k's logits,    u in d
    aggregate     z(u) = softmax( 1/T (1 / K) sum_k p_k(u) )          entropy reduction aggregation, ERA
    distill       `distill_steps` on  -sum_c z_c(u) log softmax(f_k(u))_c,    u in d

A step is a mini-batch. ERA's softmax is of mean probabilities, which are at most 1: at T = 0.1 no entry of z
is more than e^10 times another. Unlabeled examples of clients take no part.

Said otherwise in the paper: the server distills a network of its own, too, and that is measured. Here it has
none, and the clients' own networks are measured, as in FedMD (`jaxfed.learners.evaluation`). The paper counts
local training in epochs.

A rate's schedule counts a client's fits, two a round: `training.schedule_rounds`.

An upload is |d| C numbers in float32. The download has as many, and the indices of d.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np

from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort, arranged, without_labels
from jaxfed.federation.communication import Communication
from jaxfed.federation.method import method
from jaxfed.learners.client_fit import (
    check_answers,
    check_clients,
    count,
    first_turns,
    public_mean,
    take_turn,
    with_turns,
)
from jaxfed.learners.evaluation import judged_by_clients
from jaxfed.learners.learner import Learner, PublicTargets
from jaxfed.settings import Count, Ge, Note, Positive
from jaxfed.training.consensus import ABSTAINED, ConsensusSums


class DSFLState(NamedTuple):
    """State before a round.

    Fields:
        learner: the networks of all clients.
        soft: float32 [U, C], z of the last round.
        weight: float32 [U], 1 in d of the last round if it had a z.
        turns: int32 [M], rounds in which each client's answer was in the mean.
        round: int32, rounds done.
    """

    learner: Any
    soft: np.ndarray
    weight: np.ndarray
    turns: np.ndarray
    round: np.ndarray


@method(
    title="DS-FL",
    cites="Itahara, Nishio, Koda, Morikura, Yamamoto, IEEE TMC 2023",
    leaves="its probabilities of public examples, or their masked sum",
    takes=("network", "public", "num_classes"),
)
def dsfl(
    *,
    network: Callable[..., Learner],
    public: np.ndarray,
    num_classes: int,
    subset: Annotated[int, Ge(0), Note("0 is all public examples")] = 1000,
    steps: Count = 50,
    distill_steps: Count = 50,
    temperature: Positive = 0.1,
    sums: ConsensusSums = "plaintext",
) -> FederatedAlgorithm:
    """DS-FL.

    Args:
        network: keywords -> clients' networks; `functools.partial(jaxfed.learners.network, training=...)`.
        public: U, [U, ...].
        num_classes: C.
        subset: |d|, public examples drawn for a round; all if there are fewer.
        steps: steps on own labels in each round.
        distill_steps: steps on the sharpened mean in each round.
        temperature: T; nearly equal probabilities are sharpened below 1/C, and flattened above it.
        sums: how the server adds probabilities.

    Raises:
        UsageError: networks have no probabilities; `init` gets a federation without public examples, with
            new points at clients, or with labels at the server.
    """
    learner = network(public_loss="soft_cross_entropy")
    check_answers(learner, "predict_proba")
    size = min(subset or len(public), len(public))
    no_labels = np.full(len(public), ABSTAINED, np.int32)  # clients learn from z alone

    def init(key: jax.Array, federation: Federation) -> DSFLState:
        check_clients(federation, num_classes, public)
        return DSFLState(
            learner=learner.init(key, federation),
            soft=np.zeros((len(public), num_classes), np.float32),
            weight=np.zeros(len(public), np.float32),
            turns=first_turns(federation),
            round=count(0),
        )

    def round(state: DSFLState, cohort: Cohort, key: jax.Array) -> tuple[DSFLState, Metrics]:
        update_key, draw_key, distill_key = jax.random.split(key, 3)
        cohort, communication = arranged(cohort), Communication()
        updated = take_turn(learner, state.learner, cohort, None, update_key, steps)
        consensus = public_mean(
            *(updated, learner, "predict_proba", public, size, num_classes, sums, communication),
            key=draw_key,
        )
        soft = sharpened_by_softmax(consensus.mean, temperature)
        cohort = without_labels(cohort._replace(client_id=consensus.turn.client_id))
        targets = PublicTargets(public, no_labels, consensus.weight, soft)
        distilled = take_turn(
            learner, consensus.turn.state, cohort, targets, distill_key, distill_steps
        )
        metrics: Metrics = {
            **updated.metrics,
            "voters": consensus.num_voters,
            "failed_clients": len(consensus.turn.failed) + len(distilled.failed),
            "communication": communication.metrics(),
        }
        if "train_loss" in distilled.metrics:
            metrics["distill_loss"] = distilled.metrics["train_loss"]
        turns = with_turns(state.turns, consensus.voters)
        after = DSFLState(
            distilled.state, soft, consensus.weight, turns, count(int(state.round) + 1)
        )
        return after, metrics

    return FederatedAlgorithm(init, round, *judged_by_clients(learner, num_classes))


def sharpened_by_softmax(mean: np.ndarray, temperature: float) -> np.ndarray:
    """ERA: softmax(mean / T) over the last axis, float32 [U, C]."""
    # Imported here, since it takes a sixth of a second.
    from scipy.special import softmax

    sharpened: np.ndarray = softmax(mean / np.float32(temperature), axis=-1)
    return sharpened
