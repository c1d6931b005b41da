"""FedSiam's layer selection: divergences, what is sent, and quantiles by hand."""

import jax.numpy as jnp
import numpy as np
from flax import nnx
from small_training import assert_close

from jaxfed.algorithms.fedsiam import layer_divergence, quantile_of, selected
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


def test_quantiles():
    values = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert quantile_of(values, 0.0) == quantile_of(values[:0], 0.5) < 0
    assert quantile_of(values, 0.5) == 2.5
    assert quantile_of(values, 1.0) > values.max()
    assert np.isfinite(np.float32([quantile_of(values, share) for share in (0.0, 1.0)])).all()
