"""Accuracies by hand and by scikit-learn, and the calibration of confidences by a loop."""

from itertools import pairwise

import jax
import numpy as np
import pytest

from jaxfed.data import Partition
from jaxfed.federation.clients import Federation
from jaxfed.federation.evaluate import (
    accuracy,
    balanced_accuracy,
    expected_calibration_error,
    over_clients,
    reliability,
)
from jaxfed.xclp.one_shot.cosine_error import cosine_rmse
from jaxfed.xclp.one_shot.transduction import Transduction, evaluate_clients


def test_accuracies_by_hand():
    truth, predicted = np.array([0, 0, 0, 2]), np.array([0, 1, -1, 2])
    assert accuracy(predicted, truth) == 0.5
    assert balanced_accuracy(predicted, truth) == pytest.approx((1 / 3 + 1) / 2)
    unknown = np.array([-1, -1])
    assert accuracy(np.append(predicted, [-1, 0]), np.append(truth, unknown)) == 0.5
    assert balanced_accuracy(
        np.append(predicted, [-1, 0]), np.append(truth, unknown)
    ) == pytest.approx((1 / 3 + 1) / 2)
    for measure in (accuracy, balanced_accuracy):
        assert np.isnan([measure(unknown, unknown), measure(truth[:0], truth[:0])]).all()


def test_accuracies_of_clients_by_hand():
    """Client 0 has 1 of 2, client 1 3 of 4, client 2 one point of unknown class, client 3 1 of 1."""
    client = np.array([0, 0, 1, 1, 1, 1, 2, 3])
    truth = np.array([0, 1, 1, 1, 2, 0, -1, 2])
    predicted = np.array([0, -1, 1, 1, 2, 2, -1, 2])
    metrics = over_clients("test", predicted, truth, client, 5)
    each = metrics.pop("client_test_accuracy")
    np.testing.assert_array_equal(each, [0.5, 0.75, np.nan, 1, np.nan])
    assert metrics == {
        "worst_client_test_accuracy": 0.5,
        "tenth_percentile_client_test_accuracy": pytest.approx(0.55),  # a fifth of the way to 0.75
        "mean_client_test_accuracy": 0.75,
    }
    assert over_clients("test", predicted[:0], truth[:0], client[:0], 5) == {}
    assert over_clients("test", predicted[6:7], truth[6:7], client[6:7], 5) == {}


def test_one_shot_methods_are_measured_on_each_clients_new_points():
    """Labels first, new points last; client 1 has no new points, and a shorter row than client 0."""
    part = Partition(
        labeled=(np.array([0]), np.array([4])),
        unlabeled=(np.array([1]), np.array([], int)),
        new=(np.array([2, 3]), np.array([], int)),
    )
    y = np.array([0, 0, 1, 1, 1], np.int32)
    federation = Federation(np.zeros((5, 1), np.float32), y, part, 2)
    label = np.array([[1, 1, 1, 0], [0, -1, -1, -1]], np.int32)
    metrics = evaluate_clients(Transduction(label, np.ones((2, 4), np.float32)), federation)
    assert metrics["worst_client_test_accuracy"] == metrics["mean_client_test_accuracy"] == 0.5
    np.testing.assert_array_equal(metrics["client_test_accuracy"], [0.5, np.nan])


@pytest.mark.parametrize("num_bits", [64, 1024])
def test_cosine_error_is_what_theory_expects(num_bits):
    vectors = np.random.default_rng(0).standard_normal((300, 32)).astype(np.float32)
    errors = np.array(
        [cosine_rmse([vectors], jax.random.key(s), num_bits, num_points=100) for s in range(8)]
    )
    assert np.sqrt(np.mean(errors[:, 0] ** 2)) == pytest.approx(errors[0, 1], rel=0.1)
    # To first order, theory is pi sin(theta) sqrt(p (1 - p) / L), near pi / 2 / sqrt(L) at 90 degrees.
    assert errors[0, 1] == pytest.approx(np.pi / 2 / np.sqrt(num_bits), rel=0.1)


@pytest.mark.parametrize("num_points", [1, 7, 100, 1001])
def test_bins_are_those_of_sorted_points(num_points):
    rng = np.random.default_rng(num_points)
    confidence = rng.permutation(num_points) / num_points
    is_right = rng.random(num_points) < confidence
    order = np.argsort(confidence)
    error, edges = 0.0, [-(-b * num_points // 15) for b in range(16)]
    for start, end in pairwise(edges):
        own = order[start:end]
        if len(own):
            error += abs(confidence[own].sum() - is_right[own].sum()) / num_points
    np.testing.assert_allclose(expected_calibration_error(confidence, is_right), error)


def test_equal_confidences_are_in_one_bin_whatever_their_order():
    confidence = np.array([0.5] * 40 + [0.9] * 5)
    is_right = np.arange(45) % 2 == 0
    bins = reliability(confidence, is_right)
    np.testing.assert_array_equal(bins.num_points, [40, 5])
    order = np.random.default_rng(0).permutation(45)
    moved = expected_calibration_error(confidence[order], is_right[order])
    assert moved == expected_calibration_error(confidence, is_right)
