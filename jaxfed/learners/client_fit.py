"""One round of clients with separate learners: each takes its local steps, then predicts.

A client whose learner cannot be fitted, or whose answers are invalid, sits out the rest of the round. The
reason is logged in one line, and the others continue without it. Its model stays as it was. Valid answers of
a client for n examples are

    predict          integers [n] of -1, 0, ..., C - 1
    predict_proba    numbers [n, C] in [0, 1], up to a rounding of 10^-3
    scores           numbers [n, C] of absolute value at most 10^4: one client's larger ones would dominate
                     the mean

Anything else would spoil the round of all clients: a mean that contains one NaN is NaN. Well-formed but wrong
answers, such as all labels in one class, are valid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

import jax
import numpy as np
from absl import logging

from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import Metrics
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Array, Cohort, arranged
from jaxfed.federation.communication import Communication
from jaxfed.federation.method import labels_elsewhere
from jaxfed.learners.learner import SPOILED, Learner, PublicTargets, State, check_classes
from jaxfed.training.consensus import ConsensusSums, summed_answers

Question = Literal["predict", "predict_proba", "scores"]

_KINDS = {"predict": "labels", "predict_proba": "probabilities", "scores": "scores"}

LARGEST_SCORE = 1e4
_ROUNDING = 1e-3


class ClientFit(NamedTuple):
    """The learner's state in a round after local steps; `metrics` are `failed_clients` and the fit's own."""

    state: State
    client_id: np.ndarray  # int32 [K], ascending; -1: no client, or one that sits out
    failed: np.ndarray  # int32 [F], the clients that sit out since their learners failed
    metrics: Metrics

    def without(self, clients: Iterable[int]) -> ClientFit:
        """Mark clients as failed."""
        clients = list(clients)
        failed = np.append(self.failed, np.asarray(clients, np.int32))
        return self._replace(
            client_id=np.where(np.isin(self.client_id, clients), -1, self.client_id),
            failed=failed,
            metrics={**self.metrics, "failed_clients": len(failed)},
        )


def take_turn(
    learner: Learner,
    state: State,
    cohort: Cohort,
    targets: PublicTargets | None,
    key: jax.Array,
    steps: int,
) -> ClientFit:
    """Train the cohort's models (`Fit`); clients come in ascending order, whatever the cohort's order."""
    cohort = arranged(cohort)
    fitted = learner.fit(state, cohort, targets, key, steps)
    for client, why in fitted.failed.items():
        logging.warning("client %d: cannot be fitted: %s", client, why)
    metrics = dict(fitted.metrics)
    if not math.isfinite(metrics.get("train_loss", 0.0)):
        del metrics["train_loss"]
    ids = np.asarray(cohort.client_id, np.int32)
    turn = ClientFit(fitted.state, ids, np.zeros(0, np.int32), {"failed_clients": 0, **metrics})
    return turn.without(fitted.failed)


def asked(
    turn: ClientFit, learner: Learner, question: Question, x: Array, num_classes: int
) -> tuple[ClientFit, np.ndarray]:
    """Return the turn without clients that fail, and answers [K, n, ...]; -1 or 0 of those that sit out."""
    answers, failed = answers_of(learner, question, turn.state, turn.client_id, x, num_classes)
    tell(failed)
    return turn.without(failed), answers


def check_answers(learner: Learner, question: Question) -> None:
    """Check that a method's learner can be asked this.

    Raises:
        UsageError: it cannot.
    """
    if getattr(learner, question) is None:
        kind = _KINDS[question]
        raise UsageError(f"has no {kind}", key="network", allowed=f"use a learner with {kind}")


def answers_of(
    learner: Learner, question: Question, state: State, client_id: Array, x: Array, num_classes: int
) -> tuple[np.ndarray, dict[int, str]]:
    """Return the valid answers of clients int32 [K], and the reasons of those that failed, in one line.

    Labels int32 [K, n], else float32 [K, n, C]; -1, or zeros, for clients that failed and rows without a
    client (id -1).
    """
    ids, failed = np.asarray(client_id, np.int32), dict[int, str]()
    answer = getattr(learner, question)(state, ids, x)
    answers = np.full((len(ids), len(x)), -1, np.int32)
    if question != "predict":
        answers = np.zeros((len(ids), len(x), num_classes), np.float32)
    # A list is read row by row: a row of another length is one client's fault.
    rows = answer if isinstance(answer, (list, tuple)) else np.atleast_1d(answer)
    for index, client in enumerate(ids.tolist()):
        if client < 0:
            continue
        if len(rows) != len(ids):
            failed[client] = f"answers {len(rows)} rows where each of {len(ids)} clients has one"
            continue
        row = np.asarray(rows[index])
        why = why_no_answer(row, question, len(x), num_classes)
        if why:
            failed[client] = why
        else:
            answers[index] = row
    return answers, failed


def why_no_answer(
    answer: np.ndarray, question: Question, num_examples: int, num_classes: int
) -> str:
    """Check one client's answer for `num_examples` examples; the error in one line, "" if it is valid."""
    kind, least, most, name = {
        "predict": (np.integer, -1, num_classes - 1, "class"),
        "predict_proba": (np.floating, -_ROUNDING, 1 + _ROUNDING, "probability"),
        "scores": (np.floating, -LARGEST_SCORE, LARGEST_SCORE, "score"),
    }[question]
    shape = (num_examples,) if question == "predict" else (num_examples, num_classes)
    if answer.shape != shape:
        return f"answers an array {answer.shape}; use {shape}"
    if not np.issubdtype(answer.dtype, kind):
        return f"answers {answer.dtype}; use {'integers' if kind is np.integer else 'floats'}"
    if not np.isfinite(answer).all() or (question == "predict" and (answer == SPOILED).any()):
        return "answers from scores that are nan or infinite"
    wrong = (answer < least) | (answer > most)
    if not wrong.any():
        return ""
    return f"answers the {name} {answer[wrong][0]:g}; use {round(least)} to {round(most)}"


