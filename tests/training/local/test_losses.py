"""Losses against formulas and loops over examples, and the server's step by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxfed.models.mlp import mlp
from jaxfed.models.model import in_precision, normalized
from jaxfed.training import aggregate
from jaxfed.training.local import losses
from jaxfed.training.local.batches import ClientData
from jaxfed.training.local.losses import (
    Batch,
    instance_discrimination,
    neighborhood_difference,
    unit,
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


def test_class_weighted_focal_loss_by_hand():
    """p = (3/4, 1/4): -5 (1/4)^2 log(3/4) and -2 (3/4)^2 log(1/4)."""
    loss = losses.class_weighted(losses.focal_loss, (5, 2.0))
    logits = np.log(np.float32([[0.75, 0.25], [0.75, 0.25]]))
    expected = [5 / 16 * np.log(4 / 3), 18 / 16 * np.log(4)]
    np.testing.assert_allclose(jax.jit(loss)(logits, np.array([0, 1])), expected, rtol=1e-5)


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


def test_models_normalize_bytes_and_compute_in_bfloat16():
    model = mlp((4, 4, 2), 3, hidden=(8,))
    state = model.init(KEY)
    x = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 2)).astype(np.uint8)
    mean, deviation = np.array([0.4, 0.6]), np.array([0.2, 0.3])
    wrapped = normalized(model, mean, deviation)
    expected = model.apply(state, ((x / 255 - mean) / deviation).astype(np.float32))

    @jax.jit
    def outputs(state, x):
        features = wrapped.features(state, x)
        trained = wrapped.train_apply(state, x, KEY)[0]
        return wrapped.apply(state, x), trained, wrapped.head(state, features)

    for found in outputs(state, x):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)

    low = normalized(in_precision(model, jnp.bfloat16), mean, deviation)
    logits, moved = jax.jit(low.train_apply)(state, x, KEY)
    assert logits.dtype == jnp.float32
    assert not np.array_equal(logits, expected)
    np.testing.assert_allclose(logits, expected, atol=0.1)
    jax.tree.map(np.testing.assert_array_equal, moved, state)
    gradient = jax.eval_shape(jax.grad(lambda s: low.apply(s, x).sum()), state)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}


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


def test_weightings():
    data = ClientData(
        x=jnp.zeros((5, 1)),
        label=jnp.array([0, 1, 2, -1, 0]),
        weight=jnp.ones(5),
        is_labeled=jnp.array([True, False, False, False, True]),
        mask=jnp.array([True, True, True, True, False]),
    )
    values = {name: float(weigh(data)) for name, weigh in aggregate.WEIGHTINGS.items()}
    assert values == {"examples": 3, "uniform": 1, "cohort": 1}
    empty = data._replace(mask=jnp.zeros(5, bool))
    values = {name: float(weigh(empty)) for name, weigh in aggregate.WEIGHTINGS.items()}
    assert values == {"examples": 0, "uniform": 0, "cohort": 1}


RNG = np.random.default_rng(0)
USED = np.array([True, False, True, True])
HEAT = 0.4


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_a_view_is_told_from_all_others():
    z = RNG.standard_normal((8, 3))
    used = np.concatenate([USED, USED])
    losses = []
    for i in np.flatnonzero(used):
        others = [j for j in np.flatnonzero(used) if j != i]
        score = {j: np.exp(cosine(z[i], z[j]) / HEAT) for j in others}
        losses.append(-np.log(score[(i + 4) % 8] / sum(score.values())))
    found = instance_discrimination(jnp.asarray(z, jnp.float32), jnp.asarray(USED), HEAT)
    np.testing.assert_allclose(found, np.mean(losses), rtol=1e-5)


def test_neighborhoods_differ_by_their_cosines():
    a, b = RNG.standard_normal((4, 3)), RNG.standard_normal((4, 5))
    rows = np.flatnonzero(USED)
    pairs = [(cosine(a[i], a[j]) - cosine(b[i], b[j])) ** 2 for i in rows for j in rows]
    given = (jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32))
    found = neighborhood_difference(*given, jnp.asarray(USED))
    np.testing.assert_allclose(found, np.mean(pairs), rtol=1e-5)
    turned, _ = np.linalg.qr(RNG.standard_normal((5, 5)))
    same = neighborhood_difference(given[1], given[1] @ jnp.asarray(turned, jnp.float32) * 3, USED)
    assert same < 1e-10


@pytest.mark.slow
def test_one_row_none_and_features_of_zero_have_finite_slopes():
    z = jnp.zeros((8, 3)).at[1].set(1.0)
    for used in ([True, False, False, False], [False] * 4, [True] * 4):
        member = jnp.asarray(used)

        def both(z, member=member):
            near, far = jnp.split(z, 2)
            return instance_discrimination(z, member, HEAT) + neighborhood_difference(
                near, far, member
            )

        value, slope = jax.value_and_grad(both)(z)
        assert np.isfinite(value)
        assert np.isfinite(slope).all()
    np.testing.assert_allclose(unit(jnp.array([[3.0, 4.0], [0.001, 0.0]])), [[0.6, 0.8], [0.1, 0]])
