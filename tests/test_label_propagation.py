"""The exact-cosine baselines against dense float64 label propagation, client by client and pooled."""

import jax
import numpy as np
import pytest

from jaxfed.algorithms import ALGORITHMS
from jaxfed.data import Partition
from jaxfed.federation import Federation
from jaxfed.kernels import reference

pytestmark = pytest.mark.usefixtures("quick_compilation")

NUM_CLASSES, NUM_NEIGHBORS, ALPHA = 3, 5, 0.99


@pytest.fixture(scope="module")
def federation():
    """Clients of 50, 3, 0 and 90 points around three centers; the second has no labels."""
    rng = np.random.default_rng(0)
    sizes = [50, 3, 0, 90]
    y = rng.integers(NUM_CLASSES, size=sum(sizes)).astype(np.int32)
    centers = rng.standard_normal((NUM_CLASSES, 12))
    x = (centers[y] + 0.5 * rng.standard_normal((len(y), 12))).astype(np.float32)
    points = np.split(np.arange(len(y)), np.cumsum(sizes)[:-1])
    labeled = tuple(p[: len(p) // 5] if len(p) > 3 else p[:0] for p in points)
    unlabeled = tuple(p[len(own) :] for p, own in zip(points, labeled, strict=True))
    return Federation(
        x, y, Partition(labeled, unlabeled, tuple(p[:0] for p in points)), NUM_CLASSES
    )


def dense_labels(x, y):
    indices, cosines = reference.cosine_knn(x, NUM_NEIGHBORS)
    w = reference.normalized_graph(indices, np.maximum(cosines, 0))
    z = reference.propagate(w, np.asarray(y)[:, None] == np.arange(NUM_CLASSES), ALPHA)
    return np.where(z.max(axis=1) > 1e-12, z.argmax(axis=1), -1)


def label(name, federation, **keywords):
    algorithm = ALGORITHMS[name](
        num_classes=NUM_CLASSES, num_neighbors=NUM_NEIGHBORS, alpha=ALPHA, **keywords
    )
    key = jax.random.key(0)
    cohort = federation.cohort()
    state, metrics = algorithm.round(algorithm.init(key, federation), cohort, key)
    return [state.label[j, cohort.mask[j]] for j in range(len(cohort.mask))], metrics, cohort


@pytest.mark.parametrize("strategy", ["map", "vmap"])
def test_per_client(federation, strategy):
    labels, metrics, cohort = label("per_client_lp", federation, strategy=strategy)
    for j, found in enumerate(labels):
        if len(found) > 1:
            mask = cohort.mask[j]
            np.testing.assert_array_equal(found, dense_labels(cohort.x[j, mask], cohort.y[j, mask]))
    np.testing.assert_array_equal(labels[1], [-1, -1, -1])
    assert metrics["unreached"] == 3


def test_pooled(federation):
    labels, metrics, cohort = label("pooled_lp", federation)
    mask = cohort.mask
    np.testing.assert_array_equal(
        np.concatenate(labels), dense_labels(cohort.x[mask], cohort.y[mask])
    )
    assert metrics["unreached"] == 0
