"""Layers by hand, and models in another precision or of normalized inputs."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from float64_networks import convolved, pooled
from small_networks import BATCH, NUM_CLASSES, inputs_of, random_state

from jaxfed.kernels.arrays import narrow_product
from jaxfed.kernels.pooling import max_pool, overlapping_max_pool
from jaxfed.models import MODELS
from jaxfed.models.layers import (
    Layers,
    WeightNorm,
    unit_vectors,
)
from jaxfed.models.model import in_precision, normalized


def test_batch_norm_moves_by_its_momentum_towards_the_batch():
    model = MODELS["resnet9"](
        (8, 8, 3), NUM_CLASSES, norm="batch", momentum=0.75, pools=(2, 2, 2, 1)
    )
    state, x = random_state(model), inputs_of((8, 8, 3))
    _, moved = jax.jit(model.train_apply)(state, x, jax.random.key(0))
    kernel = np.asarray(state["stem"]["linear"]["kernel"][...], np.float64)
    batch = convolved(np.asarray(x, np.float64), {"kernel": kernel})
    for statistic, value in (("mean", batch.mean((0, 1, 2))), ("var", batch.var((0, 1, 2)))):
        old, new = (np.asarray(s["stem"]["norm"][statistic][...]) for s in (state, moved))
        np.testing.assert_allclose(new, 0.75 * old + 0.25 * value, rtol=1e-4, atol=1e-5)


def test_the_gradient_of_few_columns_is_a_product_of_rows():
    rng = np.random.default_rng(0)
    x, kernel, slope = (rng.standard_normal(n) for n in ((8, 4, 6), (6, 3), (8, 4, 3)))
    x, kernel, slope = (jnp.asarray(a, jnp.float32) for a in (x, kernel, slope))

    @jax.jit
    def both(x, kernel, slope):
        value, back = jax.vjp(
            lambda x, kernel: narrow_product(x, kernel, (((2,), (0,)), ((), ()))), x, kernel
        )
        return value, *back(slope)

    value, by_x, by_kernel = both(x, kernel, slope)
    np.testing.assert_allclose(value, x @ kernel, atol=1e-5)
    np.testing.assert_allclose(by_x, slope @ kernel.T, atol=1e-5)
    np.testing.assert_allclose(by_kernel, np.einsum("abd,abc->dc", x, slope), atol=1e-5)
    program = both.lower(x, kernel, slope).compile().as_text()
    assert "f32[3,6]{1,0} dot(" in program
    assert "f32[6,3]{1,0} dot(" not in program
    layer = Layers(nnx.Rngs(0)).classifier(6, 3)
    assert layer.dot_general is narrow_product


def test_weight_norm_is_g_v_over_norm_v_in_value_and_derivatives():
    layer, x = nnx.Linear(7, 3, rngs=nnx.Rngs(0)), inputs_of((7,))
    graph, state = nnx.split(WeightNorm(layer))
    np.testing.assert_allclose(nnx.merge(graph, state)(x), layer(x), rtol=1e-5, atol=1e-6)

    def ours(v, g):
        module = nnx.merge(graph, state, copy=True)
        module.layer.kernel[...], module.gain[...] = v, g
        return module(x)

    def by_hand(v, g):
        norms = jnp.sqrt((v * v).sum(axis=0, keepdims=True))
        return x @ (v * g[None] / norms)

    weights = 2 * layer.kernel[...], jnp.array([0.5, -1.0, 2.0])
    for a, b in zip(derived(ours, *weights), derived(by_hand, *weights), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@partial(jax.jit, static_argnums=0)  # one program in place of one for each operation
def derived(function, *arguments):
    """A function's value, and its derivatives times a cotangent."""
    out, pull = jax.vjp(function, *arguments)
    return out, *pull(jnp.cos(1 + jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))


@pytest.mark.parametrize(("height", "width", "size"), [(6, 6, 2), (7, 9, 2), (9, 8, 3), (4, 4, 4)])
def test_max_pool(height, width, size):
    x = inputs_of((height, width, 2))
    np.testing.assert_array_equal(max_pool(x, size), pooled(np.asarray(x), size))


@pytest.mark.parametrize(("height", "width"), [(7, 9), (6, 6)])
@pytest.mark.sample(1)
def test_max_pool_shares_among_equal_numbers_as_maxima_of_maxima_do(height, width):
    """Few values, so that many are equal: of a column first, then of the two columns."""

    def of_slices(x):
        x = x[:, : height // 2 * 2, : width // 2 * 2]
        rows = jnp.maximum(x[:, ::2], x[:, 1::2])
        return jnp.maximum(rows[:, :, ::2], rows[:, :, 1::2])

    x = jnp.round(inputs_of((height, width, 2)))
    ours, expected = derived(lambda x: max_pool(x, 2), x), derived(of_slices, x)
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("height", "width"), [(1, 2), (42, 7)])
def test_overlapping_max_pool_is_the_windowed_one(height, width):
    def windowed(x):
        return nnx.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))

    x = inputs_of((height, width, 2))
    (out, slope), (expected, its_slope) = (derived(f, x) for f in (overlapping_max_pool, windowed))
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_allclose(slope, its_slope, rtol=1e-5)


def test_unit_vectors_of_zero_are_zero_with_a_finite_gradient():
    x = jnp.array([[0.0, 0.0], [3.0, 4.0]])
    np.testing.assert_allclose(unit_vectors(x), [[0, 0], [0.6, 0.8]], rtol=1e-6)
    assert np.all(np.isfinite(jax.grad(lambda x: jnp.sum(unit_vectors(x)))(x)))


def test_bfloat16_is_near_float32_and_leaves_the_parameters_alone():
    model = MODELS["cnn"]((8, 8, 3), NUM_CLASSES, norm="batch")
    short, state, x = in_precision(model, jnp.bfloat16), random_state(model), inputs_of((8, 8, 3))
    logits, moved = jax.jit(short.train_apply)(state, x, jax.random.key(0))
    exact, _ = jax.jit(model.train_apply)(state, x, jax.random.key(0))
    assert not np.array_equal(logits, exact)
    np.testing.assert_allclose(logits, exact, atol=0.03 * np.abs(exact).max())
    parameters, same = (nnx.split_state(s, nnx.Param, ...)[0] for s in (state, moved))
    jax.tree.map(np.testing.assert_array_equal, parameters, same)


def test_normalized_reads_bytes_and_floats_alike():
    model = MODELS["cnn"]((8, 8, 3), NUM_CLASSES)
    state = random_state(model)
    mean, deviation = np.array([0.5, 0.4, 0.3]), np.array([0.2, 0.3, 0.1])
    pixels = np.random.default_rng(0).integers(0, 256, (BATCH, 8, 8, 3)).astype(np.uint8)
    wrapped = normalized(model, mean, deviation)
    by_hand = jnp.asarray((pixels / 255 - mean) / deviation, jnp.float32)

    expected = model.apply(state, by_hand)
    for x in (pixels, pixels / np.float32(255)):
        x = jnp.asarray(x)
        for found in (wrapped.apply(state, x), wrapped.train_apply(state, x, jax.random.key(0))[0]):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
