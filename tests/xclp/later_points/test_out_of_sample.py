"""Labels for points that come after the graph was made, against NumPy and against the graph itself."""

from functools import partial

import dense_xclp
import numpy as np
import pytest
from dense_xclp import dense_algorithm_1

from jaxfed import xclp
from jaxfed.kernels import lsh
from jaxfed.privacy import randomized_response
from jaxfed.xclp import Parameters, cross_client_label_propagation, label_later, propagate_labels
from jaxfed.xclp.later_points import induction_weights

# Around the same centers whatever the seed.
clustered_clients = partial(dense_xclp.clustered_clients, centers=9)
SWITCHES = [
    {},
    {"similarity_power": 3.0},
    {"label_matrix": "class_balanced", "alpha": 0.5},
    {"num_neighbors": 1},
    {"relative_confidence": True},
    {"client_prior": 1.0},
    {"select": ("alpha:0.5:0.9", "num_bits:128:256")},
]


def dense_graph(vectors, later, p):
    """Similarities among the points and of later ones to them, kept as line 7 does; dense, float64."""
    pi = np.asarray(lsh.hyperplanes(xclp.setup(p.seed), p.num_bits, later.shape[1]), np.float64)
    old, new = (v.astype(np.float64) @ pi.T >= 0 for v in (np.concatenate(vectors), later))
    kept = []
    for rows, own in ((old, True), (new, False)):
        a = np.cos(np.pi * (rows[:, None] != old[None]).sum(-1) / p.num_bits)
        if own:
            np.fill_diagonal(a, -np.inf)
        nearest = np.argsort(-a, axis=1, kind="stable")[:, : min(p.num_neighbors, len(old) - own)]
        b = np.zeros_like(a)
        at = np.arange(len(rows))[:, None], nearest
        b[at] = np.maximum(a[at], 0) ** p.similarity_power
        kept.append(b)
    return kept[0] + kept[0].T, kept[1]


def dense_extension(z, vectors, later, p):
    """Z_x by the row that x would have in the enlarged system, solved for Z_x; float64."""
    between, b = dense_graph(vectors, later, p)
    degree, listed = between.sum(1), b.sum(1)
    w = b / np.sqrt(np.where(listed > 0, listed, 1)[:, None] * np.where(degree > 0, degree, 1))
    return p.alpha * w @ z


@pytest.mark.parametrize(
    ("switches", "sizes"),
    [*((switches, [40, 25, 60]) for switches in SWITCHES), ({}, [2, 0, 1])],
    ids=str,
)
@pytest.mark.sample(3)
def test_agrees_with_the_dense_row(switches, sizes):
    vectors, labels, _ = clustered_clients(sizes)
    p = Parameters(num_classes=3, **{"num_bits": 256, "num_neighbors": 4, **switches})
    result = cross_client_label_propagation(vectors, labels, p)
    later, _, _ = clustered_clients([7, 0, 5], seed=3)
    found = label_later(result, later, p)
    z, p = result.artifacts.scores.astype(np.float64), result.artifacts.p
    expected = dense_extension(z, vectors, np.concatenate(later), p)
    scores = np.concatenate([own.scores for own in result.predictions])
    if p.client_prior:
        counts = np.array([np.bincount(y[y >= 0], minlength=3) for y in labels])
        share = (counts.sum(0) + 1) / (counts.sum() + 3)
        own = (counts + 3 * share) / (counts.sum(1, keepdims=True) + 3)
        expected *= np.repeat(own / share, [7, 0, 5], axis=0)
        weighed = np.maximum(z, 0) * np.repeat(own / share, sizes, axis=0)
        np.testing.assert_allclose(weighed, scores, rtol=1e-5)
    else:
        np.testing.assert_array_equal(z, scores)
    ours = [np.concatenate(part) for part in zip(*found, strict=True)]
    np.testing.assert_allclose(ours[2], expected, rtol=2e-4, atol=1e-6 * z.max())
    total = np.where(expected.sum(1) > 1e-9, expected.sum(1), 0)  # cos(pi / 2) is rounding
    label = np.where(total > 0, expected.argmax(1), -1)
    np.testing.assert_array_equal(ours[0], label)
    share = np.where(total > 0, expected.T / np.where(total > 0, total, 1), 1).T
    confidence = 1 + np.sum(share * np.log(np.maximum(share, 1e-30)), axis=1) / np.log(3)
    if p.relative_confidence:
        confidence = confidence / dense_algorithm_1(vectors, labels, p)[1].max()
    expected_confidence = np.where(total > 0, np.minimum(confidence, 1), 0)
    np.testing.assert_allclose(ours[1], expected_confidence, atol=2e-4)
    assert [own.labels.shape for own in found] == [(7,), (0,), (5,)]


