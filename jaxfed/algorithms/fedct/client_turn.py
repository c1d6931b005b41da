"""The client's part of a round of FedCT: train on its labels and on P, label U, add noise (lines 3 to 6).

    turn = client_turn(work, model, cohort, message, fit_key, noise_key)

A function of what the client stores, its model, and of what it receives, the message. In a simulation it is
called with a cohort, whose models are trained in one program; a client alone is a cohort of one. The other
clients change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from jaxfed.algorithms.fedct.label_noise import released_marks
from jaxfed.algorithms.fedct.label_privacy import LabelPrivacy
from jaxfed.federation.cohort import Cohort
from jaxfed.learners.answers import Question
from jaxfed.learners.client_fit import ClientFit, asked, speaking, take_turn
from jaxfed.learners.learner import Learner, State, Taught
from jaxfed.privacy import randomized_response as rr


@dataclass(frozen=True, eq=False)
class ClientWork:
    """A client's settings, the same in every round.

    Attributes:
        learner: A.
        question: what is asked of the learner, labels or probabilities.
        public: U, [U, ...].
        num_classes: C.
        steps: b, local steps of a round.
        privacy: noise on labels.
    """

    learner: Learner
    question: Question
    public: np.ndarray
    num_classes: int
    steps: int
    privacy: LabelPrivacy


class Message(NamedTuple):
    """Message of the server at the start of a round: P, and how much noise hides.

    Fields:
        label: int32 [U], L; -1 where clients abstained, or have not voted yet.
        weight: float32 [U], how much an example of P counts.
        rows: r, labels that noise hides; 0 without noise, or if it is not known yet.
    """

    label: np.ndarray
    weight: np.ndarray
    rows: int = 0


class ClientTurn(NamedTuple):
    """A client's round: its model, which it stores, and what it sends.

    Fields:
        fit: the models after local steps, and the clients that sit out.
        answers: int32 [K, U] or float32 [K, U, C], the labels or probabilities before noise.
        voters: int32 [K], the clients that send their answers, -1 in other rows.
        marks: bool [U, C] of each client that sends, labels with noise in the place of its answers; None:
            answers are sent.
    """

    fit: ClientFit
    answers: np.ndarray
    voters: np.ndarray
    marks: list[np.ndarray] | None


def client_turn(
    work: ClientWork,
    model: State,
    cohort: Cohort,
    message: Message,
    fit_key: jax.Array,
    noise_key: jax.Array,
) -> ClientTurn:
    """Lines 3 to 6 at the clients of a cohort.

    Args:
        work: the settings.
        model: the learner's state before the round, h.
        cohort: the clients with their examples.
        message: from the server.
        fit_key: typed, the round's; a learner draws a client's numbers by the client's number.
        noise_key: typed; a client's noise is drawn from it likewise. Whoever knows it can remove the noise.

    Returns:
        The round's outcome; `marks` if there is noise, and `message.rows` tells how much it hides.
    """
    fit, answers = fitted_answers(work, model, cohort, message, fit_key)
    voters, marks = speaking(fit.client_id, answers), None
    if work.privacy.has_noise and message.rows:
        marks = noisy_marks(work, answers, voters, message.rows, noise_key)
    return ClientTurn(fit, answers, voters, marks)


def fitted_answers(
    work: ClientWork, model: State, cohort: Cohort, message: Message, key: jax.Array
) -> tuple[ClientFit, np.ndarray]:
    """Lines 3 and 5: clients train on their labels and on P, and label U: [K, U], or [K, U, C]."""
    taught = Taught(work.public, message.label, message.weight)
    fit = take_turn(work.learner, model, cohort, taught, key, work.steps)
    return asked(fit, work.learner, work.question, work.public, work.num_classes, key)


def noisy_marks(
    work: ClientWork, answers: np.ndarray, voters: np.ndarray, rows: int, key: jax.Array
) -> list[np.ndarray]:
    """Return the noisy release of each client that sends, bool [U, C]."""
    return [
        released_marks(
            work.privacy,
            rows,
            answers[place],
            len(work.public),
            work.num_classes,
            rr.from_key(jax.random.fold_in(key, int(voters[place]))),
        )
        for place in np.flatnonzero(voters >= 0).tolist()
    ]
