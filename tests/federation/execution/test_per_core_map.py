import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.federation.execution.client_map import client_map, core_each, fastest_apart
from tests.federation.execution.test_client_map import step

RNG = np.random.default_rng(0)
SHARED = {"w": jnp.ones(3), "rate": jnp.float32(0.01)}


def clients(number):
    x, y = RNG.standard_normal((number, 6, 3)), RNG.standard_normal((number, 6))
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_bits_are_those_of_one_after_another(number):
    assert jax.local_device_count() == 2  # forced by the tests
    given = clients(number)
    apart = core_each(step)(SHARED, given)
    expected = jax.jit(client_map(step, strategy="map"))(SHARED, given)
    jax.tree.map(np.testing.assert_array_equal, apart, expected)
    assert apart["w"].devices() == {jax.devices()[0]}


def test_another_program_may_spread_the_results():
    """Clients' networks are fitted so, and predict by a program over all cores."""
    apart = core_each(lambda shared, key: key)((), jax.random.split(jax.random.key(0), 2))
    trained = core_each(step)(SHARED, clients(2))["w"]
    twice = client_map(lambda shared, client: 2 * client[0], strategy="shard_map")
    np.testing.assert_array_equal(jax.jit(twice)((), (trained, apart)), 2 * trained)


def test_clients_go_round_the_cores(monkeypatch):
    """What is shared goes to each once, and clients to one after the other; results come to the first."""
    placed, put = [], jax.device_put
    monkeypatch.setattr(
        jax, "device_put", lambda x, device: placed.append(device.id) or put(x, device)
    )
    core_each(step)(SHARED, clients(3))
    assert placed == [0, 1, *(0, 1, 0), *(0, 0, 0)]


def test_only_where_cores_are_devices(monkeypatch):
    """Devices that a flag forces, as here, are none."""
    assert fastest_apart() is None
    monkeypatch.setattr("jaxfed.federation.execution.client_map.cores_are_devices", lambda: True)
    assert fastest_apart() is core_each
    monkeypatch.setattr(jax, "process_count", lambda: 2)  # each would have some of the clients
    assert fastest_apart() is None