@pytest.mark.parametrize(
    "switches",
    [{}, {"label_matrix": "class_balanced"}],
    ids=str,
)
def test_a_point_that_nobody_lists_gets_its_own_scores_back(switches):
    """It is taken out of the graph that it was in, and asked for: its row there is all that it is."""
    vectors, labels, _ = clustered_clients([40, 60])
    p = Parameters(num_classes=3, num_bits=256, num_neighbors=4, **switches)
    points, labeled = np.concatenate(vectors), np.concatenate(labels)
    between, _ = dense_graph([points], points, p)
    mutual = (between > 0).sum(1)
    alone = np.flatnonzero((mutual == p.num_neighbors) & (labeled < 0))[0]
    others = np.delete(np.arange(100), alone)
    given = [points[others], points[[alone]]], [labeled[others], labeled[[alone]]]
    result = cross_client_label_propagation(*given, p)
    kept = result.artifacts
    without = result._replace(
        predictions=result.predictions[:1],
        artifacts=kept._replace(codes=kept.codes[:1], scores=kept.scores[:-1]),
    )
    own, (asked,) = result.predictions[1], label_later(without, given[0][1:], p)
    np.testing.assert_array_equal(asked.labels, own.labels)
    np.testing.assert_allclose(asked.scores, own.scores, atol=2e-6 * own.scores.max())


@pytest.mark.parametrize("switches", [{}, {"bit_epsilon": 2.0}], ids=str)
def test_points_do_not_depend_on_who_else_asks(switches):
    vectors, labels, _ = clustered_clients([30, 30])
    settings = {"num_classes": 3, "num_bits": 256, "num_neighbors": 4, **switches}
    found = propagate_labels(vectors, labels, **settings)
    (later,), _, _ = clustered_clients([300], seed=4)
    (together,) = found.label([later])
    apart = found.label([later[:1], later[1:290], later[290:]])
    for joint, *parts in zip(together, *apart, strict=True):
        np.testing.assert_array_equal(joint, np.concatenate(parts))
    (some,) = found.label([later[5:9]])  # in another call, and other places
    np.testing.assert_array_equal(some.scores, together.scores[5:9])


def test_weights_are_of_estimated_distances_where_bits_are_noisy():
    """One below zero is no distance, and one beyond L, as of nobody, no edge: its cosine is not taken."""
    p = Parameters(num_classes=3, num_bits=64, num_neighbors=3, alpha=0.9, bit_epsilon=1.5)
    flips = 2 * np.exp(1.5) / (1 + np.exp(1.5)) ** 2
    estimates = (np.array([10, 30, 65]) - 64 * flips) / (1 - 2 * flips)
    cosines = np.cos(np.pi * estimates / 64)
    assert estimates[0] < 0 < cosines[2]
    b, roots = np.array([1, cosines[1], 0]), np.array([2, 3], np.float32)
    expected = 0.9 * b / np.sqrt(b.sum()) / np.array([2, 3, 1])
    near = [np.array([row], np.int32) for row in ([0, 1, -1], [10, 30, 65])]
    np.testing.assert_allclose(induction_weights(*near, roots, p), expected[None], rtol=1e-5)


def test_noise_on_bits_is_on_later_ones_too(monkeypatch):
    vectors, labels, _ = clustered_clients([60, 60])
    settings = {"num_classes": 3, "num_bits": 256, "num_neighbors": 4, "seed": 1}
    noisy = propagate_labels(vectors, labels, bit_epsilon=1.0, **settings)
    (later,) = noisy.label([vectors[0]])
    (again,) = noisy.label([vectors[0]])
    np.testing.assert_array_equal(later.scores, again.scores)
    # Its own code has other noise in the graph, so that it is not at distance 0 of itself.
    plain = propagate_labels(vectors, labels, **settings).label([vectors[0]])[0]
    assert np.abs(later.scores - plain.scores).max() > 1e-3 * plain.scores.max()
    monkeypatch.setattr(randomized_response, "randomize_bits", lambda bits, *_: bits)
    (bare,) = noisy.label([vectors[0]])
    assert np.abs(later.scores - bare.scores).max() > 1e-3 * bare.scores.max()
