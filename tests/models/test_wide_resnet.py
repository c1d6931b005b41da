"""Networks of federated semi-supervised papers: small ones by hand, and a training step of each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from float64_networks import wide_resnet as in_float64
from small_networks import NUM_CLASSES, inputs_of, random_state, template

from jaxfed.models import MODELS
from jaxfed.models.wide_resnet import wide_resnet


def small():
    return wide_resnet("small", 2, 1, (8, 9, 3), NUM_CLASSES, convolution="native")


def test_a_network_of_one_block_a_group_agrees_with_float64():
    model = small()
    state, x = random_state(model), inputs_of((8, 9, 3))
    weights = jax.tree.map(lambda leaf: np.asarray(leaf[...], np.float64), nnx.to_pure_dict(state))
    features, logits = in_float64(weights, np.asarray(x, np.float64))
    assert np.std(logits) > 0.01
    for ours, theirs in ((model.features, features), (model.apply, logits)):
        found = jax.jit(ours)(state, x)
        np.testing.assert_allclose(found, theirs, atol=2e-5 * np.abs(theirs).max())


def one_step(model, shape):
    """Parameters before and after a step of SGD on four examples."""

    @jax.jit
    def stepped(state, x, y):
        parameters, statistics = nnx.split_state(state, nnx.Param, ...)

        def loss(parameters):
            logits, _ = model.train_apply(
                nnx.merge_state(parameters, statistics), x, jax.random.key(1)
            )
            return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(y)), y])

        gradient = jax.grad(loss)(parameters)
        return parameters, jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradient)

    return stepped(jax.jit(model.init)(jax.random.key(0)), inputs_of(shape), jnp.arange(4))


STEPS = {
    "cifar_resnet8": lambda: MODELS["cifar_resnet8"]((8, 8, 3), NUM_CLASSES),
    "one block a group": small,
    "wrn28_2": lambda: MODELS["wrn28_2"]((8, 9, 3), NUM_CLASSES),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_one_step_of_training_moves_every_parameter(name):
    model = STEPS[name]()
    before, after = one_step(model, (8, 8, 3) if name == "cifar_resnet8" else (8, 9, 3))
    assert jax.tree.structure(before) == jax.tree.structure(after)
    for (path, old), (_, new) in zip(*map(nnx.to_flat_state, (before, after)), strict=True):
        assert np.isfinite(new[...]).all(), path
        assert not np.array_equal(old[...], new[...]), path


@pytest.mark.slow
def test_the_largest_has_the_shapes_of_the_papers():
    """WRN-28-8: 12 blocks, of 128, 256 and 512 channels; nothing is computed."""
    model = MODELS["wrn28_8"]((32, 32, 3), 100)
    state = template(model)
    kernels = [leaf.shape for path, leaf in nnx.to_flat_state(state) if path[-1] == "kernel"]
    assert len(kernels) == 1 + 24 + 3 + 1  # stem, blocks, 1 x 1, dense
    x = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
    assert jax.eval_shape(model.apply, state, x).shape == (2, 100)


def test_initial_kernels_are_those_of_the_code():
    state = dict(nnx.to_flat_state(jax.jit(small().init)(jax.random.key(0))))
    kernel = state["blocks", 2, "convs", 1, "kernel"][...]
    assert kernel.shape == (3, 3, 128, 128)
    assert np.std(kernel) == pytest.approx(np.sqrt(1 / 3 / (9 * 128)), rel=0.02)
