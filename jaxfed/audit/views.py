"""Attack surface of a round: the messages from which their receivers may infer membership of examples.

An honest-but-curious server (FedCT, arXiv 2310.05696, Appendix E.1) sees the clients' messages. A `View` is
one kind of message; for any examples it returns the answers that the receiver derives from the message. If
parameters are sent, the receiver computes the answers. If labels or probabilities of public examples are
sent, it submits the examples under attack as public ones (E.1's forged unlabeled set).

Every view names its adversary, the party or coalition that has the message:

    SERVER      the server, which follows the protocol
    MODEL       anybody with the shared model after the round, the server included
    CLIENT      one more client, without the server
    COALITION   the server and one client, who combine their messages
    NOBODY      no party but the client itself: a baseline

`jaxfed.audit.surface` has the views of each method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import softmax

from jaxfed.federation.cohort import Array
from jaxfed.kernels.devices import in_batches, rows_at_once
from jaxfed.learners.client_fit import Question, answers_of
from jaxfed.learners.learner import Learner, State
from jaxfed.training.aggregate import norm
from jaxfed.training.round.parts import Classifier

# Kinds of answers: probabilities, by a model that is seen whole ("parameters") or by its answers alone;
# class indicators 0 and 1, one row per client; shares of clients that vote for a class, noise included;
# distances to the nearest point of another client, one column.
Kind = Literal["parameters", "probabilities", "labels", "counts", "distances"]

SERVER = "server"
ANYBODY = "anybody with the model"
CLIENT = "one more client"
COALITION = "server and a client"
NOBODY = "nobody"
# The adversaries whose messages each adversary has, its own included.
SEEN_BY = {
    SERVER: (SERVER, ANYBODY),
    ANYBODY: (ANYBODY,),
    CLIENT: (CLIENT, ANYBODY),
    COALITION: (COALITION, SERVER, CLIENT, ANYBODY),
    NOBODY: (NOBODY,),
}
OF_ALL = np.asarray([-1], np.int32)  # the sender of a message that is made of all clients' examples
_GRADIENTS = 20  # at a time; each is as large as the message
_TINY = 1e-37  # below it a probability has gradient 0

# Labels int32 [n] of a client, and its number -> the numbers [n, C] that it sends instead of them.
Released = Callable[[np.ndarray, int], np.ndarray]


class View(NamedTuple):
    """One kind of message.

    Fields:
        message: its name, a word or two; the same in all rounds.
        kind: of answers.
        client: int32 [S], the sender; -1 if the message is made of all clients' examples.
        answers: x [n, ...] -> float32 [S, n, C].
        gradient_norms: x, y int32 [n] -> float32 [S, n], |grad loss(f(x), y)| by all numbers of the message,
            if these are parameters.
        shadows: x [n + m, ...], y int32 [n + m], bool [R, n] -> float32 [R, n + m, C], the answers in R
            simulated runs of the method whose labeled examples are those marked among the first n; None:
            such runs cost too much.
        adversary: the party that has the message, a key of `SEEN_BY`.
    """

    message: str
    kind: Kind
    client: np.ndarray
    answers: Callable[[np.ndarray], np.ndarray]
    gradient_norms: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    shadows: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] | None = None
    adversary: str = SERVER


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
        sent = [
            (released or send)(client_labels, int(one))
            for client_labels, one in zip(labels, ids, strict=True)
        ]
        return _seen(np.stack(sent), summed)

    return View(message, "counts" if summed else "labels", OF_ALL if summed else ids, answers)


def probabilities_shown(
    learner: Learner,
    state: State,
    client_id: Array,
    num_classes: int,
    *,
    message: str = "probabilities",
    question: Question = "predict_proba",
    summed: bool = False,
    adversary: str = SERVER,
) -> View:
    """View of the probabilities of clients int32 [K] (-1: no client), or of their mean.

    The question may be "scores", which are seen after a softmax. A learner without probabilities gives
    indicators of its labels.
    """
    ids = _present(client_id)
    if getattr(learner, question) is None:
        view = labels_shown(learner, state, ids, num_classes, message=message)
        return view._replace(adversary=adversary)

    def answers(x: np.ndarray) -> np.ndarray:
        seen = _seen(answers_of(learner, question, state, ids, x, num_classes)[0], summed)
        shown: np.ndarray = softmax(seen, axis=-1) if question == "scores" else seen
        return shown

    client = OF_ALL if summed else ids
    return View(message, "probabilities", client, answers, adversary=adversary)


def _present(client_id: Array) -> np.ndarray:
    ids = np.asarray(client_id, np.int32)
    return np.sort(ids[ids >= 0])


def _seen(sent: np.ndarray, summed: bool) -> np.ndarray:
    values = np.asarray(sent, np.float32)
    return values.mean(axis=0, keepdims=True) if summed else values


def parameter_views(classifier: Classifier) -> Callable[[str, Sequence[int], Sequence[Any]], View]:
    """Return a function: message, clients, what each has sent -> view of messages that are parameters.

    Answers are predictions by them. Gradients are those of the predictions' cross-entropy with respect to all
    numbers of the message: parameters, running statistics, prototypes.
    """
    probabilities = jax.jit(classifier.probabilities)
    norms = jax.jit(_gradient_norms(classifier))

    def view(message: str, client: Sequence[int], seen: Sequence[Any]) -> View:
        def answers(x: np.ndarray) -> np.ndarray:
            asked = (partial(probabilities, one) for one in seen)
            return _stacked([in_batches(each, x, rows_at_once()) for each in asked])

        def gradients(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            def of_rows(one: Any, rows: np.ndarray) -> jax.Array:
                per_row: jax.Array = norms(one, x[rows], y[rows])
                return per_row

            rows = np.arange(len(x))
            return _stacked([in_batches(partial(of_rows, one), rows, _GRADIENTS) for one in seen])

        return View(message, "parameters", np.asarray(client, np.int32), answers, gradients)

    return view


def _stacked(each: Sequence[Any]) -> np.ndarray:
    return np.stack(each).astype(np.float32)


def _gradient_norms(classifier: Classifier) -> Callable[[Any, jax.Array, jax.Array], jax.Array]:
    """Return a function: message, x [n, ...], y int32 [n] -> float32 [n]; cost: one gradient per example."""

    def norms(needed: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        def loss(needed: Any, x: jax.Array, y: jax.Array) -> jax.Array:
            probability = classifier.probabilities(needed, x[None])[0, y]
            return -jnp.log(jnp.maximum(probability, _TINY))

        def one(x: jax.Array, y: jax.Array) -> jax.Array:
            gradient = jax.tree.leaves(jax.grad(loss, allow_int=True)(needed, x, y))
            numbers = [leaf for leaf in gradient if jnp.issubdtype(leaf.dtype, jnp.floating)]
            return norm([leaf.astype(jnp.float32) for leaf in numbers])

        return jax.vmap(one)(x, y)

    return norms
