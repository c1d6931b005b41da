"""XCLP against an independent dense float64 computation of Algorithm 1, and its edges."""

import inspect
import re

import jax.numpy as jnp
import numpy as np
import pytest
from dense_xclp import clustered_clients, dense_algorithm_1
from hypothesis import given
from hypothesis import strategies as st

from jaxfed.xclp import Parameters, cross_client_label_propagation, predict, propagate_labels

FEW_BITS = {"num_classes": 3, "num_bits": 256}  # one program for most tests
SWITCHES = [
    {},
    {"similarity_power": 3.0},
    {"label_matrix": "class_balanced"},
    {"alpha": 0.5, "num_neighbors": 3},
    {"num_bits": 64},
    {"influence": "columns"},
    {"influence": "columns", "label_matrix": "class_balanced"},
    {"num_neighbors": 1},
    {"alpha": 0.999},
]


@pytest.mark.gpu
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
@pytest.mark.sample(2)
def test_agrees_with_the_dense_algorithm(switches):
    vectors, labels, _ = clustered_clients([40, 25, 60])
    p = Parameters(**{**FEW_BITS, **switches})
    result = cross_client_label_propagation(vectors, labels, p)
    label, confidence, z = dense_algorithm_1(vectors, labels, p)
    ours = [np.concatenate(part) for part in zip(*result.predictions, strict=True)]
    np.testing.assert_array_equal(ours[0], label)
    np.testing.assert_allclose(ours[1], confidence, atol=2e-5)
    np.testing.assert_allclose(ours[2], z, rtol=1e-4, atol=2e-6 * z.max())
    assert [len(p.labels) for p in result.predictions] == [40, 25, 60]
    # float32 holds z itself to about 6e-8 |z|, which bounds the residual that any z can have.
    y = (np.concatenate(labels)[:, None] == np.arange(3)).astype(float)
    growth = (
        np.linalg.norm(z, axis=0)
        / np.linalg.norm(y, axis=0)
        * (np.maximum(y.sum(0), 1) if p.label_matrix == "class_balanced" else 1)
    )
    assert result.residual <= max(1e-6, 2e-7 * growth.max())


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize("n", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_labels_agree_at_size(n):
    vectors, labels, truth = clustered_clients([n // 5] * 5, 10, 64, labeled=0.05)
    p = Parameters(num_classes=10)
    result = cross_client_label_propagation(vectors, labels, p)
    ours = np.concatenate([prediction.labels for prediction in result.predictions])
    dense, _, _ = dense_algorithm_1(vectors, labels, p)
    assert np.mean(ours == dense) >= 0.999
    assert np.mean(ours == np.concatenate(truth)) > 0.9


ONE = {"num_classes": 2, "num_bits": 32, "num_neighbors": 1}


def test_three_points_by_hand():
    """A labeled 0, C labeled 1, B beside A; k = 1: A-B one component, C's nearest is B at cos < 0."""
    vectors = [np.array([[1, 0.1], [1, 0.0]], np.float32), np.array([[-1, 0.0]], np.float32)]
    labels = [np.array([0, -1]), np.array([1])]
    (first, second) = propagate_labels(vectors, labels, **ONE, alpha=0.5)
    np.testing.assert_array_equal(first.labels, [0, 0])
    np.testing.assert_array_equal(second.labels, [1])
    # W = [[0, 1], [1, 0]] on {A, B}: Z_A = 1 / (1 - a^2), Z_B = a / (1 - a^2). C alone: Z_C = 1.
    np.testing.assert_allclose(first.scores, [[4 / 3, 0], [2 / 3, 0]], rtol=1e-5)
    np.testing.assert_allclose(second.scores, [[0, 1]], rtol=1e-5)
    np.testing.assert_allclose(np.concatenate([first.confidences, second.confidences]), 1)


def test_unreached_points_are_counted_not_guessed():
    vectors = [
        np.array([[1, 0], [1, 0.01]], np.float32),
        np.array([[-1, 0], [-1, 0.01]], np.float32),
    ]
    labels = [np.array([0, -1]), np.array([-1, -1])]
    p = Parameters(**ONE)
    result = cross_client_label_propagation(vectors, labels, p)
    np.testing.assert_array_equal(result.predictions[1].labels, [-1, -1])
    np.testing.assert_array_equal(result.predictions[1].confidences, [0, 0])
    np.testing.assert_array_equal(result.predictions[1].scores, np.zeros((2, 2)))
    assert sum(np.sum(own.labels < 0) for own in result.predictions) == 2


CLIENTS = {
    "no points": ([0, 30], [0.0, 0.5]),
    "one point": ([1, 30], [0.0, 0.5]),
    "no labels": ([20, 30], [0.0, 0.5]),
    "only labels": ([20, 30], [1.0, 0.0]),
    "nobody has labels": ([20, 30], [0.0, 0.0]),
    "nobody has points": ([0, 0], [0.0, 0.0]),
    "one point in all": ([1], [1.0]),
    "one client": ([30], [0.5]),
    "two points, k = 10": ([1, 1], [1.0, 0.0]),
}


@pytest.mark.parametrize("influence", ["labels", "columns"])
@pytest.mark.parametrize(("sizes", "labeled"), CLIENTS.values(), ids=CLIENTS)
@pytest.mark.sample(6)
def test_clients_of_every_kind(sizes, labeled, influence):
    vectors, _, truth = clustered_clients(sizes)
    rng = np.random.default_rng(1)
    labels = [
        np.where(rng.random(len(y)) < share, y, -1) for y, share in zip(truth, labeled, strict=True)
    ]
    predictions = propagate_labels(vectors, labels, **FEW_BITS, influence=influence)
    assert [p.labels.shape for p in predictions] == [(size,) for size in sizes]
    assert [p.scores.shape for p in predictions] == [(size, 3) for size in sizes]
    for p in predictions:
        assert p.labels.dtype == np.int32
        assert p.confidences.dtype == p.scores.dtype == np.float32
        assert np.isfinite(p.scores).all()
        assert ((p.confidences >= 0) & (p.confidences <= 1)).all()
        np.testing.assert_array_equal(p.labels == -1, p.scores.max(axis=1, initial=0) <= 0)


def test_ways_of_dealing_points_to_clients_do_not_matter():
    """The joint graph knows no clients: splitting or merging them leaves every point's result."""
    vectors, labels, _ = clustered_clients([50])
    whole = propagate_labels(vectors, labels, **FEW_BITS)[0]
    parts = propagate_labels(
        np.split(vectors[0], [7, 7, 30]), np.split(labels[0], [7, 7, 30]), **FEW_BITS
    )
    for joint, split in zip(whole, zip(*parts, strict=True), strict=True):
        np.testing.assert_array_equal(joint, np.concatenate(split))


def test_same_seed_same_bits_other_seed_other_codes():
    vectors, labels, _ = clustered_clients([50])
    runs = [
        propagate_labels(vectors, labels, num_classes=3, num_bits=64, seed=s) for s in (0, 0, 1)
    ]
    np.testing.assert_array_equal(runs[0][0].scores, runs[1][0].scores)
    assert (runs[0][0].scores != runs[2][0].scores).any()


def test_relative_confidence_divides_by_the_largest_of_all_clients():
    _, labels, _ = clustered_clients([30, 30])
    vectors = list(np.random.default_rng(0).standard_normal((2, 30, 16)))  # nobody is sure
    plain = propagate_labels(vectors, labels, **FEW_BITS)
    relative = propagate_labels(vectors, labels, **FEW_BITS, relative_confidence=True)
    largest = max(p.confidences.max() for p in plain)
    assert largest < 0.5
    for a, b in zip(plain, relative, strict=True):
        np.testing.assert_allclose(a.confidences / largest, b.confidences, rtol=1e-6)


def test_communication_counts_the_messages_of_algorithm_1():
    vectors, labels, _ = clustered_clients([30, 20])
    p = Parameters(**FEW_BITS)
    n, num_labeled = 50, sum(int((y >= 0).sum()) for y in labels)
    metrics = cross_client_label_propagation(vectors, labels, p).communication.metrics()
    assert metrics["upload"] == {
        "positions": 4 * num_labeled,
        "codes": n * 32,
        "contributions": 2 * 4 * n * 3,
    }
    assert metrics["download"] == {"influence_columns": 4 * n * num_labeled, "row_sums": 4 * n * 3}


def test_slow_convergence_is_told():
    vectors, labels, _ = clustered_clients([50])
    with pytest.warns(RuntimeWarning, match="stopped at relative residual"):
        propagate_labels(vectors, labels, **FEW_BITS, max_steps=2)


@given(
    st.integers(0, 6).flatmap(
        lambda n: st.lists(
            st.lists(st.floats(-1, 100, width=32), min_size=4, max_size=4), min_size=n, max_size=n
        )
    )
)
def test_predictions_are_labels_and_confidences(rows):
    scores = np.zeros((6, 4), np.float32)  # one program for all numbers of rows
    scores[: len(rows)] = rows or 0
    label, confidence = map(np.asarray, predict(jnp.asarray(scores)))
    reached = scores.max(axis=1) > 0
    np.testing.assert_array_equal(label >= 0, reached)
    assert ((confidence >= 0) & (confidence <= 1)).all()
    np.testing.assert_array_equal(confidence[~reached], 0)
    np.testing.assert_array_equal(label[reached], scores[reached].argmax(1))


def test_confidence_is_one_when_sure_and_zero_when_not():
    _, confidence = predict(jnp.array([[3.0, 0.0], [2.0, 2.0], [0.0, 0.0]]))
    np.testing.assert_allclose(confidence, [1, 0, 0], atol=1e-6)
    np.testing.assert_allclose(predict(jnp.array([[3.0]]))[1], [1])


@pytest.mark.parametrize("scale", [1e-41, 1e-37, 1e37])
@pytest.mark.sample(2)
def test_labels_do_not_depend_on_a_scale_at_the_edge_of_float32(scale):
    rng = np.random.default_rng(0)
    vectors = [rng.uniform(-1, 1, (30, 5)) for _ in range(3)]
    labels = [np.where(np.arange(30) < 6, np.arange(30) % 2, -1) for _ in range(3)]
    plain = propagate_labels(vectors, labels, **FEW_BITS)
    scaled = propagate_labels([scale * v for v in vectors], labels, **FEW_BITS)
    for ours, theirs in zip(scaled, plain, strict=True):
        np.testing.assert_array_equal(ours[0], theirs[0])
        np.testing.assert_array_equal(ours[2], theirs[2])


# How the paper marks its sixteen lines.
MARKS = ["XS", *3 * ["CS"], "XS", *5 * ["SS"], *3 * ["CS"], "XS", *2 * ["CS"]]


def test_the_function_names_every_line_of_the_paper_in_order():
    source = inspect.getsource(cross_client_label_propagation)
    marks = re.findall(r"\b(\d+)-(XS|CS|SS)\b", source)
    assert marks == [(str(line), mark) for line, mark in enumerate(MARKS, start=1)]
