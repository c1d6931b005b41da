"""Evaluation of a trained state: predictions on the validation and test splits and on clients' points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np

from jaxfed.data.client_rows import ClientRows
from jaxfed.federation.algorithm import Evaluate, Metrics, Outputs, Predict, Predictions
from jaxfed.federation.clients import Federation
from jaxfed.federation.evaluate import accuracy, balanced_accuracy, over_clients
from jaxfed.kernels.devices import in_batches, rows_at_once
from jaxfed.training.round.server_hooks import Classifier
from jaxfed.training.server.client_rows import without_tables
from jaxfed.training.server.server_state import ServerState

Answer = TypeVar("Answer")


class Evaluation(NamedTuple):
    """The evaluation functions of a `FederatedAlgorithm`, as its fields of these names."""

    evaluate: Evaluate
    validate: Evaluate
    predict: Predict
    outputs: Outputs


class LastAnswer(Generic[Answer]):
    """One-entry cache of a state's predictions on a federation's test split.

    Entries are compared by identity: nothing is hashed. At most one state is held; taking its predictions
    releases it.
    """

    def __init__(self) -> None:
        self._kept: tuple[Any, Federation, Answer] | None = None

    def keep(self, state: Any, federation: Federation, answer: Answer) -> None:
        """Store an answer in place of the one before."""
        self._kept = state, federation, answer

    def taken(self, state: Any, federation: Federation) -> Answer | None:
        """Return the answer and clear the cache; None if the cache holds another state or other examples."""
        if self._kept is None:
            return None
        of_state, of, answer = self._kept
        if of_state is not state or of.x is not federation.x or of.test is not federation.test:
            return None
        self._kept = None
        return answer


@dataclass(frozen=True, eq=False)
class ModelPredict:
    """`Predict` by a network, in batches of `rows_at_once`.

    Attributes:
        needed: state -> the part that inference needs.
        probabilities: that part, x [n, ...] -> float32 [n, C]; compiled.
    """

    needed: Callable[[ServerState], Any]
    probabilities: Callable[[Any, Any], jax.Array]

    def __call__(self, state: ServerState, x: np.ndarray) -> np.ndarray:
        """Return the probabilities of the classes, float32 [n, C]."""
        of_batch = partial(self.probabilities, self.needed(state))
        return np.asarray(in_batches(of_batch, x, rows_at_once()))


def network_evaluation(classifier: Classifier) -> Evaluation:
    """Build the evaluation functions of the server's network, which needs no clients' states."""
    names = ("statistics", "clients", "client_optimizers")
    return evaluation_by(classifier, partial(without_tables, names=names))


def evaluation_by(
    classifier: Classifier, evaluated: Callable[[ServerState], ServerState] = lambda state: state
) -> Evaluation:
    """Build the evaluation functions of a classifier; they share one compiled program.

    `evaluated` is that of `Outputs`.

    Cost: `predictions` reuses the test probabilities of the state that `evaluate` last measured.
    """
    predict = ModelPredict(classifier.needed, jax.jit(classifier.probabilities))
    measured = LastAnswer[np.ndarray]()

    def validate(state: ServerState, federation: Federation) -> Metrics:
        split = federation.validation
        if not len(split):
            return {}
        return _quality("validation", predict(state, federation.examples(split)), federation, split)

    def evaluate(state: ServerState, federation: Federation) -> Metrics:
        if not len(federation.test):
            return {}
        probability = predict(state, federation.examples(federation.test))
        measured.keep(state, federation, probability)
        return _quality("test", probability, federation, federation.test)

    def evaluate_clients(state: ServerState, federation: Federation) -> Metrics:
        unlabeled = ClientRows.of(federation.partition.unlabeled)
        indices, owner = unlabeled.joined, unlabeled.owner
        label = predict(state, federation.examples(indices)).argmax(axis=1)
        truth = federation.y[indices]
        return over_clients("unlabeled", label, truth, owner, federation.num_clients)

    def predictions(state: ServerState, federation: Federation) -> Predictions:
        test = federation.test
        probability = measured.taken(state, federation)
        if probability is None:
            probability = predict(state, federation.examples(test))
        return Predictions(
            client=np.full(len(test), -1, np.int32),
            example=test,
            role=np.full(len(test), "test"),
            label=probability.argmax(axis=1).astype(np.int32),
            confidence=probability.max(axis=1),
        )

    outputs = Outputs(evaluated, evaluate_clients, predictions)
    return Evaluation(evaluate, validate, predict, outputs)


def _quality(
    name: str, probability: np.ndarray, federation: Federation, indices: np.ndarray
) -> Metrics:
    label, truth = probability.argmax(axis=1), federation.y[indices]
    return {
        f"{name}_accuracy": accuracy(label, truth),
        f"{name}_balanced_accuracy": balanced_accuracy(label, truth),
    }
