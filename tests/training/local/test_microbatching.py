"""Sums over a batch, and their gradients, block by block: whose they are, and when there are blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from on_demand import on_demand

from jaxfed.models import Model
from jaxfed.models.convolutional import cnn
from jaxfed.models.model import in_precision, normalized
from jaxfed.training.local import losses as module
from jaxfed.training.local.augmentation import compose
from jaxfed.training.local.losses import (
    Batch,
    examples_at_once,
    few_at_a_time,
    proximal,
    weighted_loss,
)

KEY = jax.random.key(0)
IMAGE = (8, 8, 2)
NETWORK = {"channels": (4, 8), "hidden": 0}


def squares(parameters, x, weight):
    """Sum of weight_i (a . x_i + b)^2."""
    return jnp.sum(weight * (x @ parameters["a"] + parameters["b"]) ** 2)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_value_and_gradient_by_hand(size):
    rng = np.random.default_rng(size)
    x, weight, a = (rng.normal(size=shape).astype(np.float32) for shape in ((7, 3), 7, 3))
    b = np.float32(0.5)
    parameters = {"a": jnp.asarray(a), "b": jnp.asarray(b)}
    blocks = few_at_a_time(squares, size)
    residual = weight * (x @ a + b)
    expected = np.sum(residual * (x @ a + b))
    np.testing.assert_allclose(blocks(parameters, x, weight), expected, rtol=1e-5)
    value, gradient = jax.value_and_grad(lambda p: 3 * blocks(p, x, weight))(parameters)
    np.testing.assert_allclose(value, 3 * expected, rtol=1e-5)
    np.testing.assert_allclose(gradient["a"], 6 * residual @ x, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(gradient["b"], 6 * residual.sum(), rtol=1e-4, atol=1e-4)


def test_a_gradient_by_the_rows_is_refused():
    x, weight = jnp.ones((4, 3)), jnp.ones(4)
    parameters = {"a": jnp.ones(3), "b": jnp.float32(0)}
    blocks = few_at_a_time(squares, 2)
    for place in (1, 2):
        with pytest.raises(NotImplementedError, match="by rows"):
            jax.grad(blocks, argnums=place)(parameters, x, weight)


def test_clients_side_by_side_have_each_their_own():
    rng = np.random.default_rng(0)
    x, weight = (jnp.asarray(rng.normal(size=shape)) for shape in ((3, 4, 2), (3, 4)))
    parameters = {"a": jnp.asarray(rng.normal(size=(3, 2))), "b": jnp.arange(3.0)}

    def gradients(function):
        return jax.vmap(jax.grad(function))(parameters, x, weight)

    for one, other in zip(
        jax.tree.leaves(gradients(few_at_a_time(squares, 2))),
        jax.tree.leaves(gradients(squares)),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def images(count):
    return jax.random.uniform(KEY, (count, *IMAGE))


def at_once(model, count=12):
    return examples_at_once(model, model.init(KEY), images(count))


@pytest.fixture
def small_cache(monkeypatch):
    """Three or four images of `NETWORK` stay in the cache."""
    monkeypatch.setattr(module, "_CACHE_BYTES", 9_000)


@pytest.mark.usefixtures("small_cache")
def test_few_at_a_time_where_examples_do_not_meet_and_parameters_are_few():
    plain = cnn(IMAGE, 3, **NETWORK)
    assert at_once(plain) == 4
    assert at_once(plain, 1) == 1
    assert at_once(normalized(plain, np.zeros(2), np.ones(2))) in (2, 3, 4)
    assert at_once(in_precision(plain, jnp.bfloat16)) < 12
    assert at_once(cnn(IMAGE, 3, norm="group", groups=2, **NETWORK)) < 12
    assert at_once(cnn(IMAGE, 3, norm="batch", **NETWORK)) == 12
    assert at_once(cnn(IMAGE, 3, channels=(4, 8), hidden=64)) == 12  # 2,048 parameters more


@pytest.mark.usefixtures("small_cache")
def test_all_at_once_on_an_accelerator(monkeypatch):
    plain = cnn(IMAGE, 3, **NETWORK)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert at_once(plain) == 12


@pytest.mark.usefixtures("small_cache")
def test_a_network_that_does_not_say_so_has_its_batches_whole():
    assert not Model(*[None] * 6).by_example
    assert at_once(cnn(IMAGE, 3, **NETWORK)._replace(by_example=False)) == 12


def batch_of(count):
    rng = np.random.default_rng(1)
    used = np.arange(count) < count - 2
    return Batch(
        x=images(count),
        label=jnp.asarray(rng.integers(0, 3, count)),
        weight=jnp.asarray(np.where(used, rng.random(count), 0).astype(np.float32)),
        used=jnp.asarray(used),
        is_labeled=jnp.ones(count, bool),
    )


@pytest.mark.parametrize("count", [pytest.param(12, marks=pytest.mark.slow), 11])
@pytest.mark.parametrize(
    "of_loss",
    [
        pytest.param(lambda loss: loss, marks=pytest.mark.slow),
        lambda loss: proximal(loss, 0.3),
    ],
)
@pytest.mark.slow
def test_the_weighted_loss_is_the_same_in_blocks(count, of_loss, monkeypatch):
    model, batch = cnn(IMAGE, 3, **NETWORK), batch_of(count)
    state, anchor = model.init(KEY), model.init(jax.random.key(1))
    loss = of_loss(weighted_loss(model, augment=compose(("flip",))))

    def run(state):
        value, moved = loss(state, anchor, batch, KEY)
        return value, moved

    def outcome():
        return jax.value_and_grad(run, has_aux=True)(state)

    whole, whole_gradient = outcome()
    monkeypatch.setattr(module, "_CACHE_BYTES", 9_000)
    assert examples_at_once(model, state, batch.x) < count
    parts, gradient = outcome()
    np.testing.assert_allclose(parts[0], whole[0], rtol=1e-5)
    assert jax.tree.structure(parts[1]) == jax.tree.structure(state)
    for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(whole_gradient), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("norm", on_demand(["none", "group"], at_once=["group"]))
def test_who_says_so_answers_each_example_by_itself(norm):
    model = cnn(IMAGE, 3, norm=norm, groups=2, **NETWORK)
    assert model.by_example
    state, x = model.init(KEY), images(5)
    together, moved = model.train_apply(state, x, KEY)
    alone = [model.train_apply(state, one[None], jax.random.key(2))[0] for one in x]
    np.testing.assert_allclose(together, jnp.concatenate(alone), rtol=1e-4, atol=1e-5)
    for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(moved), strict=True):
        np.testing.assert_array_equal(before, after)
