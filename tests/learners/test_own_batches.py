"""A client's epochs run through its rounds, whatever stands between its labeled examples."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.learners.networks import own_batches
from jaxfed.training.local.batches import ClientData

KEY = jax.random.key(0)
CAPACITY = 20


def data(count, gap=1):
    """Every `gap`-th example is labeled, `count` of them."""
    labeled = np.zeros(CAPACITY, bool)
    labeled[np.arange(count) * gap] = True
    return ClientData(
        x=jnp.arange(CAPACITY),
        label=jnp.asarray(np.where(labeled, 0, -1), jnp.int32),
        weight=jnp.asarray(labeled, jnp.float32),
        is_labeled=jnp.asarray(labeled),
        mask=jnp.ones(CAPACITY, bool),
    )


@functools.partial(jax.jit, static_argnames="size")
def rows(client, size, done, step):
    plan = own_batches(client, KEY, size=size, done=done, steps=jnp.int32(9))
    return plan.rows(step), plan.num_steps


def batches(client, size, rounds):
    """The examples of each step that count, over rounds of so many steps."""
    done, taken = 0, []
    for steps in rounds:
        for step in range(steps):
            at = jnp.int32(done), jnp.int32(step)
            (index, used), num_steps = jax.device_get(rows(client, size, *at))
            assert (len(index), num_steps) == (size, 9)
            taken.append(index[used].tolist())
        done += steps
    return taken


@pytest.mark.parametrize(("count", "size"), [(7, 3), (6, 3), (2, 3), (1, 3)])
def test_an_epoch_takes_every_example_once_and_the_next_takes_another_order(count, size):
    per_epoch = -(-count // size)
    taken = batches(data(count), size, [3 * per_epoch])
    epochs = [
        list(itertools.chain.from_iterable(taken[e * per_epoch : (e + 1) * per_epoch]))
        for e in range(3)
    ]
    for epoch in epochs:
        assert sorted(epoch) == list(range(count))
    if count == 7:
        assert len({tuple(epoch) for epoch in epochs}) == 3
