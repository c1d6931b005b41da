"""What answers to public examples show of clients that have models of their own.

Whoever chooses the public examples chooses what is answered (the forged set of FedCT's Appendix E.1). Labels
are seen as marks of classes, or as what noise made of these; of scores the softmax is taken; of a sum over
clients their mean is all that is seen.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jaxfed.federation.cohort import Array
from jaxfed.federation.exposure import NOBODY, SERVER, View
from jaxfed.learners.answers import Question, answers_of
from jaxfed.learners.learner import Learner, State

# Labels int32 [n] of a client, and its number -> what it sends in their place, numbers [n, C].
Released = Callable[[np.ndarray, int], np.ndarray]

_OF_ALL = np.asarray([-1], np.int32)


def labels_shown(
    learner: Learner,
    state: State,
    client_id: Array,
    num_classes: int,
    *,
    message: str = "labels",
    summed: bool = False,
    released: Released | None = None,
) -> View:
    """Labels of clients int32 [K], -1 of rows without one, or their histogram; `released` with noise."""
    ids = _present(client_id)

    def send(labels: np.ndarray, client: int) -> np.ndarray:
        return labels[:, None] == np.arange(num_classes)

    def answers(x: np.ndarray) -> np.ndarray:
        labels, _ = answers_of(learner, "predict", state, ids, x, num_classes)
        sent = [(released or send)(own, int(one)) for own, one in zip(labels, ids, strict=True)]
        return _seen(np.stack(sent), summed)

    return View(message, "counts" if summed else "labels", _OF_ALL if summed else ids, answers)


def probabilities_shown(
    learner: Learner,
    state: State,
    client_id: Array,
    num_classes: int,
    *,
    message: str = "probabilities",
    question: Question = "predict_proba",
    summed: bool = False,
    leaves: bool = True,
) -> View:
    """Probabilities of clients int32 [K], -1 of rows without one, or their mean.

    The question may be "scores". A learner of labels alone gives marks of these.
    """
    ids = _present(client_id)
    adversary = SERVER if leaves else NOBODY
    if getattr(learner, question) is None:
        view = labels_shown(learner, state, ids, num_classes, message=message)
        return view._replace(leaves=leaves, adversary=adversary)

    def answers(x: np.ndarray) -> np.ndarray:
        seen = _seen(answers_of(learner, question, state, ids, x, num_classes)[0], summed)
        if question != "scores":
            return seen
        # Here, because it takes a sixth of a second to import, which runs without views need not wait for.
        from scipy.special import softmax

        shown: np.ndarray = softmax(seen, axis=-1)
        return shown

    return View(
        message,
        "probabilities",
        _OF_ALL if summed else ids,
        answers,
        leaves=leaves,
        adversary=adversary,
    )


def _present(client_id: Array) -> np.ndarray:
    ids = np.asarray(client_id, np.int32)
    return np.sort(ids[ids >= 0])


def _seen(sent: np.ndarray, summed: bool) -> np.ndarray:
    values = np.asarray(sent, np.float32)
    return values.mean(axis=0, keepdims=True) if summed else values
