"""One-shot labeling: the common part of XCLP and its Section 4.1 baselines.

A transductive method labels the points that clients hold now. It trains no model and needs one round. Each
method is a function `label_points(cohort, key)`; this file turns it into a `FederatedAlgorithm`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxfed.federation.algorithm import (
    FederatedAlgorithm,
    Init,
    Metrics,
    Predictions,
    Round,
)
from jaxfed.federation.clients import UNLABELED, Federation
from jaxfed.federation.cohort import Cohort, chosen, own_examples
from jaxfed.federation.evaluate import (
    accuracy,
    balanced_accuracy,
    expected_calibration_error,
    over_clients,
)
from jaxfed.federation.method import labels_elsewhere, with_attributes


class Transduction(NamedTuple):
    """The labels all clients have so far, as server state of the simulation.

    int32 and float32 [M, N]: rows are clients, columns their points in the order of `Federation.points`; -1
    and 0 where there is no label (or no point). `head` has the arrays of the classifier that the last
    round made, if the method makes one.
    """

    label: np.ndarray
    confidence: np.ndarray
    head: Any = ()


# (cohort, key) -> label, confidence, metrics, and the head of a method that makes one
LabelPoints = Callable[[Cohort, jax.Array], tuple[Any, ...]]


def transductive(
    label_points: LabelPoints, first_head: Callable[[Federation], Any] = lambda federation: ()
) -> FederatedAlgorithm:
    """Make a federated algorithm of `label_points(cohort, key) -> (label, confidence, metrics[, head])`.

    `label` int [K, N] (-1 = none) and `confidence` float [K, N] follow the cohort's rows; their values on
    padding are ignored. `first_head` has the shapes of the heads.
    """

    def init(key: jax.Array, federation: Federation) -> Transduction:
        del key
        if len(federation.server):
            raise labels_elsewhere("clients")
        shape = (federation.num_clients, federation.capacity)
        label = np.full(shape, UNLABELED, np.int32)
        return Transduction(label, np.zeros(shape, np.float32), first_head(federation))

    def round(state: Transduction, cohort: Cohort, key: jax.Array) -> tuple[Transduction, Metrics]:
        is_client = np.asarray(cohort.client_id) >= 0  # others are clients that a deadline left out
        cohort = cohort if is_client.all() else chosen(cohort, np.flatnonzero(is_client))
        label, confidence, metrics, *made = label_points(cohort, key)
        head = made[0] if made else state.head
        updated = Transduction(state.label.copy(), state.confidence.copy(), head)
        updated.label[cohort.client_id] = np.where(cohort.mask, label, UNLABELED)
        updated.confidence[cohort.client_id] = np.where(cohort.mask, confidence, 0)
        unreached = int(np.sum(updated.label[cohort.client_id] < 0, where=np.asarray(cohort.mask)))
        return updated, {"unreached": unreached, **metrics}

    return one_shot_method(init, round)


def one_shot_method(init: Init, round: Round) -> FederatedAlgorithm:
    """Return the method whose state is the labels of all points; one round determines them."""
    outputs = {"of_clients": evaluate_clients, "predictions": predictions}
    return FederatedAlgorithm(init, round, with_attributes(evaluate, **outputs))


def evaluate(state: Transduction, federation: Federation) -> Metrics:
    """Accuracy and calibration error on the clients' new points (`test_`) and unlabeled ones (`unlabeled_`).

    Points are pooled over clients, so a client weighs by its number of points. A point without a label is
    wrong. A
    point of unknown class does not count.
    """
    predicted = predictions(state, federation)
    truth = federation.y[predicted.example]
    metrics: Metrics = {}
    for name, role in (("test", "new"), ("unlabeled", "unlabeled")):
        rows = (predicted.role == role) & (truth != UNLABELED)
        if rows.any():
            metrics[f"{name}_accuracy"] = accuracy(predicted.label[rows], truth[rows])
            metrics[f"{name}_balanced_accuracy"] = balanced_accuracy(
                predicted.label[rows], truth[rows]
            )
            is_right = predicted.label[rows] == truth[rows]
            metrics[f"{name}_expected_calibration_error"] = expected_calibration_error(
                predicted.confidence[rows], is_right
            )
    return metrics


def evaluate_clients(state: Transduction, federation: Federation) -> Metrics:
    """Each client's accuracy on its new points. A point without a label is wrong."""
    predicted = predictions(state, federation)
    is_new = predicted.role == "new"
    truth = federation.y[predicted.example[is_new]]
    owner = predicted.client[is_new]
    return over_clients("test", predicted.label[is_new], truth, owner, federation.num_clients)


def predictions(state: Transduction, federation: Federation) -> Predictions:
    """Labels and confidences of all clients' points, including labeled ones (role "labeled")."""
    rows = []
    for client in range(federation.num_clients):
        points, part = federation.points(client), federation.partition
        roles = [
            (role, len(getattr(part, role)[client])) for role in ("labeled", "unlabeled", "new")
        ]
        rows.append(
            Predictions(
                client=np.full(len(points), client, np.int32),
                example=points,
                role=np.repeat(*map(np.array, zip(*roles, strict=True))),
                label=state.label[client : client + 1].ravel()[: len(points)],
                confidence=state.confidence[client : client + 1].ravel()[: len(points)],
            )
        )
    return Predictions(*map(np.concatenate, zip(*rows, strict=True)))


def client_arrays(cohort: Cohort) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Each client's own vectors [n_k, d] and labels [n_k], without padding (views, no copy).

    An image is the vector of its pixels.
    """
    sizes = np.asarray(cohort.mask).sum(axis=1)
    x, y = own_examples(cohort.x), np.asarray(cohort.y)
    return (
        [as_vectors(x[row][:size]) for row, size in enumerate(sizes)],
        [y[row, :size] for row, size in enumerate(sizes)],
    )


def as_vectors(x: np.ndarray) -> np.ndarray:
    """Examples [n, ...] as vectors [n, d]."""
    return x.reshape(len(x), math.prod(x.shape[1:]))


def padded(clients: list[np.ndarray], cohort: Cohort, fill: float) -> np.ndarray:
    """[K, N]: the clients' arrays [n_k] put back into the cohort's shape."""
    joint = np.full(cohort.mask.shape, fill, np.result_type(*clients))
    for row, values in enumerate(clients):
        joint[row, : len(values)] = values
    return joint
