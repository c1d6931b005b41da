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
                                     (`jaxfed.privacy.membership`)
    consensus_accuracy               of the labels that clients agreed on, by classes of public examples that
                                     the simulation alone knows; an abstention is wrong

and the first five on the validation split, `validation_accuracy` and so on. A client that has no model yet
is wrong everywhere; train accuracy is over clients with labels. If no client has a model, accuracies are not
reported; `has_no_model` is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from jaxfed.federation.algorithm import HAS_NO_MODEL, Metrics, Predictions
from jaxfed.federation.clients import Federation
from jaxfed.federation.evaluate import accuracy, balanced_accuracy, over_own_points
from jaxfed.federation.method import with_attributes
from jaxfed.learners.client_fit import Question, answers_of, tell
from jaxfed.learners.learner import Learner
from jaxfed.privacy.membership import gap_auc
from jaxfed.training.round.parts import Evaluation


class ClientModels(NamedTuple):
    """Models of all clients: the learner's state, M and C."""

    models: Any
    num_clients: int
    num_classes: int

    @property
    def everybody(self) -> np.ndarray:
        """int32 [M], the clients' numbers."""
        return np.arange(self.num_clients, dtype=np.int32)


def judged_by_clients(
    learner: Learner, num_classes: int, *, has_consensus: bool = False
) -> Evaluation:
    """Build the evaluation functions of a method whose states have a learner's state, `state.learner`."""

    def read(state: Any) -> ClientModels:
        return ClientModels(state.learner, len(state.turns), num_classes)

    return judged_by(learner, read, has_consensus=has_consensus)


def judged_by(
    learner: Learner, read: Callable[[Any], ClientModels], *, has_consensus: bool = False
) -> Evaluation:
    """Build the evaluation functions of a method whose clients have separate models.

    Args:
        learner: predicts by `ClientModels.models`.
        read: a state -> the clients' models.
        has_consensus: states have a `label` of the public examples.

    `predict` returns the mean of the probabilities of clients that have a model or, if learners give labels
    alone, the shares of their votes; zeros if no client has a model.

    Cost: each client's predictions of the split, and of its own labeled examples.
    """
    judge = _Judge(learner, read, has_consensus)
    outputs = {"of_clients": judge.evaluate_clients, "predictions": judge.predictions}
    evaluate = with_attributes(judge.evaluate, **outputs)
    return Evaluation(evaluate, judge.validate, judge.predict)


