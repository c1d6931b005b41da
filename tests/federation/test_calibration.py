"""Expected calibration error by hand, against a loop in NumPy, and what it must not mind."""

from itertools import pairwise

import numpy as np
import pytest

from jaxfed.federation.evaluate import expected_calibration_error, reliability


def test_two_bins_by_hand():
    confidence = np.array([0.9, 0.2, 0.8, 0.4], np.float32)
    is_right = np.array([True, False, True, True])
    bins = reliability(confidence, is_right, 2)
    np.testing.assert_array_equal(bins.num_points, [2, 2])
    np.testing.assert_allclose(bins.confidence, [0.3, 0.85], rtol=1e-6)
    np.testing.assert_allclose(bins.accuracy, [0.5, 1.0])
    found = expected_calibration_error(confidence, is_right, 2)
    np.testing.assert_allclose(found, (0.2 + 0.15) / 2, rtol=1e-6)


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


def test_calibrated_ones_have_little_and_nothing_has_none():
    rng = np.random.default_rng(0)
    confidence = rng.random(20_000)
    assert expected_calibration_error(confidence, rng.random(20_000) < confidence) < 0.02
    assert expected_calibration_error(confidence, rng.random(20_000) < confidence**3) > 0.2
    assert np.isnan(expected_calibration_error(np.zeros(0), np.zeros(0, bool)))
