"""Clients at once on a device whose memory holds some of them."""

from functools import partial
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.errors import BeyondMemory
from jaxfed.federation.execution import settings
from jaxfed.federation.execution.client_map import client_map

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


def test_a_cpu_and_an_own_map_are_left_as_they_are():
    made = []
    settings.fitted("a step", made.append, partial(client_map, strategy="map"))
    with mock.patch.object(jax, "default_backend", return_value="gpu"):
        settings.fitted("a step", made.append, client_map)
    assert [getattr(each, "keywords", each) for each in made] == [{"strategy": "map"}, client_map]
