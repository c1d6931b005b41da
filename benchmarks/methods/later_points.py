"""Points that come after a labeling: labels by their nearest codes, and a labeling extended by them.

Peers are whole new labelings. Labels by nearest codes: handwritten digits, ten clients, a tenth of their
points labeled, a fifth of all points later; the row's agreement has the accuracy of both. Extension: a
hundredth of `inputs.features` is later, at two numbers of points; the labels are those of the whole labeling.

    python -m launch.bench --kernel=later_points --peers --out=FILE
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks import inputs
from benchmarks.timing.contest import Contest
from jaxfed import data
from jaxfed.xclp import Labeling, Prediction, propagate_labels

ANEW = "a labeling with them"
NUM_CLIENTS, NUM_CLASSES = 10, 10
LATER_FRACTION = 0.01
SAMPLES = {10_000: 0, 100_000: 2}  # number of points -> rounds; 0: as many as usual
LEAST_RATIO = {10_000: 5.0, 100_000: 20.0}  # of times, a whole labeling's by an extension's
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
    for n, samples in SAMPLES.items():
        yield _extension(n, samples, with_peers)


def _extension(n: int, samples: int, with_peers: bool) -> Contest:
    """1 % later points of n, with labels as the others have them; L = 4096, k = 10, alpha = 0.99."""
    vectors, truth = inputs.features(n, NUM_CLASSES)
    labels = np.where(inputs.one_hot(n, NUM_CLASSES).any(axis=1), truth, -1)
    clients = [np.array_split(own, NUM_CLIENTS) for own in (vectors, labels)]
    count = round(LATER_FRACTION * n / NUM_CLIENTS)
    old, later = (
        [[x[own] for x in part] for part in clients] for own in (slice(count, None), slice(count))
    )
    joint = [
        [np.concatenate(both) for both in zip(*parts, strict=True)]
        for parts in zip(old, later, strict=True)
    ]
    found = propagate_labels(*old, num_classes=NUM_CLASSES)
    return Contest(
        task="labeling extended by later points",
        case={"n": n, "later": count * NUM_CLIENTS, "d": vectors.shape[1], "C": NUM_CLASSES},
        ours=lambda: _labels(found.with_later(*later)),
        peers={ANEW: lambda: _labels(propagate_labels(*joint, num_classes=NUM_CLASSES))}
        if with_peers
        else {},
        agreement=_equal,
        targets={ANEW: LEAST_RATIO.get(n, 1.0)},
        samples=samples,
    )


def _equal(ours: np.ndarray, theirs: np.ndarray) -> str:
    same = float(np.mean(ours == theirs))
    assert same > 0.9999, f"only {same:.5f} of the labels agree"
    return f"{same:.5f} of the labels equal"


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
