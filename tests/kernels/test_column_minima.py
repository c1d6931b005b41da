import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.kernels import column_minima


@pytest.mark.parametrize("dtype", [np.int16, np.int32])
@pytest.mark.parametrize(("num_rows", "k"), [(1, 1), (33, 33), (64, 5)])
def test_first_numbered_takes_the_first_of_equals(dtype, num_rows, k):
    distances = np.random.default_rng(0).integers(0, 9, (num_rows, 7)).astype(dtype)
    found, rows = column_minima.first_numbered(jnp.asarray(distances), k)
    expected = np.argsort(distances, axis=0, kind="stable")[:k]
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(found, np.take_along_axis(distances, expected, axis=0))


@pytest.mark.parametrize("k", [1, 2, 10])
def test_ascending_sorts_columns_equal_values_too(k):
    x = np.random.default_rng(0).integers(0, 6, (k, 20)).astype(np.int32)
    np.testing.assert_array_equal(column_minima.ascending(jnp.asarray(x)), np.sort(x, axis=0))
