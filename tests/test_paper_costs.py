"""ProtoFSSL's Table 2 follows from its Table 1, from ResNet-9 here, and from what it does not say."""

from functools import cache

import jax
import jax.numpy as jnp
import pytest

from jaxfed.kernels.devices import operations
from jaxfed.models import MODELS
from jaxfed.models.layers import by_definition
from jaxfed.paper_costs import PAPER_COSTS, CostSetting


def network(name):
    """F forward, F forward and back, and Theta; one network is all methods' but ProtoFSSL's."""
    return costs(has_head=name != "protofssl")


@cache
def costs(*, has_head):
    shape = (32, 32, 3)
    model = MODELS["resnet9"](shape, 10 if has_head else None)
    state = jax.eval_shape(model.init, jax.random.key(0))
    image = jax.ShapeDtypeStruct((1, *shape), jnp.float32)

    def loss(state, x):
        return jnp.sum(model.apply(state, x))

    with by_definition():  # with the taps on the padding, as papers count
        forward = operations(model.apply, state, image)
        both = operations(jax.grad(loss), state, image)
    num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    return forward, both, num_bytes


@pytest.mark.parametrize("name", PAPER_COSTS)
@pytest.mark.sample(2)
def test_table_2_is_one_epoch_of_forward_passes(name):
    forward, both, num_bytes = network(name)
    row = PAPER_COSTS[name]
    setting = CostSetting(forward, num_bytes, labeled=50, unlabeled=490)
    assert row.operations(setting) / 1e9 == pytest.approx(row.gigaflop, rel=1e-3)
    assert row.bytes(setting) / 1e6 == pytest.approx(row.megabytes, abs=0.06)
    assert both == pytest.approx(3 * forward, rel=0.01)


def test_the_forward_pass_of_resnet9_by_hand():
    convolutions = 9 * (
        32 * 32 * (3 * 64 + 64 * 128)
        + 16 * 16 * (2 * 128 * 128 + 128 * 256)
        + 8 * 8 * 256 * 512
        + 4 * 4 * 2 * 512 * 512
    )
    assert network("fixmatch")[0] == pytest.approx(2 * (convolutions + 512 * 10), rel=2e-3)
