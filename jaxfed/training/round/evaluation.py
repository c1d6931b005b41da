"""Evaluation of a trained state: predictions on the validation and test splits and on clients' points."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from jaxfed.data.client_rows import ClientRows
from jaxfed.federation.algorithm import Evaluate, Metrics, Outputs, Predict, Predictions
from jaxfed.federation.clients import Federation
from jaxfed.federation.evaluate import MEASURES, over_clients
from jaxfed.kernels.devices import in_batches, rows_at_once
from jaxfed.training.round.parts import Classifier
from jaxfed.training.server_state import ServerState, without_tables


class Evaluation(NamedTuple):
    """The evaluation functions of a `FederatedAlgorithm`, as its fields of these names."""

    evaluate: Evaluate
    validate: Evaluate
    predict: Predict
    outputs: Outputs


def evaluation_by(classifier: Classifier, *, reads_clients: bool = True) -> Evaluation:
    """Build the evaluation functions of a classifier; they share one compiled program.

    `reads_clients` is False for a classifier that needs no clients' states: an evaluated state (`Outputs`)
    then has no tables of them.
    """
    probabilities = jax.jit(classifier.probabilities)

    def predict(state: ServerState, x: np.ndarray) -> np.ndarray:
        of_batch = partial(probabilities, classifier.needed(state))
        return np.asarray(in_batches(of_batch, x, rows_at_once()))

    def quality(
        name: str,
        state: ServerState,
        federation: Federation,
        split: np.ndarray,
        measures: Collection[str],
    ) -> Metrics:
        if not len(split):
            return {}
        probability, truth = predict(state, federation.examples(split)), federation.y[split]
        return {f"{name}_{measure}": MEASURES[measure](probability, truth) for measure in measures}

    def validate(state: ServerState, federation: Federation) -> Metrics:
        return quality(
            "validation",
            state,
            federation,
            federation.validation,
            ("accuracy", "balanced_accuracy"),
        )

    def evaluate(state: ServerState, federation: Federation) -> Metrics:
        return quality("test", state, federation, federation.test, MEASURES)

    def evaluate_clients(state: ServerState, federation: Federation) -> Metrics:
        unlabeled = ClientRows.of(federation.partition.unlabeled)
        indices, owner = unlabeled.joined, unlabeled.owner
        label = predict(state, federation.examples(indices)).argmax(axis=1)
        truth = federation.y[indices]
        return over_clients("unlabeled", label, truth, owner, federation.num_clients)

    def predictions(state: ServerState, federation: Federation) -> Predictions:
        test = federation.test
        probability = predict(state, federation.examples(test))
        return Predictions(
            client=np.full(len(test), -1, np.int32),
            example=test,
            role=np.full(len(test), "test"),
            label=probability.argmax(axis=1).astype(np.int32),
            confidence=probability.max(axis=1),
        )

    outputs = Outputs(
        (lambda state: state) if reads_clients else without_tables, evaluate_clients, predictions
    )
    return Evaluation(evaluate, validate, predict, outputs)
