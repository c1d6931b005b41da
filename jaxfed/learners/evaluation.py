"""Evaluation of states with a separate model, of any kind, at each client.

    test_accuracy                    mean over clients of their own models' accuracy on the test split (ACC of
                                     FedCT, arXiv 2310.05696)
    test_balanced_accuracy           the same mean of balanced accuracies
    client_test_accuracy             of each client's own model, a list (its Figures 2, 3 and 7)
    client_test_accuracy_deviation   over the clients, divisor M (the same figures)
    majority_test_accuracy           of the clients' majority vote, ties to the smallest class
    train_accuracy                   mean over clients of their own models' accuracy on their own labels
    gap_vulnerability                1/2 + (train_accuracy - test_accuracy) / 2: ROC AUC of the attack that
                                     takes correctly classified examples for members
                                     (`jaxfed.privacy.membership.single_model`)
    consensus_accuracy               of the labels that clients agreed on, by classes of public examples that
                                     the simulation alone knows; an abstention is wrong

and the first five on the validation split, `validation_accuracy` and so on. A client that has no model yet
is wrong everywhere; train accuracy is over clients with labels. If no client has a model, accuracies are not
reported; `has_no_model` is, and a warning is logged.

The table of predictions has a row for each client and test example.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from absl import logging

from jaxfed.federation.algorithm import HAS_NO_MODEL, Metrics, Predictions
from jaxfed.federation.clients import Federation
from jaxfed.federation.evaluate import accuracy, balanced_accuracy, over_clients
from jaxfed.learners.answers import Question, answers_of
from jaxfed.learners.client_fit import tell
from jaxfed.learners.learner import Learner
from jaxfed.privacy.membership.single_model import gap_auc
from jaxfed.training.round.evaluation import Evaluation
from jaxfed.training.round.prediction_cache import LastAnswer


class LearnersState(Protocol):
    """Attributes that the evaluation needs of a method's state."""

    @property
    def learner(self) -> Any:
        """The models, of all M clients."""

    @property
    def turns(self) -> np.ndarray:
        """int32 [M], rounds that each client took part in."""

    @property
    def round(self) -> np.ndarray:
        """int32, rounds done."""


def judged_by_clients(
    learner: Learner, num_classes: int, *, has_consensus: bool = False
) -> Evaluation:
    """Build the evaluation functions of a method whose clients have separate models.

    Args:
        learner: the learner; its state is `state.learner`.
        num_classes: C.
        has_consensus: states have a `label` of the public examples.

    `predict` returns the mean of the probabilities of clients that have a model or, if learners give labels
    alone, the shares of their votes; zeros if no client has a model.

    Cost: each client's predictions of the split, and of its own labeled examples. `predictions` reuses the
    test labels of the state that `evaluate` last measured.
    """
    judge = _Judge(learner, num_classes, has_consensus, LastAnswer[np.ndarray]())
    return Evaluation(
        judge.evaluate, judge.validate, judge.evaluate_clients, judge.predictions, judge.predict
    )


