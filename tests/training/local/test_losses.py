"""Losses against formulas and loops, whole and in blocks of a batch; the server's step by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxfed.models.convolutional import cnn
from jaxfed.models.mlp import mlp
from jaxfed.models.model import in_precision, normalized
from jaxfed.training.local import losses
from jaxfed.training.local import losses as module
from jaxfed.training.local.augmentation import compose
from jaxfed.training.local.losses import (
    Batch,
    examples_at_once,
    few_at_a_time,
    proximal,
    weighted_loss,
)
from jaxfed.training.round.round import server_optimizer

KEY = jax.random.key(0)


def logits_and_labels():
    rng = np.random.default_rng(0)
    return 4 * rng.standard_normal((50, 5)), rng.integers(0, 5, 50)


def log_probability(logits, label):
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted[np.arange(len(label)), label] - np.log(np.exp(shifted).sum(axis=1))


def test_pointwise_losses():
    logits, label = logits_and_labels()
    expected = log_probability(logits, label)
    given = jnp.asarray(logits, jnp.float32), jnp.asarray(label, jnp.int32)
    np.testing.assert_allclose(
        losses.softmax_cross_entropy(*given), -expected, rtol=1e-5, atol=1e-6
    )
    focal = -((1 - np.exp(expected)) ** 2) * expected
    np.testing.assert_allclose(losses.focal_loss(*given), focal, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("gamma", [0.5, 2.0])  # below 1 the power's slope at 0 is infinite
def test_focal_loss_is_finite_where_the_answer_is_certain(gamma):
    certain = np.float32([[200, 0]])
    loss = partial(losses.focal_loss, label=np.array([0]), gamma=gamma)
    gradient = jax.jit(jax.grad(lambda z: loss(z).sum()))(certain)
    assert np.isfinite(gradient).all()


def test_the_batch_is_weighted_and_divided_by_its_rows():
    model = mlp((4,), 3, hidden=())
    state = model.init(KEY)
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    batch = Batch(
        x=x,
        label=np.array([0, 1, 2, 0, 1], np.int32),
        weight=np.float32([1, 0.5, 0, 1, 0]),
        used=np.array([True, True, True, True, False]),
        is_labeled=np.zeros(5, bool),
    )
    value, _ = jax.jit(losses.weighted_loss(model))(state, state, batch, KEY)
    each = -log_probability(np.asarray(model.apply(state, x), np.float64), np.asarray(batch.label))
    assert float(value) == pytest.approx(float(each @ np.asarray(batch.weight)) / 4, rel=1e-5)


def test_the_proximal_gradient_is_mu_times_the_way():
    model = mlp((4,), 3, hidden=(2,))
    state, anchor = model.init(KEY), model.init(jax.random.key(1))
    ones = np.ones(2, np.float32)
    batch = Batch(np.ones((2, 4), np.float32), np.array([0, 1]), ones, ones > 0, ones > 0)
    plain, pulled = losses.weighted_loss(model), losses.proximal(losses.weighted_loss(model), 0.7)

    def gradient(loss):
        program = jax.jit(jax.grad(lambda s: loss(s, anchor, batch, KEY)[0]))
        return jax.tree.map(np.asarray, program(state))

    jax.tree.map(
        lambda a, b, w, v: np.testing.assert_allclose(b - a, 0.7 * (w - v), rtol=1e-4, atol=1e-5),
        gradient(plain),
        gradient(pulled),
        *(jax.tree.map(np.asarray, each) for each in (state, anchor)),
    )


def stacked():
    model = nnx.State({"w": nnx.Param(jnp.ones(2)), "mean": nnx.BatchStat(jnp.zeros(2))})
    deltas = nnx.State(
        {
            "w": nnx.Param(jnp.array([[1.0, 0.0], [0.0, 2.0], [9.0, 9.0]])),
            "mean": nnx.BatchStat(jnp.array([[4.0, 0.0], [0.0, 4.0], [9.0, 9.0]])),
        }
    )
    return model, deltas, jnp.array([1.0, 3.0, 0.0])


def test_server_momentum_moves_parameters_and_the_mean_moves_statistics():
    model, deltas, weights = stacked()
    server = server_optimizer(optax.sgd(0.5, momentum=0.9))
    state = server.init(model, KEY)
    mean, statistics = np.array([0.25, 1.5]), np.array([1.0, 3.0])
    once, state = server.apply(model, deltas, weights, state)
    np.testing.assert_allclose(once["w"][...], 1 + 0.5 * mean, rtol=1e-6)
    np.testing.assert_allclose(once["mean"][...], statistics, rtol=1e-6)
    twice, _ = server.apply(once, deltas, weights, state)
    np.testing.assert_allclose(twice["w"][...], 1 + 0.5 * mean + 0.5 * 1.9 * mean, rtol=1e-6)
    np.testing.assert_allclose(twice["mean"][...], 2 * statistics, rtol=1e-6)


def test_without_clients_model_and_optimizer_state_stay():
    """Momentum would move the model on, and decay as if a step had been taken."""
    model, deltas, weights = stacked()
    server = server_optimizer(optax.sgd(0.1, momentum=0.9))
    before = server.apply(model, deltas, weights, server.init(model, KEY))
    after = server.apply(before[0], deltas, jnp.zeros(3), before[1])
    jax.tree.map(np.testing.assert_array_equal, after, before)


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
    assert at_once(cnn(IMAGE, 3, norm="batch", **NETWORK)) == 12
    assert at_once(cnn(IMAGE, 3, channels=(4, 8), hidden=64)) == 12  # 2,048 parameters more


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


@pytest.mark.slow
@pytest.mark.parametrize("count", [12, 11])
def test_the_weighted_loss_is_the_same_in_blocks(count, monkeypatch):
    model, batch = cnn(IMAGE, 3, **NETWORK), batch_of(count)
    state, anchor = model.init(KEY), model.init(jax.random.key(1))
    loss = proximal(weighted_loss(model, augment=compose(("flip",))), 0.3)

    def outcome():
        return jax.value_and_grad(loss, has_aux=True)(state, anchor, batch, KEY)

    whole, whole_gradient = outcome()
    monkeypatch.setattr(module, "_CACHE_BYTES", 9_000)
    assert examples_at_once(model, state, batch.x) < count
    parts, gradient = outcome()
    np.testing.assert_allclose(parts[0], whole[0], rtol=1e-5)
    assert jax.tree.structure(parts[1]) == jax.tree.structure(state)
    for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(whole_gradient), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_who_says_so_answers_each_example_by_itself():
    model = cnn(IMAGE, 3, norm="group", channels=(8, 8), hidden=0)
    assert model.by_example
    state, x = model.init(KEY), images(5)
    together, moved = model.train_apply(state, x, KEY)
    alone = [model.train_apply(state, one[None], jax.random.key(2))[0] for one in x]
    np.testing.assert_allclose(together, jnp.concatenate(alone), rtol=1e-4, atol=1e-5)
    for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(moved), strict=True):
        np.testing.assert_array_equal(before, after)
