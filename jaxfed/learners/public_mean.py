"""Mean of the clients' answers for public examples that the server draws anew in every round.

    z(u) = (1 / K) sum_k f_k(u),    u in d,   d drawn from U

f are scores (FedMD) or probabilities (DS-FL) of the round's clients that have a model.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from jaxfed.federation.communication import Communication
from jaxfed.learners.client_fit import ClientFit, Question, asked, speaking
from jaxfed.learners.learner import Learner
from jaxfed.training.consensus.client_sums import ConsensusSums, summed_answers

_FLOAT = 4


class PublicMean(NamedTuple):
    """The mean, and the clients after they answered.

    Fields:
        turn: the models and the clients present, without those that could not answer.
        voters: int32 [K], the clients in the sum.
        mean: float32 [U, C], z; 0 outside of d.
        weight: float32 [U], 1 in d where there is a z.
    """

    turn: ClientFit
    voters: np.ndarray
    mean: np.ndarray
    weight: np.ndarray

    @property
    def num_voters(self) -> int:
        """Number of clients in the sum."""
        return int(np.sum(self.voters >= 0))


def public_mean(
    turn: ClientFit,
    learner: Learner,
    question: Question,
    public: np.ndarray,
    size: int,
    num_classes: int,
    sums: ConsensusSums,
    communication: Communication,
    *,
    draw_key: jax.Array,
    key: jax.Array,
) -> PublicMean:
    """Draw d, and return the mean answer of a round's clients.

    Args:
        turn: the clients and their models.
        learner: of the models.
        question: "scores" or "predict_proba".
        public: U, [U, ...].
        size: |d|.
        num_classes: C.
        sums: how the server adds answers.
        communication: counts the answers, the mean, and the numbers of the examples in d.
        draw_key: for d.
        key: for new networks of clients whose answers are invalid.
    """
    drawn = np.sort(np.asarray(jax.random.permutation(draw_key, len(public)))[:size])
    turn, answers = asked(turn, learner, question, public[drawn], num_classes, key)
    voters = speaking(turn.client_id, answers)
    total = summed_answers(answers, voters, sums, communication)
    mean = np.zeros((len(public), num_classes), np.float32)
    mean[drawn] = total / max(int(np.sum(voters >= 0)), 1)
    # Clients without answers, or with a new network, learn too; nobody learns from a sum not opened.
    is_known = bool(total.any())
    listening = int(np.sum(turn.client_id >= 0)) if is_known else 0
    communication.down("mean", listening * _FLOAT * (total.size + size))
    weight = np.zeros(len(public), np.float32)
    weight[drawn] = is_known
    return PublicMean(turn, voters, mean, weight)
