"""Measures of quality: accuracy over points and over clients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jaxfed.federation.algorithm import Metrics
from jaxfed.federation.clients import Federation


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
    there = each[count > 0]
    return {
        f"worst_client_{name}_accuracy": float(there.min()),
        f"tenth_percentile_client_{name}_accuracy": float(np.percentile(there, 10)),
        f"mean_client_{name}_accuracy": float(there.mean()),
        f"client_{name}_accuracy": each,
    }


def over_own_points(
    labels_by: Callable[[int, np.ndarray], np.ndarray],
    federation: Federation,
    counted: np.ndarray | None = None,
) -> Metrics:
    """`over_clients` of unlabeled points, each labeled by its own client's model.

    Args:
        labels_by: client, its points (rows of `Federation.x`) -> their classes; -1 is wrong.
        federation: has the points.
        counted: bool [M], the clients whose points count; None: all.
    """
    points = [
        own if counted is None or counted[client] else own[:0]
        for client, own in enumerate(federation.partition.unlabeled)
    ]
    found = [labels_by(client, own) for client, own in enumerate(points) if len(own)]
    owner = np.repeat(np.arange(len(points)), list(map(len, points)))
    truth, label = federation.y[np.concatenate(points)], np.concatenate([np.zeros(0, int), *found])
    return over_clients("unlabeled", label, truth, owner, len(points))
