"""Clients one after another, at once, or spread over devices: results of a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.federation.execution import (
    client_map,
    even_devices,
    size_buckets,
)

STRATEGIES = [
    {"strategy": "vmap"},
    {"strategy": "map"},
    {"strategy": "map", "chunk_size": 3},
    {"strategy": "shard_map"},
    {"strategy": "shard_map", "chunk_size": 2},
]


def step(shared, client):
    """Something with a loop and a sum: a few gradient steps of least squares."""
    x, y = client

    def descend(_, w):
        return w - shared["rate"] * x.T @ (x @ w - y)

    return {"w": jax.lax.fori_loop(0, 5, descend, shared["w"]), "size": jnp.sum(y)}


@pytest.mark.parametrize("execution", STRATEGIES, ids=str)
def test_strategies_agree_with_a_python_loop(execution):
    rng = np.random.default_rng(0)
    clients = (
        jnp.asarray(rng.standard_normal((8, 6, 3)), jnp.float32),
        jnp.asarray(rng.standard_normal((8, 6)), jnp.float32),
    )
    shared = {"w": jnp.ones(3), "rate": jnp.float32(0.01)}
    mapped = jax.jit(client_map(step, **execution))(shared, clients)
    one_by_one = [step(shared, (x, y)) for x, y in zip(*clients, strict=True)]
    expected = jax.tree.map(lambda *outputs: jnp.stack(outputs), *one_by_one)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), mapped, expected)


@pytest.mark.parametrize(("clients", "devices"), [(10, 2), (2, 2), (5, 1), (1, 1)])
def test_no_client_of_one_cpu_is_left_over(clients, devices):
    """Of two forced devices; one of several clients would wait for it."""
    assert even_devices(clients) == devices


def test_buckets_hold_every_client_once_within_twice_its_size():
    sizes = np.array([0, 1, 5, 8, 9, 100, 0, 128])
    buckets = size_buckets(sizes)
    rows = np.concatenate([rows for rows, _ in buckets])
    np.testing.assert_array_equal(np.sort(rows), np.flatnonzero(sizes))
    for rows, capacity in buckets:
        assert ((sizes[rows] <= capacity) & (capacity < 2 * sizes[rows])).all()
    assert size_buckets(np.zeros(3, int)) == []
    assert [capacity for _, capacity in size_buckets(sizes, smallest=16)] == [16, 128]
