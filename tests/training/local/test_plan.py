"""A plan's draws, one step at a time or many at once: the same steps, and no more of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.training.local.batches import BatchPlan, after_steps

KEY = jax.random.key(0)
MOST = 12


@functools.partial(jax.jit, static_argnames="ahead")
def taken(num_steps, ahead):
    """Rows, used and beside of each step in its place, and how often it came."""

    def rows(step):
        drawn = jax.random.randint(jax.random.fold_in(KEY, step), (3,), 0, 1000)
        return drawn, drawn > 500

    def beside(step, key):
        return {"key": jax.random.key_data(key), "step": step}

    def step_of(plan):
        def step(number, carry):
            index, used = plan.rows(number)
            beside = plan.beside(number, jax.random.fold_in(KEY, number))
            now = index, used.astype(jnp.int32), beside, 1
            return jax.tree.map(lambda all, one: all.at[number].add(one), carry, now)

        return step

    key = jnp.zeros((MOST, 2), jnp.uint32)
    number = jnp.zeros(MOST, jnp.int32)
    row = jnp.zeros((MOST, 3), jnp.int32)
    carry = (row, row, {"key": key, "step": number}, number)
    return after_steps(BatchPlan(num_steps, rows, beside, ahead), KEY, step_of, carry)


@pytest.mark.parametrize("num_steps", [0, 1, 4, 9])
def test_draws_ahead_are_those_of_each_step(num_steps):
    expected = taken(jnp.int32(num_steps), 1)
    np.testing.assert_array_equal(expected[3], np.arange(MOST) < num_steps)
    jax.tree.map(np.testing.assert_array_equal, taken(jnp.int32(num_steps), 4), expected)


def test_clients_of_different_numbers_of_steps_side_by_side():
    numbers = jnp.array([5, 0, 9], jnp.int32)
    together = jax.vmap(functools.partial(taken, ahead=4))(numbers)
    for client, number in enumerate(numbers):
        jax.tree.map(
            lambda all, one, client=client: np.testing.assert_array_equal(all[client], one),
            together,
            taken(number, 1),
        )


def test_draws_of_many_steps_are_not_in_the_loop_over_steps():
    program = str(jax.make_jaxpr(functools.partial(taken, ahead=4))(jnp.int32(9)))
    assert "int32[4,3]" in program or "i32[4,3]" in program
