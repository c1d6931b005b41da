"""Points that come after a labeling: labels by their nearest codes, against a new labeling with them.

Handwritten digits, ten clients, a tenth of their points labeled, a fifth of all points later; the row's
agreement has the accuracy of both.

    python -m launch.bench --kernel=later_points --peers --out=FILE
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.timing.contest import Contest
from jaxfed import data
from jaxfed.xclp import Labeling, Prediction, propagate_labels

ANEW = "a labeling with them"
NUM_CLIENTS, NUM_CLASSES = 10, 10
Clients = list[np.ndarray]


def later_points(with_peers: bool) -> Iterator[Contest]:
    """360 later points of 1,797; L = 4096, k = 10, alpha = 0.99."""
    digits = data.load("digits")
    order = np.random.default_rng(0).permutation(len(digits.y))
    x, truth = digits.x[order].reshape(len(order), -1), digits.y[order]
    count = len(x) // 5
    is_labeled = np.random.default_rng(1).random(len(x)) < 0.1
    vectors = np.array_split(x[count:], NUM_CLIENTS)
    labels = np.array_split(np.where(is_labeled, truth, -1)[count:], NUM_CLIENTS)
    later = np.array_split(x[:count], NUM_CLIENTS)
    yield Contest(
        task="labels for later points",
        case={"n": len(x) - count, "later": count, "d": x.shape[1], "C": NUM_CLASSES},
        ours=partial(_ours, propagate_labels(vectors, labels, num_classes=NUM_CLASSES), later),
        peers={ANEW: partial(_anew, vectors, labels, later)} if with_peers else {},
        agreement=partial(_how_right, truth[:count]),
    )


def _ours(found: Labeling, later: Clients) -> np.ndarray:
    return _labels(found.label(later))


def _anew(vectors: Clients, labels: Clients, later: Clients) -> np.ndarray:
    unknown = [np.full(len(v), -1) for v in later]
    found = propagate_labels([*vectors, *later], [*labels, *unknown], num_classes=NUM_CLASSES)
    return _labels(found[len(vectors) :])


def _labels(predictions: list[Prediction]) -> np.ndarray:
    return np.concatenate([own.labels for own in predictions])


def _how_right(truth: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> str:
    same = float(np.mean(ours == theirs))
    assert same > 0.9, f"only {same:.3f} of the labels agree"
    right = [float(np.mean(labels == truth)) for labels in (ours, theirs)]
    return f"{same:.3f} of the labels equal; right: {right[0]:.3f}, anew {right[1]:.3f}"
