"""Measures of quality: accuracy over points and over clients, and the calibration of confidences.

The expected calibration error (ECE) is the gap between confidence and accuracy, over bins of confidence:

    ECE = sum over bins b of (n_b / n) |acc_b - conf_b|

with the mean confidence and the share of right labels of the points in bin b (Naeini, Cooper, Hauskrecht,
AAAI 2015; Guo, Pleiss, Sun, Weinberger, ICML 2017, who take 15 bins of equal width). Bins here are of equal
mass: equally many points in each, as far as equal confidences allow. Flat confidences would all fall into one
bin of equal width (Nguyen, O'Connor, EMNLP 2015; Nixon et al., CVPR Workshops 2019). The plug-in estimate is
above zero for calibrated confidences too: by some 0.8 sqrt(15 p (1 - p) / n) with n / 15 points per bin.

A method's `evaluate` may have attributes (`jaxfed.federation.algorithm.attribute_of`), for what a run keeps
of states and writes at its end:

    evaluated      state -> the state without what no evaluation reads; selection keeps that of the best
    of_clients     `Evaluate` on each client's own points (`over_clients`): those it wants labeled (`test`)
                   or, if clients hold no test data, unlabeled ones, whose classes training never saw
    predictions    state, federation -> `Predictions` of all points that it labels, or is tested on
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics, ServerState, attribute_of
from jaxfed.federation.clients import Federation
from jaxfed.registry import Registry

NUM_BINS = 15  # of confidence, in ECE


def accuracy(predicted: np.ndarray, truth: np.ndarray) -> float:
    """Share of points whose predicted class is the true one; a prediction of -1 is wrong.

    Both int [n]. Points of unknown class (a truth of -1) do not count; NaN where there are no others.
    """
    is_known = truth >= 0
    return float(np.mean((predicted == truth)[is_known])) if is_known.any() else float("nan")


def balanced_accuracy(predicted: np.ndarray, truth: np.ndarray) -> float:
    """Mean over the classes present in `truth` of the recall, in [0, 1]; a prediction of -1 is wrong.

    Equals scikit-learn's `balanced_accuracy_score` where every prediction is a class. Points of unknown
    class (a truth of -1) do not count; NaN where there are no others.
    """
    predicted, truth = predicted[truth >= 0], truth[truth >= 0]
    if not len(truth):
        return float("nan")
    present = np.bincount(truth)
    hit = np.bincount(truth[predicted == truth], minlength=len(present))
    return float(np.mean(hit[present > 0] / present[present > 0]))


def auroc(probability: np.ndarray, truth: np.ndarray) -> float:
    """Area under the ROC curve: of two classes that of the second, of more the mean of one against the rest.

    Equals scikit-learn's `roc_auc_score`, whose import would take a second of a run.

    Args:
        probability: float [n, C]; NaN counts as 0.
        truth: int [n]; points of -1, whose class is not known, are left out.

    Returns:
        The mean over the classes present in `truth`; NaN if there are fewer than two.
    """
    probability, truth = np.nan_to_num(probability[truth >= 0]), truth[truth >= 0]
    areas = []
    for c in [1] if probability.shape[1] == 2 else np.unique(truth):
        _, group, count = np.unique(probability[:, c], return_inverse=True, return_counts=True)
        rank, is_it = (np.cumsum(count) - (count - 1) / 2)[group], truth == c
        ours, others = np.count_nonzero(is_it), np.count_nonzero(~is_it)
        if not ours * others:
            return float("nan")
        areas.append((rank[is_it].sum() - ours * (ours + 1) / 2) / (ours * others))
    return float(np.mean(areas)) if areas else float("nan")


# Measures of probabilities [n, C] against classes int [n]: `test_NAME` of a method that trains, and values of
# `dataset.validation_measure`.
MEASURES: Registry[Callable[[np.ndarray, np.ndarray], float]] = Registry(
    "measure",
    {
        "accuracy": lambda probability, truth: accuracy(probability.argmax(axis=1), truth),
        "balanced_accuracy": lambda probability, truth: balanced_accuracy(
            probability.argmax(axis=1), truth
        ),
        "auroc": auroc,
    },
)


def over_clients(
    name: str, predicted: np.ndarray, truth: np.ndarray, client: np.ndarray, num_clients: int
) -> Metrics:
    """The accuracy of each client on its own points, and its distribution over clients.

    Every client counts once, however many points it has; one without points of known class does not count.

    Args:
        name: of the points, "test" or "unlabeled".
        predicted: int [n]; -1 is wrong.
        truth: int [n]; points of -1, whose class is not known, are left out.
        client: int [n], the client that holds the point.
        num_clients: M.

    Returns:
        `worst_client_NAME_accuracy`, `tenth_percentile_client_NAME_accuracy` (linear between clients) and
        `mean_client_NAME_accuracy`, and `client_NAME_accuracy`, float64 [M] with NaN for clients that do not
        count. Empty if no client counts.
    """
    known = truth >= 0
    owner = client[known]
    count = np.bincount(owner, minlength=num_clients)
    right = np.bincount(owner[predicted[known] == truth[known]], minlength=num_clients)
    if not count.any():
        return {}
    each = np.divide(right, count, out=np.full(num_clients, np.nan), where=count > 0)
    measured = each[count > 0]
    return {
        f"worst_client_{name}_accuracy": float(measured.min()),
        f"tenth_percentile_client_{name}_accuracy": float(np.percentile(measured, 10)),
        f"mean_client_{name}_accuracy": float(measured.mean()),
        f"client_{name}_accuracy": each,
    }


def over_own_points(
    labels_by: Callable[[int, np.ndarray], np.ndarray],
    federation: Federation,
    counted: np.ndarray | None = None,
) -> Metrics:
    """`over_clients` of unlabeled points, each labeled by its own client's model.

    `labels_by` returns the classes of a client's points (rows of `Federation.x`); -1 is wrong. `counted`,
    bool [M], are the clients whose points count; None: all.
    """
    points = [
        rows if counted is None or counted[client] else rows[:0]
        for client, rows in enumerate(federation.partition.unlabeled)
    ]
    predicted = [labels_by(client, rows) for client, rows in enumerate(points) if len(rows)]
    owner = np.repeat(np.arange(len(points)), list(map(len, points)))
    truth = federation.y[np.concatenate(points)]
    label = np.concatenate([np.zeros(0, int), *predicted])
    return over_clients("unlabeled", label, truth, owner, len(points))


def evaluated_by(algorithm: FederatedAlgorithm) -> Callable[[ServerState], ServerState]:
    """Return the function state -> state without what no evaluation reads."""
    rule: Callable[[ServerState], ServerState] = attribute_of(
        algorithm.evaluate, "evaluated", lambda state: state
    )
    return rule


class Reliability(NamedTuple):
    """Counts and means of all nonempty bins, in ascending order: int [B], float64 [B] and [B]."""

    num_points: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray


def reliability(
    confidence: np.ndarray, is_right: np.ndarray, num_bins: int = NUM_BINS
) -> Reliability:
    """Sort points by confidence, float [n], into bins of equal mass; equal confidences share a bin."""
    exact = np.asarray(confidence, np.float64)
    rank = np.searchsorted(np.sort(exact), exact, side="left")  # rank of the first equal confidence
    number = rank * num_bins // len(exact)
    count = np.bincount(number, minlength=num_bins)
    is_filled = count > 0
    sums = (
        np.bincount(number, weights=values, minlength=num_bins)[is_filled] / count[is_filled]
        for values in (exact, np.asarray(is_right, np.float64))
    )
    return Reliability(count[is_filled], *sums)


def expected_calibration_error(
    confidence: np.ndarray, is_right: np.ndarray, num_bins: int = NUM_BINS
) -> float:
    """ECE in [0, 1], arguments as `reliability`; NaN without points."""
    bins = reliability(confidence, is_right, num_bins)
    if not len(bins.num_points):
        return float("nan")
    return float(bins.num_points @ np.abs(bins.accuracy - bins.confidence) / bins.num_points.sum())
