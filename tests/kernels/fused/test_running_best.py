import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfed.kernels.fused import running_best

merged = jax.jit(running_best.merged)


@given(st.integers(0, 2**31), st.sampled_from([1, 3, 16]), st.sampled_from([1, 24]))
def test_tile_after_tile_the_smallest_keys_are_kept(seed, k, width):
    rng = np.random.default_rng(seed)
    keys = np.argsort(rng.random((5, 4 * width)), axis=1).astype(np.int32)
    keys[rng.random(keys.shape) < rng.random()] = running_best.NOBODY
    best = running_best.nobody(5, 16, k)
    for tile in np.split(keys, 4, axis=1):
        best = merged(jnp.asarray(tile), best)
    distances, columns, is_there = running_best.decoded(jnp.sort(best[:, :k], axis=1), 4096)
    for row, found in enumerate(np.asarray(is_there)):
        expected = np.sort(keys[row][keys[row] != running_best.NOBODY])[:k]
        assert found.tolist() == [i < len(expected) for i in range(k)]
        np.testing.assert_array_equal(np.asarray(columns)[row, : len(expected)], expected)
    assert set(np.asarray(distances)[~np.asarray(is_there)].tolist()) <= {4097}


@pytest.mark.parametrize("num_bits", [32, 4096, 8191, 16384, 2**22])
def test_keys_hold_the_farthest_in_the_last_column(num_bits):
    bits = running_best.column_bits(num_bits)
    distances, columns = jnp.array([0, num_bits, num_bits]), jnp.array([0, 0, 2**bits - 1])
    keys = running_best.as_keys(distances, columns, num_bits)
    assert keys.max() < running_best.nobody(1, 64, 64).min()
    assert keys.tolist() == sorted(set(keys.tolist()))
    found = running_best.decoded(keys, num_bits)
    assert [x.tolist() for x in found] == [distances.tolist(), columns.tolist(), [True] * 3]
