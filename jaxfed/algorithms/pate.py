"""PATE: a student learns labels of public examples from a noisy vote of teachers.

N. Papernot, M. Abadi, U. Erlingsson, I. Goodfellow, K. Talwar. "Semi-supervised Knowledge Transfer for Deep
Learning from Private Training Data". ICLR 2017 (arXiv 1610.05755). Clients' models are teachers. For a
public example u with n_c votes for class c,

    L_u = argmax_c { n_c(u) + Lap(1 / gamma) },        a query is 2 gamma-private for each client's labels

and a student at the server learns (U, L). FedCT compares with PATE (Table 4): teachers are trained to
the end, and each vote is a plain majority, `gamma` 0. Differences: the server is the aggregator and is
trusted; |U| queries are composed by the worst case, 2 gamma |U| (`epsilon`, and `epsilon_approximate` at
delta). The paper's data-dependent bound is smaller where teachers agree. The epsilon does not cover the exact
statistics of clients' rows that scale inputs (`jaxfed.config.data.simulation`).

Noise is drawn from the experiment's seed. This measures its cost in accuracy; it protects nobody against a
party that knows the seed.

An upload is |U| labels of ceil(log2 C) bits. Nothing comes back: the student is the result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.algorithms.centralized import over_all
from jaxfed.data import Partition
from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication, label_bytes
from jaxfed.federation.method import method
from jaxfed.learners.client_fit import (
    asked,
    check_clients,
    count,
    first_turns,
    speaking,
    take_turn,
    with_turns,
)
from jaxfed.learners.evaluation import judged_by_clients
from jaxfed.learners.learner import Learner, PublicTargets
from jaxfed.privacy.composition import approximate, basic
from jaxfed.settings import Count, NotNegative, Probability
from jaxfed.training.consensus import ABSTAINED, largest_share, vote_histogram


class PateState(NamedTuple):
    """State before a round.

    Fields:
        teachers: the models of all clients.
        learner: the student.
        label: int32 [U], L; -1 before the vote.
        weight: float32 [U], 1 where there is a label.
        teacher_turns: int32 [M], rounds in which each client was a teacher.
        turns: int32 [1], the student's rounds.
        round: int32, rounds done.
    """

    teachers: Any
    learner: Any
    label: np.ndarray
    weight: np.ndarray
    teacher_turns: np.ndarray
    turns: np.ndarray
    round: np.ndarray


@method(
    title="PATE",
    cites="Papernot, Abadi, Erlingsson, Goodfellow, Talwar, ICLR 2017",
    leaves="its labels of the public examples, once",
    takes=("learner", "server_learner", "public", "num_classes"),
)
def pate(
    *,
    learner: Learner,
    server_learner: Learner,
    public: np.ndarray,
    num_classes: int,
    teacher_rounds: Count = 1,
    steps: Count = 50,
    student_steps: Count = 50,
    gamma: NotNegative = 0.0,
    delta: Probability = 1e-5,
) -> FederatedAlgorithm:
    """Teachers at clients, then one vote, then a student at the server.

    Args:
        learner: of the teachers.
        server_learner: of the student.
        public: U, [U, ...].
        num_classes: C.
        teacher_rounds: rounds that teachers train in; they vote at the end of the last of them, in which the
            student begins. Only teachers in the cohort of that round vote.
        steps: steps of a teacher in each of these rounds.
        student_steps: steps of the student in each round from the vote on.
        gamma: parameter of the noise on votes; smaller is more noise, 0 is none.
        delta: delta at which `epsilon_approximate` composes.

    `test_accuracy` is the student's; `train_accuracy` on all clients' labels, which it never saw.

    Raises:
        UsageError: `init` gets a federation without public examples, with new points at clients, or with
            labels at the server.
    """

    def init(key: jax.Array, federation: Federation) -> PateState:
        check_clients(federation, num_classes, public)
        teacher_key, student_key = jax.random.split(key)
        return PateState(
            teachers=learner.init(teacher_key, federation),
            learner=server_learner.init(student_key, _without_examples(federation)),
            label=np.full(len(public), ABSTAINED, np.int32),
            weight=np.zeros(len(public), np.float32),
            teacher_turns=first_turns(federation),
            turns=np.zeros(1, np.int32),
            round=count(0),
        )

    def round(state: PateState, cohort: Cohort, key: jax.Array) -> tuple[PateState, Metrics]:
        number, metrics, communication = int(state.round) + 1, Metrics(), Communication()
        if number <= teacher_rounds:
            state, more = teach(state, cohort, key, communication)
            metrics |= more
        if number >= teacher_rounds:
            state, more = study(state, cohort, key)
            metrics |= more
        metrics["communication"] = communication.metrics()
        return state._replace(round=count(number)), metrics

    def teach(
        state: PateState, cohort: Cohort, key: jax.Array, communication: Communication
    ) -> tuple[PateState, Metrics]:
        teacher_key, noise_key, _ = jax.random.split(key, 3)
        turn = take_turn(learner, state.teachers, cohort, None, teacher_key, steps)
        if int(state.round) + 1 == teacher_rounds:
            turn, votes = asked(turn, learner, "predict", public, num_classes)
            label, weight = noisy_vote(
                votes,
                speaking(turn.client_id, votes),
                noise_key,
                communication,
                num_classes=num_classes,
                gamma=gamma,
            )
            state = state._replace(label=label, weight=weight)
        teacher_turns = with_turns(state.teacher_turns, turn.client_id)
        return state._replace(teachers=turn.state, teacher_turns=teacher_turns), turn.metrics

    def study(state: PateState, cohort: Cohort, key: jax.Array) -> tuple[PateState, Metrics]:
        *_, student_key = jax.random.split(key, 3)
        targets = PublicTargets(public, state.label, state.weight)
        turn = take_turn(
            *(server_learner, state.learner, _nobody(cohort), targets),
            *(student_key, student_steps),
        )
        metrics = {f"student_{name}": value for name, value in turn.metrics.items()}
        if gamma:
            spent = 2 * gamma, len(public)
            metrics |= {"epsilon": basic(*spent), "epsilon_approximate": approximate(*spent, delta)}
        turns = with_turns(state.turns, turn.client_id)
        return state._replace(learner=turn.state, turns=turns), metrics

    judged = judged_by_clients(server_learner, num_classes, has_consensus=True)
    of_all = judged._replace(evaluate=over_all(judged.evaluate))
    return FederatedAlgorithm(init, round, *of_all)


def noisy_vote(
    votes: np.ndarray,
    voters: np.ndarray,
    key: jax.Array,
    communication: Communication,
    *,
    num_classes: int,
    gamma: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Labels L, int32 [U], by a noisy vote of the teachers, and their weights.

    `votes` are int32 [K, U], `voters` int32 [K], -1 for a row without a teacher. Ties go to the smallest
    class. Where nobody votes, L is -1 with weight 0.
    """
    sent = votes[voters >= 0]
    num_values = num_classes + (sent < 0).any(axis=1).astype(int)
    communication.up("votes", sum(label_bytes(sent.shape[1], int(one)) for one in num_values))
    counts = np.asarray(vote_histogram(jnp.asarray(votes), jnp.asarray(voters), num_classes))
    if not gamma or not (voters >= 0).any():
        agreed = largest_share(counts)
        return np.asarray(agreed.label), np.asarray(agreed.weight)
    noise = np.asarray(jax.random.laplace(key, counts.shape)) / gamma
    label = np.argmax(counts + noise, axis=1).astype(np.int32)
    return label, np.ones(len(label), np.float32)


def _without_examples(federation: Federation) -> Federation:
    """Return a federation of one client without examples, which stands for the student."""
    nothing = (np.zeros(0, np.int64),)
    return federation.with_partition(Partition(nothing, nothing, nothing))


def _nobody(cohort: Cohort) -> Cohort:
    """Cohort of that client alone, with a row of padding."""
    row = np.asarray(cohort.x)[:1, :1]
    y, mask = np.full((1, 1), -1, np.int32), np.zeros((1, 1), bool)
    return Cohort(np.zeros(1, np.int32), np.zeros_like(row), y, mask)
