"""A ridge on XCLP's labels, smoothed over its graph: against NumPy, over protocols, later points, chosen."""

from functools import cache

import numpy as np
import pytest
from dense_xclp import clustered_clients, dense_algorithm_1
from secure_labels import digits

from jaxfed.xclp import Parameters, cross_client_label_propagation, label_later, propagate_labels

C = 10
SETTINGS = {"num_classes": C, "num_bits": 256, "num_neighbors": 5, "alpha": 0.9, "center": True}


@cache
def data():
    return digits(3, 120, labeled=0.3)


def labeled(**more):
    return cross_client_label_propagation(*data(), Parameters(**{**SETTINGS, **more}))


@cache
def headed():
    return labeled(head="ridge")


def twin():
    """W and Z' in float64, on all points at once, by the equations of the file."""
    vectors, labels = data()
    v, y = np.concatenate(vectors).astype(np.float64), np.concatenate(labels)
    v = v - v.mean(axis=0).astype(np.float32)
    p = Parameters(**{**SETTINGS, "center": False})
    found, weight, _, smooth = dense_algorithm_1([v], [y], p, with_graph=True)
    z = v / np.linalg.norm(v, axis=1, keepdims=True)
    target = np.eye(C)[np.where(y >= 0, y, found)] * (weight / weight.mean())[:, None]
    gram = (z * (weight / weight.mean())[:, None]).T @ z
    w = np.linalg.solve(gram + 10 * np.eye(z.shape[1]), z.T @ target)
    w = w / np.linalg.norm(w, axis=0)
    means = (z.T @ target) / target.sum(axis=0)
    scale = np.sqrt(np.mean((means.T @ w) ** 2))
    answers = np.exp(z @ w * 10 / (3 * scale))
    answers = answers / answers.sum(axis=1, keepdims=True)
    answers[y >= 0] = np.eye(C)[y[y >= 0]]
    return w, np.linalg.solve(np.eye(len(v)) - 0.8 * smooth, answers)


def test_head_and_scores_are_those_of_float64():
    w, scores = twin()
    ours = headed()
    weights = ours.head.weights / np.linalg.norm(ours.head.weights, axis=0)
    np.testing.assert_allclose(weights, w, atol=1e-4)
    there = np.concatenate([own.scores for own in ours.predictions])
    np.testing.assert_allclose(there, scores, atol=2e-3)


@pytest.mark.parametrize(
    "protocols",
    [{}, {"row_sums": "masked"}, {"row_sums": "masked_resilient", "hamming": "masked"}],
)
def test_protocols_have_the_scores_of_the_clear(protocols):
    hidden = labeled(head="ridge", influence="columns", **protocols)
    for mine, other in zip(hidden.predictions, headed().predictions, strict=True):
        np.testing.assert_allclose(mine.scores, other.scores, atol=2e-4)
    if "row_sums" in protocols:
        sent = hidden.communication.upload.keys()
        assert not sent & {"second_moments", "class_sums", "answers", "feature_sums"}


def test_bytes_of_the_three_exchanges():
    n, d = sum(map(len, data()[0])), data()[0][0].shape[1]
    plain, more = labeled().communication, headed().communication
    assert dict(more.upload - plain.upload) == {
        "second_moments": 3 * 4 * d * (d + 1) // 2,
        "class_sums": 3 * 4 * (d + 1) * C,
        "answers": 4 * n * C,
    }
    assert dict(more.download - plain.download) == {"weights": 3 * 4 * d * C, "row_sums": 4 * n * C}
    columns = {"influence": "columns", "hamming": "masked"}  # row sums beside the session's channel
    plain, more = (labeled(head=h, **columns).communication for h in ("none", "ridge"))
    assert (more.upload - plain.upload)["contributions"] == 3 * 4 * n * C


def test_later_points_are_labeled_by_head_and_graph():
    """A point of the graph is its own nearest neighbor, and so keeps its label."""
    vectors, labels = data()
    later = label_later(headed(), vectors, Parameters(**SETTINGS, head="ridge"))
    for mine, other, y in zip(later, headed().predictions, labels, strict=True):
        assert np.mean((mine.labels == other.labels)[y < 0]) > 0.9


def test_centering_takes_out_a_shift():
    """Codes of shifted points are those of the points where all clients are centered, and not without."""
    vectors, labels, _ = clustered_clients((30, 30))
    shifted = [v + 20 for v in vectors]
    p = Parameters(num_classes=3, num_bits=256, center=True)
    for own in (p, Parameters(num_classes=3, num_bits=256)):
        there = cross_client_label_propagation(vectors, labels, own).predictions
        moved = cross_client_label_propagation(shifted, labels, own).predictions
        same = all((a.labels == b.labels).all() for a, b in zip(there, moved, strict=True))
        assert same == own.center


def test_head_is_chosen_where_classes_are_linear():
    """Gaussians in 50 dimensions suit a ridge, a ring around a disk the graph alone."""
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    gaussians = rng.normal(size=(2, 50))[y] * 0.7 + rng.normal(size=(200, 50))
    angle = rng.uniform(0, 2 * np.pi, 200)
    cone = np.where(y, 0.3, 1.2) + rng.normal(size=200) * 0.03  # angle to an axis
    ring = np.stack(
        [np.sin(cone) * np.cos(angle), np.sin(cone) * np.sin(angle), np.cos(cone) - 0.9], axis=1
    )
    chosen = []
    for x in (gaussians, ring):
        p = Parameters(
            num_classes=2, num_bits=1024, label_matrix="degree_balanced", select=("head",)
        )
        result = cross_client_label_propagation(
            [x.astype(np.float32)], [np.where(np.arange(200) < 60, y, -1)], p
        )
        assert result.choice.chosen == {"head": result.choice.p.head}
        assert (result.head is None) == (result.choice.p.head == "none")
        chosen.append(result.choice.p.head)
    assert chosen == ["ridge", "none"]


def test_a_labeling_has_its_head():
    """The head alone labels points as its answers in the graph do, mostly."""
    vectors, labels = data()
    found = propagate_labels(vectors, labels, **SETTINGS, head="ridge")
    alone = found.head(np.concatenate(vectors)).argmax(axis=1)
    assert np.mean(alone == np.concatenate([own.labels for own in found])) > 0.8


def test_without_labels_there_is_no_head():
    vectors, labels = data()
    nothing = [np.full_like(y, -1) for y in labels]
    for more in ({"head": "ridge"}, {"select": ("head",)}):
        result = cross_client_label_propagation(vectors, nothing, Parameters(**SETTINGS, **more))
        assert all((own.labels == -1).all() for own in result.predictions)
