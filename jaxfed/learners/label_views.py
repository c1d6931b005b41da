"""Attack surface of clients' answers to public examples, where clients have separate models.

The attacker chooses the public examples, and so the queries (the forged set of FedCT's Appendix E.1). It
observes labels as class indicators, possibly noisy, scores after a softmax, and of a sum over clients the
mean.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jaxfed.federation.attack_surface import NOBODY, SERVER, View
from jaxfed.federation.cohort import Array
from jaxfed.learners.answers import Question, answers_of
from jaxfed.learners.learner import Learner, State

# Labels int32 [n] of a client, and its number -> the numbers [n, C] that it sends in their place.
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
    """View of the labels of clients int32 [K] (-1: no client), or their histogram; `released` adds noise."""
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
    """View of the probabilities of clients int32 [K] (-1: no client), or of their mean.

    The question may be "scores". A learner without probabilities gives indicators of its labels.
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
        # Imported here, since it takes a sixth of a second, and runs without views do not need it.
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
