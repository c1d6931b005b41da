"""Execution: memory in errors, clients at once that fit into it, and cached results."""

from functools import partial
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.errors import BeyondMemory
from jaxfed.federation import execution as settings
from jaxfed.federation.execution import Execution, client_map, require


def test_a_setting_whose_array_does_not_fit_is_refused_by_its_key(monkeypatch):
    monkeypatch.setattr("jaxfed.federation.execution.available_bytes", lambda: 1000)
    require(1000, "an order", key="epochs", value=3)
    with pytest.raises(BeyondMemory) as caught:
        require(1001, "an order", key="epochs", value=3, owner="config.training")
    refused = "config.training.epochs=3: an order would take 1.01 kB of memory, there are 1 kB"
    assert str(caught.value) == refused


COHORT = SimpleNamespace(client_id=np.arange(12))


def step(shared, client):
    """A client whose temporaries are [400, 400]."""
    wide = jnp.sin(jnp.outer(client, client) + shared)
    return jnp.sum(wide @ wide)


def ran(available, strategy="vmap"):
    """Result of a step, and the settings of `client_map` in each program that was made."""
    made = []

    def program_of(map_clients):
        given = map_clients.keywords
        made.append(given)
        at_once = 12 if given["strategy"] == "vmap" else given.get("chunk_size") or 1
        # What an accelerator says; a CPU of JAX 0.12 says 0.
        analysis = SimpleNamespace(
            argument_size_in_bytes=20_000,
            output_size_in_bytes=100,
            alias_size_in_bytes=0,
            temp_size_in_bytes=640_000 * at_once,
        )
        compiled = SimpleNamespace(memory_analysis=lambda: analysis)
        mapped = jax.jit(lambda state, clients: map_clients(step)(state, clients))
        program = lambda state, cohort, clients: mapped(state, clients)  # noqa: E731
        program.lower = lambda *arguments: SimpleNamespace(compile=lambda: compiled)
        return program

    with (
        mock.patch.object(jax, "default_backend", return_value="gpu"),
        mock.patch.object(settings, "available_bytes", return_value=available),
    ):
        program = settings.fitted("a step", program_of, partial(client_map, strategy=strategy))
        clients = jnp.linspace(0, 1, 12 * 400).reshape(12, 400)
        return program(jnp.float32(1), COHORT, clients), made


def test_all_clients_run_at_once_where_they_fit():
    _, made = ran(10**9)
    assert made == [{"strategy": "vmap"}]


def test_fewer_clients_run_at_once_where_memory_is_small_with_the_same_results():
    expected, _ = ran(10**9)
    found, made = ran(4 * 10**6)
    assert made[-1]["strategy"] == "map"
    assert made[-1]["chunk_size"] == 6
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_client_that_does_not_fit_is_one_line():
    with pytest.raises(
        BeyondMemory, match=r"a step takes .* for one client at a time, the device has"
    ):
        ran(10**5)


@pytest.fixture
def calls():
    return []


@pytest.fixture
def compute(calls):
    def add(*arguments, **keywords):
        calls.append(arguments)
        return len(calls)

    return add


def test_the_same_contents_are_the_same_question(calls, compute):
    memory = Execution(memory={})
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert memory.once(compute, x, 3, valid=None) == 1
    assert memory.once(compute, jnp.asarray(x), 3, valid=None) == 1
    assert memory.once(compute, x[:, ::-1][:, ::-1], 3, valid=None) == 1
    assert memory.once(compute, np.repeat(x, 2, axis=1)[:, ::2], 3, valid=None) == 1
    assert memory.once(compute, [x], 3, valid=None) == 2
    assert len(calls) == 2


@pytest.mark.parametrize(
    "other",
    [
        (np.arange(6.0).reshape(3, 2), 3),
        (np.arange(6.0).reshape(2, 3).astype(np.float16), 3),
        (np.arange(6).reshape(2, 3), 3),
        (-np.arange(6.0).reshape(2, 3), 3),
        (np.arange(6.0).reshape(2, 3), 4),
        (np.arange(6.0).reshape(2, 3), np.array([3])),
        (np.arange(6.0).reshape(2, 3), 3, np.zeros(0)),
        ([np.arange(3.0), np.arange(3.0, 6.0)], 3),
    ],
    ids=str,
)
def test_another_question_is_computed(calls, compute, other):
    memory = Execution(memory={})
    memory.once(compute, np.arange(6.0).reshape(2, 3), 3)
    assert memory.once(compute, *other) == 2
    assert memory.once(lambda *_: "another function", *other) == "another function"
