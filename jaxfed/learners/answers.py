"""Predictions that clients send, and the check that they are valid.

    answers, failed = answers_of(learner, "predict", state, client_id, x, num_classes)

from each client, for all examples x [n, ...]:

    predict          integers [n] of -1, 0, ..., C - 1
    predict_proba    numbers [n, C] in [0, 1], up to a rounding of 10^-3
    scores           numbers [n, C] of absolute value at most 10^4: one client's larger ones would dominate
                     the mean

Anything else would spoil the round of all clients: a mean that contains one NaN is NaN. Well-formed but wrong
answers, such as all labels in one class, are valid.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.cohort import Array
from jaxfed.learners.learner import SPOILED, Learner, LearnerError, State

Question = Literal["predict", "predict_proba", "scores"]

_KINDS = {"predict": "labels", "predict_proba": "probabilities", "scores": "scores"}

LARGEST_SCORE = 1e4
_ROUNDING = 1e-3


def check_answers(learner: Learner, question: Question) -> None:
    """Check that a method's learner can be asked this.

    Raises:
        UsageError: it cannot.
    """
    if getattr(learner, question) is None:
        kind = _KINDS[question]
        raise UsageError(f"has no {kind}", key="network", allowed=f"use a learner with {kind}")


def answers_of(
    learner: Learner,
    question: Question,
    state: State,
    client_id: Array,
    x: Array,
    num_classes: int,
) -> tuple[np.ndarray, dict[int, str]]:
    """Return the valid answers of clients int32 [K], and the reasons of those that failed.

    Returns:
        int32 [K, n] of labels, else float32 [K, n, C]; -1, or zeros, for clients that failed and rows without
        a client (id -1). And client -> reason, in one line.
    """
    ids, failed = np.array(client_id, np.int32), dict[int, str]()
    while True:
        try:
            given = getattr(learner, question)(state, ids, x)
            break
        except LearnerError as error:
            there = {client: why for client, why in error.failed.items() if client in ids}
            if not there:
                raise
            failed |= there
            ids[np.isin(ids, list(there))] = -1
    answers = np.full((len(ids), len(x)), -1, np.int32)
    if question != "predict":
        answers = np.zeros((len(ids), len(x), num_classes), np.float32)
    # A list is read row by row: a row of another length is one client's fault.
    rows = given if isinstance(given, (list, tuple)) else np.atleast_1d(given)
    for place, client in enumerate(ids.tolist()):
        if client < 0:
            continue
        if len(rows) != len(ids):
            failed[client] = f"answers {len(rows)} rows where each of {len(ids)} clients has one"
            continue
        row = np.asarray(rows[place])
        why = why_no_answer(row, question, len(x), num_classes)
        if why:
            failed[client] = why
        else:
            answers[place] = row
    return answers, failed


def why_no_answer(
    answer: np.ndarray, question: Question, num_examples: int, num_classes: int
) -> str:
    """Check one client's answer for `num_examples` examples; the error in one line, "" if it is valid."""
    shape: tuple[int, ...] = (num_examples,)
    kind: Any = np.integer
    if question != "predict":
        shape, kind = (num_examples, num_classes), np.floating
    if answer.shape != shape:
        return f"answers an array {answer.shape}; use {shape}"
    if not np.issubdtype(answer.dtype, kind):
        return f"answers {answer.dtype}; use {'integers' if kind is np.integer else 'floats'}"
    if not np.isfinite(answer).all() or (question == "predict" and (answer == SPOILED).any()):
        return "answers from scores that are nan or infinite"
    if question == "predict":
        return _outside(answer, -1, num_classes - 1, "class")
    if question == "predict_proba":
        return _outside(answer, -_ROUNDING, 1 + _ROUNDING, "probability")
    return _outside(answer, -LARGEST_SCORE, LARGEST_SCORE, "score")


def _outside(answer: np.ndarray, least: float, most: float, name: str) -> str:
    wrong = (answer < least) | (answer > most)
    if not wrong.any():
        return ""
    return f"answers the {name} {answer[wrong][0]:g}; use {round(least)} to {round(most)}"
