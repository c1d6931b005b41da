"""FedSiam's layer selection: divergences, what is sent, schedules and quantiles by hand."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_training import assert_close

from jaxfed.algorithms.fedsiam.layer_selection import (
    layer_divergence,
    quantile_of,
    scheduled,
    selected,
)
from jaxfed.training.server.server_state import together


def layered(values):
    return nnx.State(
        {
            name: {"kernel": nnx.Param(jnp.array(kernel)), "bias": nnx.Param(jnp.array(bias))}
            for name, (kernel, bias) in values.items()
        }
    )


def test_layers_are_measured_and_selected():
    online = layered({"a": ([3.0, 0.0], [4.0]), "b": ([1.0], [0.0, 0.0])})
    target = layered({"a": ([3.0, 3.0], [0.0]), "b": ([1.5], [0.0, 0.0])})
    state = together(online=online, target=target)
    np.testing.assert_allclose(layer_divergence(state), [5 / 5, 0.5 / 1])
    for is_sent, sent in (([True, True], 48), ([False, True], 36), ([False, False], 24)):
        got, num_bytes = selected(state, jnp.array(is_sent))
        assert int(num_bytes) == sent
        for name, from_online in zip("ab", is_sent, strict=True):
            source = online if from_online else target
            assert_close(got["online"][name], source[name])
        assert_close(got["target"], target)


@pytest.mark.parametrize(
    ("schedule", "quantile", "period", "expected"),
    [
        ("constant", 0.5, 3, [0.5, 0.5, 0.5, 0.5]),
        ("linear", 0.5, 3, [0, 0.5, 1, 0]),
        ("linear", 0.25, 3, [0, 0.25, 0.5, 0]),
        ("linear", 0.75, 3, [0.5, 0.75, 1, 0.5]),
        ("linear", 0.3, 1, [0.3, 0.3]),
        ("rectangle", 0.5, 4, [0, 0, 1, 1, 0]),
        ("rectangle", 0.7, 10, [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0]),
    ],
)
def test_schedules_have_the_quantile_as_their_mean(schedule, quantile, period, expected):
    values = [scheduled(quantile, schedule, period, r) for r in range(len(expected))]
    np.testing.assert_allclose(values, expected)
    assert np.mean(values[:period]) == pytest.approx(quantile)


def test_quantiles():
    values = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert quantile_of(values, 0.0) == quantile_of(values[:0], 0.5) == -np.inf
    assert quantile_of(values, 0.5) == 2.5
    assert quantile_of(values, 1.0) == np.inf