@dataclass(frozen=True, eq=False)
class _Judge:
    """The evaluation functions; attributes as the keywords of `judged_by`."""

    learner: Learner
    read: Callable[[Any], ClientModels]
    has_consensus: bool

    def validate(self, state: Any, federation: Federation) -> Metrics:
        """Metrics of the validation split."""
        split = federation.validation
        if not len(split):
            return {}
        clients = self.read(state)
        labels = self.answers("predict", clients, federation.x[split])
        return quality("validation", labels, clients, federation.y[split])

    def evaluate(self, state: Any, federation: Federation) -> Metrics:
        """Metrics of the test split, of clients' own labels, and of the consensus."""
        clients = self.read(state)
        consensus = consensus_quality(state, federation) if self.has_consensus else {}
        one, _ = answers_of(
            *(self.learner, "predict", clients.models, clients.everybody, federation.x[:1]),
            clients.num_classes,
        )
        if not (one >= 0).any():
            return {**consensus, HAS_NO_MODEL: True}
        metrics: Metrics = {}
        if len(test := federation.test):
            labels = self.answers("predict", clients, federation.x[test])
            metrics = quality("test", labels, clients, federation.y[test])
        trained = [
            accuracy(self.labels_by(clients, federation, client, points), federation.y[points])
            for client, points in enumerate(federation.partition.labeled)
            if len(points)
        ]
        if trained:
            metrics["train_accuracy"] = float(np.mean(trained))
            if "test_accuracy" in metrics:
                metrics["gap_vulnerability"] = gap_auc(
                    metrics["train_accuracy"], metrics["test_accuracy"]
                )
        return {**metrics, **consensus}

    def evaluate_clients(self, state: Any, federation: Federation) -> Metrics:
        """Accuracy of each client's model on its own unlabeled points."""
        return over_own_points(partial(self.labels_by, self.read(state), federation), federation)

    def predictions(self, state: Any, federation: Federation) -> Predictions:
        """Labels and confidences of all clients on the test split."""
        clients, test = self.read(state), federation.test
        # A learner's class need not be its most probable one (a support vector machine).
        labels = self.answers("predict", clients, federation.x[test])
        each = self.spreads(clients, federation.x[test])
        of_label = np.take_along_axis(each, np.maximum(labels, 0)[..., None], axis=2)[..., 0]
        return Predictions(
            client=np.repeat(clients.everybody, len(test)),
            example=np.tile(test, len(labels)),
            role=np.full(labels.size, "test"),
            label=labels.reshape(-1),
            confidence=np.where(labels >= 0, of_label, 0).reshape(-1).astype(np.float32),
        )

    def predict(self, state: Any, x: np.ndarray) -> np.ndarray:
        """Mean probabilities of the clients that have a model, float32 [n, C]."""
        each = self.spreads(self.read(state), x)
        answering = np.maximum(each.any(axis=2).sum(axis=0), 1)
        return (each.sum(axis=0) / answering[:, None]).astype(np.float32)

    def answers(
        self,
        question: Question,
        clients: ClientModels,
        x: np.ndarray,
        client_id: np.ndarray | None = None,
    ) -> np.ndarray:
        """Valid answers of these clients, by default of all; the reasons of the others are logged."""
        ids = clients.everybody if client_id is None else client_id
        answers, failed = answers_of(
            self.learner, question, clients.models, ids, x, clients.num_classes
        )
        tell(failed)
        return answers

    def labels_by(
        self, clients: ClientModels, federation: Federation, client: int, points: np.ndarray
    ) -> np.ndarray:
        """Labels of some points by one client's model."""
        one = np.asarray([client], np.int32)
        labels: np.ndarray = self.answers("predict", clients, federation.x[points], one)[0]
        return labels

    def spreads(self, clients: ClientModels, x: np.ndarray) -> np.ndarray:
        """Probabilities by all clients, float32 [M, n, C], zeros for clients without a model."""
        if self.learner.predict_proba is None:
            return _one_hot(self.answers("predict", clients, x), clients.num_classes)
        return self.answers("predict_proba", clients, x)


def quality(name: str, labels: np.ndarray, clients: ClientModels, truth: np.ndarray) -> Metrics:
    """Metrics of a split by the labels of all clients, int32 [M, n]."""
    each = [accuracy(one, truth) for one in labels]
    votes = _one_hot(labels, clients.num_classes).sum(axis=0)
    majority = np.where(votes.any(axis=1), votes.argmax(axis=1), -1)
    return {
        f"{name}_accuracy": accuracy(labels.reshape(-1), np.tile(truth, len(labels))),
        f"{name}_balanced_accuracy": float(
            np.mean([balanced_accuracy(one, truth) for one in labels])
        ),
        f"client_{name}_accuracy": each,
        f"client_{name}_accuracy_deviation": float(np.std(each)),
        f"majority_{name}_accuracy": accuracy(majority, truth),
    }


def consensus_quality(state: Any, federation: Federation) -> Metrics:
    """Accuracy of the labels that clients agreed on; {} where no class of a public example is known."""
    right = accuracy(np.asarray(state.label), federation.y[federation.public])
    return {} if np.isnan(right) else {"consensus_accuracy": right}


def _one_hot(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """float32 [..., C] of labels int [...]; zeros for -1."""
    return (labels[..., None] == np.arange(num_classes)).astype(np.float32)
