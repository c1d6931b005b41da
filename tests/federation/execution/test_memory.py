"""How much memory may be taken: what is given for it, who is refused, and clients at once within it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.errors import BeyondMemory
from jaxfed.federation.execution.client_map import at_once, client_map, in_chunks
from jaxfed.federation.execution.settings import (
    HERE,
    Execution,
    Limit,
    available_bytes,
    bytes_text,
    require,
)
from jaxfed.kernels.devices import footprint
from jaxfed.settings import is_allowed


@pytest.mark.parametrize(
    ("given", "num_bytes"),
    [
        (1000, 1000),
        ("1000", 1000),
        ("4 GiB", 4 << 30),
        ("4gib", 4 << 30),
        ("1.5 MB", 1_500_000),
        (" 2 kB ", 2000),
        ("3TiB", 3 << 40),
        (None, available_bytes()),
    ],
    ids=str,
)
def test_bytes_and_text_are_read(given, num_bytes):
    assert Execution(memory_limit=given).device_bytes == num_bytes
    assert is_allowed(given, Limit)


def test_a_device_that_tells_has_what_it_says(monkeypatch):
    class Told:
        def memory_stats(self):
            return {"bytes_limit": 5_000_000_000}

    monkeypatch.setattr(jax, "local_devices", lambda: [Told()])
    said = []
    Execution(tell=said.append).take("a step", 1000)
    assert said == ["memory: a step takes 1 kB of 5 GB (the device's)"]


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(17, "17 B"), (1_380_000_001, "1.39 GB"), (300 * 10**9, "300 GB"), (2 * 10**12, "2,000 GB")],
)
def test_bytes_are_never_said_to_be_fewer(num_bytes, text):
    assert bytes_text(num_bytes) == text


def test_a_step_says_what_it_takes_and_is_refused_beyond_the_limit():
    said = []
    Execution(memory_limit="1 kB", tell=said.append).take("a step", 1000)
    assert said == ["memory: a step takes 1 kB of 1 kB (execution.memory_limit='1 kB')"]


def test_a_setting_whose_array_does_not_fit_is_refused_by_its_key(monkeypatch):
    monkeypatch.setattr("jaxfed.federation.execution.settings.available_bytes", lambda: 1000)
    require(1000, "an order", key="epochs", value=3)
    with pytest.raises(BeyondMemory) as caught:
        require(1001, "an order", key="epochs", value=3, owner="config.training")
    refused = "config.training.epochs=3: an order would take 1.01 kB of memory, there are 1 kB"
    assert str(caught.value) == refused


def test_a_program_is_held_to_the_limit_for_all_shapes_and_types_that_it_is_given():
    said = []
    execution = Execution(memory_limit="3 kB", tell=said.append)
    doubled = execution.sized("twice", jax.jit(lambda x: 2 * x))
    few = np.ones(300, np.int8)
    for x in (few, few, few[:200], few):
        np.testing.assert_array_equal(doubled(x), 2 * x)
    assert len(said) == 2
    for x in (np.ones(3000, np.int8), np.ones(300, np.complex64)):
        for _ in range(2):
            with pytest.raises(BeyondMemory, match="'3 kB': twice takes"):
                doubled(x)


def norms(shared, client):
    """With so many numbers on the way that clients at once are what memory goes by."""
    return jnp.sort(shared * client[:, None] * client[None, :], axis=1).max(axis=1)


CLIENTS = np.random.default_rng(0).standard_normal((8, 200)).astype(np.float32)


def program_of(map_clients):
    return jax.jit(map_clients(norms))


def in_limit(limit, said, map_clients):
    return Execution(memory_limit=limit, tell=said.append).fitted(
        "a round", program_of, map_clients, lambda _, x: len(x)
    )


def test_as_many_clients_at_once_as_the_limit_leaves():
    all_at_once = partial(client_map, strategy="vmap")
    expected = program_of(all_at_once)(jnp.float32(1), CLIENTS)
    most = footprint(program_of(all_at_once), jnp.float32(1), CLIENTS)
    fixed = most.arguments + most.results
    said = []
    found = in_limit(fixed + most.working * 3 // 5, said, all_at_once)(jnp.float32(1), CLIENTS)
    assert len(said) == 1
    assert said[0].startswith("memory: a round, ")
    assert " clients at a time, takes " in said[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    one = footprint(program_of(partial(client_map, strategy="map")), jnp.float32(1), CLIENTS)
    assert one.total < most.total / 2
    with pytest.raises(BeyondMemory, match=r"a round, 1 client at a time, takes"):
        in_limit(fixed, said, all_at_once)(jnp.float32(1), CLIENTS)


def test_one_client_after_another_is_left_as_it_is_bit_for_bit():
    """And made once."""
    one_by_one, said, made = partial(client_map, strategy="map"), [], []
    expected = program_of(one_by_one)(jnp.float32(1), CLIENTS)

    def making(map_clients):
        made.append(map_clients)
        return program_of(map_clients)

    execution = Execution(memory_limit="1 GiB", tell=said.append)
    program = execution.fitted("a round", making, one_by_one, lambda _, x: len(x))
    for _ in range(2):
        np.testing.assert_array_equal(program(jnp.float32(1), CLIENTS), expected)
    assert made == [one_by_one]
    assert len(said) == 1
    assert said[0].startswith("memory: a round takes ")


def test_where_nobody_asks_a_program_is_as_it_was():
    made = []

    def making(map_clients):
        made.append(program_of(map_clients))
        return made[-1]

    assert HERE.fitted("a round", making, partial(client_map), len) is made[0]
    assert HERE.sized("a round", made[0]) is made[0]


def test_clients_at_once_of_every_strategy():
    cases = {"vmap": 8, "map": 1, "shard_map": 1}
    for strategy, number in cases.items():
        assert at_once(partial(client_map, strategy=strategy), 8) == number
    assert at_once(partial(client_map, strategy="map", chunk_size=5), 8) == 5
    for another in (lambda fn: fn, partial(map, None)):  # which is left as it is
        assert at_once(another, 8) == 1
    chunked = in_chunks(partial(client_map, strategy="vmap"), 3)
    assert chunked.keywords == {"strategy": "map", "chunk_size": 3}
    assert in_chunks(partial(client_map, strategy="shard_map"), 1).keywords["chunk_size"] is None
