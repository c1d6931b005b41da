"""Permutations read place by place: permutations they are, all alike likely, however they are read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.kernels import arrays
from jaxfed.kernels.arrays import permuted

MOST = jnp.arange(1000, dtype=jnp.int32)
at_places = jax.jit(permuted)


def whole(key, count):
    return np.asarray(at_places(key, MOST % count, jnp.int32(count)))[:count]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 1000])
def test_every_number_comes_once(count):
    order = whole(jax.random.key(count), count)
    np.testing.assert_array_equal(np.sort(order), np.arange(count))
    if count > 7:
        assert (order != np.arange(count)).mean() > 0.9
        np.testing.assert_array_equal(order, whole(jax.random.key(count), count))
        assert (order != whole(jax.random.key(count + 1), count)).mean() > 0.9


def test_a_place_is_the_same_alone():
    some = jnp.array([5, 99, 0], jnp.int32)
    alone = permuted(jax.random.key(3), some, jnp.int32(100))
    np.testing.assert_array_equal(alone, whole(jax.random.key(3), 100)[some])


def test_all_orders_of_four_are_alike_likely():
    """24 orders, 9,600 draws: 400 +- 20 of each; chi-squared of 23 degrees, 99.9 % below 50."""
    keys = jax.random.split(jax.random.key(0), 9600)
    four = jnp.arange(4, dtype=jnp.int32)
    orders = np.asarray(jax.jit(jax.vmap(lambda key: permuted(key, four, jnp.int32(4))))(keys))
    _, times = np.unique(orders @ 4 ** np.arange(4), return_counts=True)
    assert len(times) == 24
    assert np.sum((times - 400) ** 2 / 400) < 50


@pytest.mark.parametrize("generator", ["threefry2x32", "rbg"])
def test_hashes_are_those_of_fold_in(generator):
    key = jax.random.split(jax.random.key(3, impl=generator))[1]
    numbers = jnp.array([0, 1, 5, 2**20 + 17, 2**31 - 1], jnp.int32)
    expected = [jax.random.key_data(jax.random.fold_in(key, number))[0] for number in numbers]
    np.testing.assert_array_equal(arrays._folded_in(key, numbers), jnp.stack(expected))
