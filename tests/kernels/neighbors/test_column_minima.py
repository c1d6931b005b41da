import jax
import numpy as np
import pytest

from jaxfed.kernels import column_minima

FIRST, NUMBERED = (
    jax.jit(function, static_argnums=1)
    for function in (column_minima.first, column_minima.first_numbered)
)


@pytest.mark.parametrize("dtype", [np.int16, np.int32])
@pytest.mark.parametrize(("num_rows", "k"), [(1, 1), (33, 33), (64, 5)])
def test_first_numbered_takes_the_first_of_equals(dtype, num_rows, k):
    distances = np.random.default_rng(0).integers(0, 9, (num_rows, 7)).astype(dtype)
    found, rows = NUMBERED(distances, k)
    expected = np.argsort(distances, axis=0, kind="stable")[:k]
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(found, np.take_along_axis(distances, expected, axis=0))


@pytest.mark.parametrize(
    ("num_rows", "k"), [(1, 1), (33, 33), (64, 5), (64, 4), (160, 10), (161, 2)]
)
@pytest.mark.sample(2)
def test_first_takes_the_first_of_equals_and_no_nan(num_rows, k):
    """Of 64 and more rows, four or ten are found by groups of eight."""
    rng = np.random.default_rng(0)
    distances = rng.integers(-9, 9, (num_rows, 50)).astype(np.float32) / 8
    for share in (0, 0.1):
        distances[rng.random(distances.shape) < share] = np.nan
        found, rows = FIRST(distances, k)
        last = np.where(np.isnan(distances), np.inf, distances)
        expected = np.argsort(last, axis=0, kind="stable")[:k]
        values = np.take_along_axis(last, expected, axis=0)
        np.testing.assert_array_equal(found, values)
        np.testing.assert_array_equal(np.asarray(rows)[values < np.inf], expected[values < np.inf])


def test_columns_of_few_numbers_have_no_more():
    distances = np.full((64, 3), np.nan, np.float32)
    distances[5, 0] = distances[60, 0] = distances[9, 1] = 1
    found, rows = FIRST(distances, 2)
    np.testing.assert_array_equal(found, [[1, 1, np.inf], [1, np.inf, np.inf]])
    assert np.asarray(rows)[:, 0].tolist() == [5, 60]


@pytest.mark.parametrize("k", [1, 2, 10])
def test_ascending_sorts_columns_equal_values_too(k):
    x = np.random.default_rng(0).integers(0, 6, (k, 20)).astype(np.int32)
    np.testing.assert_array_equal(jax.jit(column_minima.ascending)(x), np.sort(x, axis=0))
