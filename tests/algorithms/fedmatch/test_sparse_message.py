"""What is sent of sparse arrays, and in how many bytes: a real encoder's, for each of the three ways."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfed.algorithms.fedmatch import (
    num_bytes_of_nonzero,
    where_changed,
    without_small,
)


def encodings(values, is_sent):
    """The three messages, as bytes."""
    sent = values[is_sent].tobytes()
    return (
        values.tobytes(),
        np.packbits(is_sent).tobytes() + sent,
        np.flatnonzero(is_sent).astype(np.uint32).tobytes() + sent,
    )


@given(st.integers(1, 400), st.floats(0, 1), st.integers(0, 2**31 - 1))
def test_bytes_are_those_of_the_shortest_encoding(n, share, seed):
    rng = np.random.default_rng(seed)
    values = np.where(rng.random(n) < share, rng.standard_normal(n), 0).astype(np.float32)
    shortest = min(map(len, encodings(values, values != 0)))
    assert int(num_bytes_of_nonzero([values[: n // 2], values[n // 2 :]])) == shortest


@pytest.mark.parametrize(
    ("num_sent", "expected"),
    [
        (0, 0),
        (1, 8),
        (9, 72),
        (10, 40 + 10 * 4),
        (309, 40 + 309 * 4),
        (311, 320 * 4),
        (320, 320 * 4),
    ],
)
def test_which_encoding_it_is(num_sent, expected):
    """Of 320 float32: coordinates below a 32nd, a bitmap of 40 bytes, then all values."""
    entries = (jnp.arange(320) < num_sent).astype(jnp.float32)
    assert int(num_bytes_of_nonzero(entries)) == expected


def test_small_changes_stay_behind():
    before = {"a": jnp.array([1.0, 0.0]), "b": jnp.array([5.0])}
    after = {"a": jnp.array([1.5, 0.25]), "b": jnp.array([5.125])}
    for threshold, a, b, num_sent in (
        (0.0, [1.5, 0.25], [5.125], 3),
        (0.125, [1.5, 0.25], [5.0], 2),
        (0.25, [1.5, 0.0], [5.0], 1),
        (0.5, [1.0, 0.0], [5.0], 0),
    ):
        got, num_bytes = where_changed(before, after, threshold)
        np.testing.assert_array_equal(got["a"], a)
        np.testing.assert_array_equal(got["b"], b)
        assert int(num_bytes) == min(12, 1 + 4 * num_sent, 8 * num_sent)


def test_small_entries_become_zero():
    np.testing.assert_array_equal(
        without_small(jnp.array([0.5, -0.5, -0.625, 0.0]), 0.5), [0, 0, -0.625, 0]
    )
