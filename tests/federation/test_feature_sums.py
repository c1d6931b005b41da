"""Mean and deviation of examples: to the last digit, whatever they are of and however many."""

import numpy as np
import pytest

from jaxfed.federation.census import added, feature_sums, mean_and_deviation


def computed(x, rows):
    return mean_and_deviation(feature_sums(x, rows), of_bytes=x.dtype == np.uint8)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_sums_of_parties_give_what_all_examples_give(dtype):
    x = np.random.default_rng(1).integers(0, 256, (50, 3, 3, 2)).astype(dtype)
    parts = [feature_sums(x, rows) for rows in np.split(np.arange(50), [7, 7, 31])]
    found = mean_and_deviation(added(parts), of_bytes=dtype == np.uint8)
    for one, expected in zip(found, computed(x, np.arange(50)), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-7)


@pytest.mark.parametrize("shape", [(600, 5, 5, 1), (600, 5, 5, 3), (600, 7), (40, 96, 96, 3)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_they_are_those_of_the_rows_that_count(shape, dtype):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, shape).astype(dtype)
    x[..., 0] //= 4
    rows = rng.permutation(len(x))[: len(x) - 7]  # several parts, of unlike lengths
    values = x[rows].astype(np.float64)
    axes = tuple(range(x.ndim - 1))
    mean = values.mean(axis=axes)
    deviation = np.sqrt(np.square(values).mean(axis=axes) - np.square(mean))
    unit = 255 if dtype == np.uint8 else 1
    for found, expected in zip(computed(x, rows), (mean, deviation), strict=True):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected / unit, rtol=1e-7)


def test_white_images_do_not_overflow_and_deviate_by_nothing():
    mean, deviation = computed(np.full((2000, 64, 64, 1), 255, np.uint8), np.arange(2000))
    np.testing.assert_array_equal(mean, [1])
    np.testing.assert_array_equal(deviation, [1])


@pytest.mark.parametrize("unit", [1e-30, 1e-7, 1.0, 1e7])
def test_a_feature_has_its_deviation_in_any_unit(unit):
    """A table in metres, one in nanometres: only what is constant up to rounding has deviation 1."""
    varies = np.array([3.0, 5.0, 4.0, 8.0])
    x = (np.stack([varies, np.full(4, 0.3), 1e3 + varies], axis=1) * unit).astype(np.float32)
    _, deviation = computed(x, np.arange(4))
    expected = x.astype(np.float64).std(axis=0)
    np.testing.assert_allclose(deviation, [expected[0], 1, expected[2]], rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_nobody_has_a_mean(dtype):
    mean, deviation = computed(np.zeros((3, 4), dtype), np.zeros(0, int))
    np.testing.assert_array_equal(mean, np.zeros(4))
    np.testing.assert_array_equal(deviation, np.ones(4))
