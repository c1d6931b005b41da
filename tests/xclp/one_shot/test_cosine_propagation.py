"""The exact-cosine baselines against dense float64 label propagation, client by client and pooled."""

from dataclasses import replace

import jax
import numpy as np
import pytest
import reference_kernels as reference

from jaxfed.algorithms import ALGORITHMS
from jaxfed.data import Partition
from jaxfed.federation.clients import Federation
from jaxfed.xclp import Propagation
from jaxfed.xclp.one_shot.cosine_propagation import (
    matrix_over_cosines,
)

NUM_CLASSES, NUM_NEIGHBORS, ALPHA = 3, 5, 0.99


@pytest.fixture(scope="module")
def federation():
    """Clients of 50, 3, 0 and 90 points around three centers; the second has no labels."""
    rng = np.random.default_rng(0)
    sizes = [50, 3, 0, 90]
    y = rng.integers(NUM_CLASSES, size=sum(sizes)).astype(np.int32)
    centers = rng.standard_normal((NUM_CLASSES, 12))
    x = (centers[y] + rng.standard_normal((len(y), 12))).astype(np.float32)
    points = np.split(np.arange(len(y)), np.cumsum(sizes)[:-1])
    labeled = tuple(p[: len(p) // 5] if len(p) > 3 else p[:0] for p in points)
    unlabeled = tuple(p[len(own) :] for p, own in zip(points, labeled, strict=True))
    return Federation(
        x, y, Partition(labeled, unlabeled, tuple(p[:0] for p in points)), NUM_CLASSES
    )


def dense_labels(
    x,
    y,
    *,
    similarity_power=1.0,
    label_matrix="plain",
    relative_confidence=False,
    factor=1.0,
):
    """Labels and confidences by the formulas of the module, in float64; `factor` of a prior."""
    indices, cosines = reference.cosine_knn(x, NUM_NEIGHBORS)
    w = reference.normalized_graph(indices, np.maximum(cosines, 0) ** similarity_power)
    one_hot = (np.asarray(y)[:, None] == np.arange(NUM_CLASSES)).astype(float)
    if label_matrix == "class_balanced":
        one_hot /= np.maximum(one_hot.sum(axis=0), 1)
    z = np.maximum(reference.propagate(w, one_hot, ALPHA), 0) * factor
    reached = z.max(axis=1) > 1e-12
    share = z / np.where(reached, z.sum(axis=1), 1)[:, None]
    surprise = np.log(share, where=share > 0, out=np.zeros_like(share))
    confidence = np.where(reached, 1 + (share * surprise).sum(axis=1) / np.log(NUM_CLASSES), 0)
    if relative_confidence:
        confidence /= confidence.max()
    return np.where(reached, z.argmax(axis=1), -1), confidence


def label(name, federation, **keywords):
    return label_cohort(name, federation, federation.cohort(), **keywords)


def label_cohort(name, federation, cohort, **keywords):
    given = {"num_neighbors": NUM_NEIGHBORS, "alpha": ALPHA}
    algorithm = ALGORITHMS[name](num_classes=NUM_CLASSES, **{**given, **keywords})
    key = jax.random.key(0)
    state, metrics = algorithm.round(algorithm.init(key, federation), cohort, key)
    return state, metrics, cohort


SWITCHES = {
    "label_matrix": "class_balanced",
    "relative_confidence": True,
    "similarity_power": 3.0,
}


@pytest.mark.parametrize("switches", [{}, SWITCHES], ids=str)
def test_per_client(federation, switches):
    found, metrics, cohort = label("per_client_lp", federation, **switches)
    for j in (0, 3):
        mask = cohort.mask[j]
        labels, confidences = dense_labels(cohort.x[j, mask], cohort.y[j, mask], **switches)
        np.testing.assert_array_equal(found.label[j, mask], labels)
        np.testing.assert_allclose(found.confidence[j, mask], confidences, atol=2e-3)
    np.testing.assert_array_equal(found.label[1, cohort.mask[1]], [-1, -1, -1])
    assert metrics["unreached"] == 3


@pytest.mark.parametrize("switches", [{}, SWITCHES], ids=str)
def test_pooled(federation, switches):
    found, metrics, cohort = label("pooled_lp", federation, **switches)
    mask = cohort.mask
    labels, confidences = dense_labels(cohort.x[mask], cohort.y[mask], **switches)
    np.testing.assert_array_equal(found.label[mask], labels)
    np.testing.assert_allclose(found.confidence[mask], confidences, atol=2e-3)
    assert metrics["unreached"] == 0


def test_a_prior_changes_nothing_inside_a_client(federation):
    """Leave-one-out does not weigh scores that the labeling leaves unweighted: to choose, to calibrate."""
    settings = {"confidence": "calibrated", "select": ("label_matrix", "num_neighbors:8")}
    without, told, _ = label("per_client_lp", federation, **settings)
    found, also_told, _ = label("per_client_lp", federation, client_prior=4.0, **settings)
    np.testing.assert_array_equal(found.label, without.label)
    np.testing.assert_array_equal(found.confidence, without.confidence)
    assert also_told["leave_one_out"] == told["leave_one_out"]


def test_pooled_weighs_scores_by_the_clients_own_labels(federation):
    found, _, cohort = label("pooled_lp", federation, client_prior=1.0)
    mask = cohort.mask
    x, y, owner = cohort.x[mask], cohort.y[mask], np.nonzero(mask)[0]
    counts = np.array(
        [np.bincount(own[own >= 0], minlength=NUM_CLASSES) for own in cohort.y], float
    )
    share = (counts.sum(0) + 1) / (counts.sum() + NUM_CLASSES)
    own = (counts + NUM_CLASSES * share) / (counts.sum(1, keepdims=True) + NUM_CLASSES)
    labels, confidences = dense_labels(x, y, factor=(own / share)[owner])
    np.testing.assert_array_equal(found.label[mask], labels)
    np.testing.assert_allclose(found.confidence[mask], confidences, atol=2e-3)
    assert np.abs(confidences - dense_labels(x, y)[1]).max() > 0.01  # else nothing would be seen


@pytest.mark.parametrize("num_neighbors", [3, 40], ids=["few", "more than there are"])
def test_padding_has_no_edges(num_neighbors):
    """Also where a point has fewer than k neighbors at a cosine above 0, which padding has."""
    x = np.random.default_rng(4).standard_normal((30, 4)).astype(np.float32)
    p = Propagation(NUM_CLASSES, num_neighbors=num_neighbors, alpha=0.9)
    graph = matrix_over_cosines([x[:20], x[20:]], p).graph
    padding = np.arange(len(graph.weights)) >= 30
    assert padding.sum() > 200
    assert not graph.weights[padding].any()
    assert not graph.root_degrees[padding].any()
    used = (
        (graph.weights > 0, graph.neighbors),
        (graph.overflow_weights > 0, graph.overflow_neighbors),
    )
    assert all((neighbors[there] < 30).all() for there, neighbors in used)
    alone = matrix_over_cosines([x], p)
    indices, cosines = reference.cosine_knn(x, min(num_neighbors, 29))
    w = reference.normalized_graph(indices, np.maximum(cosines, 0))
    y = (
        np.eye(NUM_CLASSES, dtype=np.float32)[np.arange(len(graph.weights)) % NUM_CLASSES]
        * ~padding[:, None]
    )
    np.testing.assert_allclose(
        alone.solved(y)[0][:30], reference.propagate(w, y[:30].astype(float), 0.9), atol=1e-3
    )


CHOICE = ("alpha:0.6", "label_matrix:class_balanced", "num_neighbors:3", "client_prior")


def labels_that_come_back(federation, p):
    """Hits of leave-one-out over pooled points, by labeling anew without each label."""
    cohort = federation.cohort()
    kept = {key: value for key, value in vars(p).items() if key not in ("num_classes", "select")}
    method = ALGORITHMS["pooled_lp"](num_classes=NUM_CLASSES, **kept)
    hit = []
    for place in zip(*np.nonzero(cohort.y >= 0), strict=True):
        y = cohort.y.copy()
        y[place] = -1
        key = jax.random.key(0)
        state, _ = method.round(method.init(key, federation), cohort._replace(y=y), key)
        hit.append(state.label[place] == cohort.y[place])
    return np.array(hit)


def test_pooled_chooses_what_refits_would(federation):
    found, metrics, cohort = label("pooled_lp", federation, select=CHOICE)
    given = Propagation(NUM_CLASSES, num_neighbors=NUM_NEIGHBORS, alpha=ALPHA)
    selected = metrics["selected"]
    selected |= {"label_matrix": max(selected["label_matrix"], key=selected["label_matrix"].get)}
    chosen = replace(given, **selected)
    rates = metrics["leave_one_out"]
    assert rates["given_accuracy"] == labels_that_come_back(federation, given).mean()
    assert rates["accuracy"] == labels_that_come_back(federation, chosen).mean()
    again, _, _ = label("pooled_lp", federation, **{"alpha": ALPHA, **selected})
    np.testing.assert_array_equal(found.label[cohort.mask], again.label[cohort.mask])


@pytest.mark.slow
def test_every_client_chooses_for_itself(federation):
    found, metrics, cohort = label("per_client_lp", federation, select=CHOICE)
    assert "selected" not in metrics
    rates = []
    for j in np.flatnonzero((cohort.y >= 0).any(axis=1)):
        alone = federation.cohort([j])
        one, own, _ = label_cohort("pooled_lp", federation, alone, select=CHOICE)
        mask = cohort.mask[j]
        np.testing.assert_array_equal(found.label[j, mask], one.label[j, mask])
        rates.append(own["leave_one_out"]["accuracy"])
    np.testing.assert_allclose(metrics["leave_one_out"]["accuracy"], np.mean(rates))