@dataclass(frozen=True, eq=False)
class _Judge:
    """The evaluation functions; attributes as the keywords of `judged_by_clients`.

    `measured` holds the test labels of the state that `evaluate` last measured.
    """

    learner: Learner
    num_classes: int
    has_consensus: bool
    measured: LastAnswer[np.ndarray]

    def validate(self, state: LearnersState, federation: Federation) -> Metrics:
        """Metrics of the validation split."""
        split = federation.validation
        if not len(split):
            return {}
        said = self.labels(state, federation.x[split])
        return self.quality("validation", said, federation.y[split])

    def evaluate(self, state: LearnersState, federation: Federation) -> Metrics:
        """Metrics of the test split, of clients' own labels, and of the consensus."""
        consensus = consensus_quality(state, federation) if self.has_consensus else {}
        if not self.has_any_model(state, federation):
            return {**consensus, HAS_NO_MODEL: True}
        metrics: Metrics = {}
        if len(test := federation.test):
            said = self.labels(state, federation.x[test])
            self.measured.keep(state, federation, said)
            metrics = self.quality("test", said, federation.y[test])
        labeled = federation.partition.labeled
        trained = [
            accuracy(own, federation.y[points])
            for own, points in zip(self.on_own(state, federation, labeled), labeled, strict=True)
            if len(points)
        ]
        if trained:
            metrics["train_accuracy"] = float(np.mean(trained))
            if "test_accuracy" in metrics:
                metrics["gap_vulnerability"] = gap_auc(
                    metrics["train_accuracy"], metrics["test_accuracy"]
                )
        return {**metrics, **consensus}

    def evaluate_clients(self, state: LearnersState, federation: Federation) -> Metrics:
        """Accuracy of each client's model on its own unlabeled points."""
        unlabeled = federation.partition.unlabeled
        owner = np.repeat(np.arange(federation.num_clients), list(map(len, unlabeled)))
        if not len(owner):
            return {}
        said = np.concatenate(self.on_own(state, federation, unlabeled))
        truth = federation.y[np.concatenate(unlabeled)]
        return over_clients("unlabeled", said, truth, owner, federation.num_clients)

    def predictions(self, state: LearnersState, federation: Federation) -> Predictions:
        """Labels and confidences of all clients on the test split."""
        test = federation.test
        said = self.measured.taken(state, federation)
        if said is None:
            said = self.labels(state, federation.x[test])
        # A learner whose class need not be its most probable one (a support vector machine) gives both.
        has_more = self.learner.predict_proba is not None
        each = (
            self.spreads(state, federation.x[test])
            if has_more
            else _one_hot(said, self.num_classes)
        )
        of_label = np.take_along_axis(each, np.maximum(said, 0)[..., None], axis=2)[..., 0]
        return Predictions(
            client=np.repeat(_clients(state), len(test)),
            example=np.tile(test, len(said)),
            role=np.full(said.size, "test"),
            label=said.reshape(-1),
            confidence=np.where(said >= 0, of_label, 0).reshape(-1).astype(np.float32),
        )

    def predict(self, state: LearnersState, x: np.ndarray) -> np.ndarray:
        """Mean probabilities of the clients that have a model, float32 [n, C]."""
        each = self.spreads(state, x)
        answering = np.maximum(each.any(axis=2).sum(axis=0), 1)
        return (each.sum(axis=0) / answering[:, None]).astype(np.float32)

    def answers(
        self, question: Question, state: LearnersState, x: np.ndarray, client_id: np.ndarray
    ) -> np.ndarray:
        """Valid answers of these clients; the reasons of the others are logged."""
        answers, failed = answers_of(
            self.learner, question, state.learner, client_id, x, self.num_classes
        )
        tell(self.learner, failed)
        return answers

    def labels(self, state: LearnersState, x: np.ndarray) -> np.ndarray:
        """Labels by all clients, int32 [M, n]."""
        return self.answers("predict", state, x, _clients(state))

    def spreads(self, state: LearnersState, x: np.ndarray) -> np.ndarray:
        """Probabilities by all clients, float32 [M, n, C], zeros for clients without a model."""
        if self.learner.predict_proba is None:
            return _one_hot(self.labels(state, x), self.num_classes)
        return self.answers("predict_proba", state, x, _clients(state))

    def on_own(
        self, state: LearnersState, federation: Federation, part: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Labels of each client's own points, by its own model."""
        return [
            self.answers("predict", state, federation.x[points], np.asarray([client], np.int32))[0]
            for client, points in enumerate(part)
        ]

    def quality(self, name: str, said: np.ndarray, truth: np.ndarray) -> Metrics:
        """Metrics of a split by the labels of all clients."""
        each = [accuracy(own, truth) for own in said]
        votes = _one_hot(said, self.num_classes).sum(axis=0)
        majority = np.where(votes.any(axis=1), votes.argmax(axis=1), -1)
        return {
            f"{name}_accuracy": accuracy(said.reshape(-1), np.tile(truth, len(said))),
            f"{name}_balanced_accuracy": float(
                np.mean([balanced_accuracy(own, truth) for own in said])
            ),
            f"client_{name}_accuracy": each,
            f"client_{name}_accuracy_deviation": float(np.std(each)),
            f"majority_{name}_accuracy": accuracy(majority, truth),
        }

    def has_any_model(self, state: LearnersState, federation: Federation) -> bool:
        """True if any client has a model; else a warning is logged."""
        learner, clients = self.learner, _clients(state)
        one, _ = answers_of(
            learner, "predict", state.learner, clients, federation.x[:1], self.num_classes
        )
        if (one >= 0).any():
            return True
        if state.round:  # before the first round this is expected
            whose = learner.alone or "of any client"
            logging.warning("no model (%s) could be fitted: there is no accuracy", whose)
        return False


def consensus_quality(state: Any, federation: Federation) -> Metrics:
    """Accuracy of the labels that clients agreed on; {} where no class of a public example is known."""
    right = accuracy(np.asarray(state.label), federation.y[federation.public])
    return {} if np.isnan(right) else {"consensus_accuracy": right}


def _clients(state: LearnersState) -> np.ndarray:
    return np.arange(len(state.turns), dtype=np.int32)


def _one_hot(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """float32 [..., C] of labels int [...]; zeros for -1."""
    return (labels[..., None] == np.arange(num_classes)).astype(np.float32)
