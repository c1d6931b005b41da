"""What a compiled program takes: every byte once, and something also where a backend tells nothing."""

import jax
import jax.numpy as jnp
import pytest

from jaxfed.kernels.devices import footprint

X, Y = jnp.zeros((64, 3)), jnp.zeros(32, jnp.bfloat16)


def both(x, y):
    return x + 1, y + 1


@pytest.fixture
def silent_backend(monkeypatch):
    monkeypatch.setattr(jax.stages.Compiled, "memory_analysis", lambda _: None)


def test_a_result_in_an_arguments_place_counts_once():
    apart, in_place = (footprint(jax.jit(both, donate_argnums=given), X, Y) for given in ((), 0))
    assert apart.arguments == in_place.arguments == X.nbytes + Y.nbytes
    assert apart.results >= X.nbytes + Y.nbytes
    assert apart.results - in_place.results == X.nbytes
    assert apart.total == apart.arguments + apart.results + apart.working


@pytest.mark.usefixtures("silent_backend")
def test_of_a_backend_that_tells_nothing_arguments_and_results_are_known():
    assert footprint(jax.jit(both), X, Y) == (X.nbytes + Y.nbytes,) * 2 + (0,)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (X, Y)]
    assert footprint(jax.jit(lambda x, y: x.sum()), *shapes) == (X.nbytes + Y.nbytes, 4, 0)
