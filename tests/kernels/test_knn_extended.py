"""Neighbor lists after points have been added, against a search among all points and against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_kernels as reference
from hypothesis import given
from hypothesis import strategies as st

from jaxfed.kernels import hamming, knn, knn_extended
from jaxfed.kernels.knn_extended import extended_hamming_knn
from jaxfed.kernels.neighbors import column_minima


def some_codes(n, num_words=2, num_different=16, seed=0):
    """Few different codes: most distances are tied."""
    return np.random.default_rng(seed).integers(0, num_different, (n, num_words)).astype(np.uint32)


def dense_lists(bits, k):
    """The first of each row by (distance, index), without the point itself, by NumPy."""
    h = reference.hamming_distances(bits, bits)
    np.fill_diagonal(h, 1 << 40)
    order = np.argsort(h, axis=1, kind="stable")[:, : min(k, max(len(bits) - 1, 0))]
    missing = 32 * bits.shape[1] + 1
    beyond = ((0, 0), (0, k - order.shape[1]))
    return (
        np.pad(order, beyond, constant_values=-1),
        np.pad(np.take_along_axis(h, order, axis=1), beyond, constant_values=missing),
    )


def check(bits, is_new, k):
    old = dense_lists(bits[~is_new], k)
    found = extended_hamming_knn(bits, is_new, *(values.astype(np.int32) for values in old), k)
    for ours, theirs in zip(found, dense_lists(bits, k), strict=True):
        assert ours.dtype == np.int32
        np.testing.assert_array_equal(ours, theirs)


# Up to 16 new points have one program.
@given(st.integers(0, 40), st.integers(0, 16), st.sampled_from([3, 50]), st.integers(0, 99))
def test_equals_numpy_with_ties(n, m, k, seed):
    if n + m:
        rng = np.random.default_rng(seed)
        check(some_codes(n + m, seed=seed), rng.permutation(n + m) < m, k)


def test_several_blocks_and_batches(monkeypatch):
    monkeypatch.setattr(knn_extended, "_NEW_AT_ONCE", 16)
    monkeypatch.setattr(knn_extended, "_OLD_AT_ONCE", 64)
    is_new = np.random.default_rng(0).random(300) < 0.3
    check(some_codes(300, num_different=2**31), is_new, 3)  # by the programs of the test above
    check(some_codes(300), is_new, 50)  # more than a batch has


def test_searches_in_place_of_shared_distances(monkeypatch):
    """As on accelerators."""
    monkeypatch.setitem(hamming._KERNELS, "popcount", hamming._KERNELS["matmul"])
    between = knn_extended._between.__wrapped__
    anew = jax.jit(lambda *given: between(*given), static_argnums=5)  # no cached program
    monkeypatch.setattr(knn_extended, "_between", anew)
    is_new = np.random.default_rng(0).random(40) < 0.3
    check(some_codes(40), is_new, 6)


@pytest.mark.parametrize(("num_words", "is_shared"), [(2**10, True), (2**15, False)])
def test_distances_that_leave_no_bits_for_a_number_are_searched(monkeypatch, num_words, is_shared):
    called = []
    original = column_minima.first_numbered_within
    monkeypatch.setattr(
        column_minima,
        "first_numbered_within",
        lambda *given: called.append(1) or original(*given),
    )
    codes = [jax.ShapeDtypeStruct((n, num_words), jnp.uint32) for n in (1024, 2048)]
    are_there = [jax.ShapeDtypeStruct((n,), jnp.bool_) for n in (1024, 2048)]
    farthest = jax.ShapeDtypeStruct((2048,), jnp.int32)
    jax.eval_shape(lambda *given: knn_extended._between(*given, 3), *codes, *are_there, farthest)
    assert bool(called) == is_shared


def test_equals_the_search_among_all():
    """Two tiles of old points, and as many new ones as share a program."""
    bits, k = some_codes(1400, num_different=2**31), 3
    compiled = knn_extended._between._cache_size()
    for m in (101, 112):
        is_new = np.random.default_rng(m).permutation(len(bits)) < m
        indices, distances = map(np.asarray, knn.hamming_knn(bits, k, valid=~is_new))
        old = (np.cumsum(~is_new) - 1)[indices[~is_new]], distances[~is_new]
        found = extended_hamming_knn(bits, is_new, *old, k)
        whole = knn.hamming_knn(bits, k, valid=np.ones(len(bits), bool))
        for ours, theirs in zip(found, whole, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert knn_extended._between._cache_size() - compiled <= 1