def tell(failed: dict[int, str]) -> None:
    """Log one line for each client without valid answers."""
    for client, why in failed.items():
        logging.warning("client %d: %s", client, why)


def speaking(client_id: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """int32 [K]: clients with any answer, -1 for others. A client without a model yet sends nothing."""
    says = answers >= 0 if np.issubdtype(answers.dtype, np.integer) else answers != 0
    is_silent = ~says.reshape(len(answers), -1).any(axis=1)
    return np.where(is_silent, -1, client_id).astype(np.int32)


def with_turns(turns: np.ndarray, client_id: np.ndarray) -> np.ndarray:
    """Count one more turn for these clients: int32 [M], turns of each client."""
    after = np.array(turns)
    after[client_id[client_id >= 0]] += 1
    return after


class PublicMean(NamedTuple):
    """The mean, and the clients present, without those that could not answer."""

    turn: ClientFit
    voters: np.ndarray  # int32 [K], the clients in the sum
    mean: np.ndarray  # float32 [U, C], z; 0 outside of d
    weight: np.ndarray  # float32 [U], 1 in d where there is a z

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
    key: jax.Array,
) -> PublicMean:
    """Draw d from U, and return the mean answer of a round's clients, z(u) = (1 / K) sum_k f_k(u), u in d.

    f are scores (FedMD) or probabilities (DS-FL) of the round's clients that have a model.

    Args:
        turn: the clients and their models.
        learner: of the models.
        question: "scores" or "predict_proba".
        public: U, [U, ...].
        size: |d|.
        num_classes: C.
        sums: how the server adds answers.
        communication: counts the answers, the mean, and the numbers of the examples in d.
        key: for d.
    """
    drawn = np.sort(np.asarray(jax.random.permutation(key, len(public)))[:size])
    turn, answers = asked(turn, learner, question, public[drawn], num_classes)
    voters = speaking(turn.client_id, answers)
    total = summed_answers(answers, voters, sums, communication)
    mean = np.zeros((len(public), num_classes), np.float32)
    mean[drawn] = total / max(int(np.sum(voters >= 0)), 1)
    # Clients without a model learn too; nobody learns from a sum not opened.
    is_known = bool(total.any())
    listening = int(np.sum(turn.client_id >= 0)) if is_known else 0
    communication.down("mean", listening * 4 * (total.size + size))
    weight = np.zeros(len(public), np.float32)
    weight[drawn] = is_known
    return PublicMean(turn, voters, mean, weight)


def check_clients(federation: Federation, num_classes: int, public: Array | None = None) -> None:
    """Check that clients have labels of these classes, and that test and public examples exist.

    Raises:
        UsageError: names what is missing.
    """
    if any(map(len, federation.partition.new)):
        raise UsageError(
            "clients that train models need federation.test='central': here they hold new points"
        )
    if len(federation.server):
        raise labels_elsewhere("clients")
    check_classes("the method", num_classes, federation)
    if public is not None and not len(public):
        raise UsageError(
            "this method learns from public examples, and there are none: set federation.public_size"
        )
    if public is not None:
        federation.check_arrays(public, "public")


def count(number: int) -> np.ndarray:
    """A number of rounds as an array, the form in a state."""
    return np.asarray(number, np.int32)


def first_turns(federation: Federation) -> np.ndarray:
    """Return int32 [M], zero turns of each client."""
    return np.zeros(federation.num_clients, np.int32)
