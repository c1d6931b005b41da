"""Leave-one-out of all label matrices against refits without each label, and estimated diagonals."""

import jax.numpy as jnp
import numpy as np
import pytest
from dense_xclp import dense_scores
from sklearn.datasets import load_digits

from jaxfed.kernels import knn
from jaxfed.kernels.conjugate_gradient import PropagationMatrix
from jaxfed.kernels.graph import normalized_graph
from jaxfed.xclp import Propagation, one_hot_labels
from jaxfed.xclp.selection import leave_one_out
from jaxfed.xclp.selection.leave_one_out import (
    diagonal,
    half_hits,
    labeled_rows,
    left_out_scores,
)
from jaxfed.xclp.settings.parameters import LABEL_MATRICES
from jaxfed.xclp.steps.class_scores import weighed_by_prior
from jaxfed.xclp.steps.prediction import probabilities
from jaxfed.xclp.steps.propagation_matrix import scores_of

NUM_CLASSES = 3


def clustered_graph(sizes=(35, 18, 6, 1), k=4, seed=0):
    """Neighbors [n, k] within parts of these sizes, and the dense weights B + B^T."""
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    indices, weights = np.full((n, k), -1, np.int32), np.zeros((n, k), np.float32)
    dense, start = np.zeros((n, n)), 0
    for size in sizes:
        for own in range(size):
            others = np.setdiff1d(np.arange(size), [own])[: max(size - 1, 0)]
            found = rng.choice(others, min(k, len(others)), replace=False) if size > 1 else others
            indices[start + own, : len(found)] = start + found
            weights[start + own, : len(found)] = rng.uniform(0.2, 1, len(found))
            dense[start + own, start + found] = weights[start + own, : len(found)]
        start += size
    return indices, weights, dense + dense.T


def case(labeled=0.4, seed=1):
    indices, weights, dense = clustered_graph()
    rng = np.random.default_rng(seed)
    n = len(indices)
    answers = np.where(rng.random(n) < labeled, rng.integers(NUM_CLASSES, size=n), -1)
    answers[-1], answers[53] = 2, 1  # a point without edges, and one of few labels of its part
    owner = rng.integers(4, size=n)
    y = (answers[:, None] == np.arange(NUM_CLASSES)).astype(np.float32)
    return normalized_graph(indices, weights), dense, y, owner, answers


PARTS = (30, 14, 9, 6, 1)  # as many points as above, of which all but the first have one label


def lone_labels():
    indices, weights, _ = clustered_graph(PARTS)
    starts = np.cumsum((0, *PARTS))
    answers = np.full(len(indices), -1)
    answers[:9] = np.arange(9) % NUM_CLASSES
    answers[starts[1:-1]] = [2, 0, 1, 2]
    y = (answers[:, None] == np.arange(NUM_CLASSES)).astype(np.float32)
    return normalized_graph(indices, weights), y, answers


@pytest.mark.parametrize("kind", LABEL_MATRICES)
def test_nothing_is_left_where_no_other_label_reaches(kind):
    """Two solves leave their tolerance, and any of it would be a hit or a class without a doubt."""
    graph, y, answers = lone_labels()
    p = Propagation(NUM_CLASSES, label_matrix=kind)
    points = labeled_rows(PropagationMatrix(graph, p.alpha), y, np.zeros(len(y), int), answers)
    left_out = left_out_scores(points, p)
    np.testing.assert_array_equal(left_out[9:], 0)
    assert np.all(left_out[:9].max(axis=1) > 0)
    np.testing.assert_allclose(probabilities(left_out[9:], 1024.0), 1 / 3, rtol=1e-6)


def test_a_label_that_nothing_reaches_does_not_come_back():
    assert half_hits(np.zeros((3, 3), np.float32), np.arange(3)).tolist() == [0] * 3


def dense_prior(z, own, cohort, beta):
    """The formulas of `jaxfed.xclp.steps.class_scores` for one point."""
    share = (cohort + 1) / (cohort.sum() + NUM_CLASSES)
    own_share = (own + NUM_CLASSES * share) / (own.sum() + NUM_CLASSES)
    return np.maximum(z, 0) * (own_share / share) ** beta


@pytest.mark.parametrize("beta", [100.0, 1e30])
@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_a_prior_however_strong_leaves_finite_scores(array, beta):
    """Of the classes that reach a point the client's own wins, and scores among those it has none of."""
    z = array(np.array([[0.2, 0.3, 0.5], [0, 0.3, 0.5], [0, 0, 0]], np.float32))
    own, cohort = np.array([50, 0, 0]), np.array([51, 100, 2])
    found = np.asarray(weighed_by_prior(z, own, cohort, beta))
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found.argmax(axis=1)[:2], [0, 2])
    np.testing.assert_array_equal(
        found > 0, [[True, False, False], [False, True, True], [False] * 3]
    )


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("kind", LABEL_MATRICES)
@pytest.mark.sample(2)
def test_is_what_is_found_without_each_label(kind, beta):
    graph, dense, y, owner, answers = case()
    p = Propagation(NUM_CLASSES, alpha=0.9, label_matrix=kind, client_prior=beta)
    points = labeled_rows(PropagationMatrix(graph, p.alpha), y, owner, answers)
    ours = left_out_scores(points, p)
    expected = []
    for i in np.flatnonzero(answers >= 0):
        without = y.astype(float)
        without[i] = 0
        z = dense_scores(dense, without, p)[i]
        own = without[owner == owner[i]].sum(axis=0)
        expected.append(dense_prior(z, own, without.sum(axis=0), beta) if beta else z)
    expected = np.array(expected)
    np.testing.assert_allclose(ours, expected, atol=3e-5 * np.abs(expected).max())
    hit = (expected.argmax(1) == answers[answers >= 0]) & (expected.max(1) > 1e-6)
    halves = half_hits(ours, points.answers)
    np.testing.assert_array_equal(halves[halves != 1], 2 * hit[halves != 1])
    assert np.mean(halves == 1) < 0.15
    assert beta or 0 < hit.sum() < len(hit)


@pytest.mark.parametrize("kind", LABEL_MATRICES)
def test_scores_are_those_of_the_definition(kind):
    graph, dense, y, _, _ = case()
    p = Propagation(NUM_CLASSES, alpha=0.9, label_matrix=kind)
    z, _ = scores_of(PropagationMatrix(graph, p.alpha), y, kind)
    expected = dense_scores(dense, y.astype(float), p)
    np.testing.assert_allclose(z, expected, atol=3e-5 * np.abs(expected).max())


@pytest.mark.slow
def test_estimated_diagonals_are_near_and_exact_with_a_column_a_label(monkeypatch):
    rng = np.random.default_rng(3)
    indices = rng.integers(400, size=(400, 5)).astype(np.int32)
    indices[:, 0] = (np.arange(400) + 1) % 400
    graph = normalized_graph(indices, np.ones(indices.shape, np.float32))
    matrix = PropagationMatrix(graph, alpha=0.9)
    points = np.arange(0, 400, 2)
    exact, _ = diagonal(matrix, points)
    monkeypatch.setattr(leave_one_out, "EXACT_UP_TO", 0)
    monkeypatch.setattr(leave_one_out, "NUM_PROBES", len(points))
    np.testing.assert_allclose(diagonal(matrix, points)[0], exact, rtol=1e-4)
    monkeypatch.setattr(leave_one_out, "NUM_PROBES", 32)
    estimate, _ = diagonal(matrix, points)
    np.testing.assert_array_equal(estimate, diagonal(matrix, points)[0])
    assert np.sqrt(np.mean((estimate / exact - 1) ** 2)) < 0.05


@pytest.mark.slow
def test_estimated_diagonals_hardly_change_a_hit(monkeypatch):
    """On digits, a third labeled, at the paper's alpha, where they are worst: one label in a hundred."""
    images, classes = load_digits(return_X_y=True)
    n = len(images)
    nearest = knn.cosine_knn(jnp.asarray(images, jnp.float32), 10)
    answers = np.where(np.random.default_rng(0).random(n) < 0.3, classes, -1)
    y = one_hot_labels(answers, 10)
    p = Propagation(10)
    matrix = PropagationMatrix(normalized_graph(*nearest), p.alpha)
    estimated = labeled_rows(matrix, y, np.zeros(n, int), answers)
    monkeypatch.setattr(leave_one_out, "EXACT_UP_TO", n)
    exact, _ = diagonal(matrix, np.flatnonzero(answers >= 0))
    assert not np.allclose(exact, estimated.diagonal, rtol=0.05)
    refit = estimated._replace(diagonal=exact)
    ours, theirs = (half_hits(left_out_scores(own, p), own.answers) for own in (estimated, refit))
    assert np.mean(ours != theirs) <= 0.01
    assert 0.9 < theirs.mean() / 2 < 1


@pytest.mark.parametrize(
    ("scores", "answer", "halves"),
    [
        ([0.5, 0.2, 0.1], 0, 2),
        ([0.5, 0.2, 0.1], 1, 0),
        ([0.5, 0.5, 0.1], 0, 1),
        ([0.5, 0.5, 0.1], 1, 1),
        ([0.5, 0.5, 0.1], 2, 0),
        ([0.5, 0.4999, 0.1], 1, 1),  # nearer than two solves of one system are
        ([0.5, 0.499, 0.1], 1, 0),
        ([5e-9, 4.999e-9, 0], 1, 1),
        ([0, 0, 0], 0, 0),  # nothing has reached it
        ([-0.1, -0.2, -0.3], 0, 0),
        ([-0.1, 0.2, 0.2], 1, 1),
    ],
)
def test_a_tie_is_half_a_hit(scores, answer, halves):
    assert half_hits(np.float32([scores]), np.array([answer])).tolist() == [halves]


@pytest.mark.parametrize("alpha", [0.5, 0.9, 0.99])
def test_leave_one_out_is_exact(alpha):
    """Beside a float64 twin. Below 0.5 a label's effect at its own point hides all others' in float32."""
    p = Propagation(NUM_CLASSES, alpha=alpha, confidence="calibrated")
    graph, dense, y, owner, answers = case(labeled=0.2)
    points = np.flatnonzero(answers >= 0)
    found = left_out_scores(labeled_rows(PropagationMatrix(graph, p.alpha), y, owner, answers), p)
    for place, point in enumerate(points):
        without = y.copy()
        without[point] = 0
        exact = dense_scores(dense, without, p)[point]
        np.testing.assert_allclose(found[place], exact, rtol=2e-3, atol=1e-5 * exact.max())
