"""Consistency of two views: FixMatch by formula, terms by NumPy, thresholds by loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.models.mlp import mlp
from jaxfed.training.local.batches import ClientData, is_unlabeled
from jaxfed.training.local.consistency import (
    THRESHOLDS,
    Views,
    confident,
    consistency,
    divergence,
    flexmatch,
    freematch,
    graph_where_unsure,
    soft_cross_entropy,
)
from jaxfed.training.local.local_training import LocalTraining, client_logits
from jaxfed.training.local.losses import Batch, mean_where

KEY = jax.random.key(0)


def plus_one(key, rows):
    return rows + 1


def doubled(key, rows):
    return 2 * rows


def test_fixmatch_by_formula():
    """Two labeled rows; of two unlabeled ones the surer counts, by its own label, strongly augmented."""
    model = mlp((4,), 3, hidden=())
    state = model.init(KEY)
    x = np.random.default_rng(1).standard_normal((5, 4))
    batch = Batch(
        x=jnp.asarray(x, jnp.float32),
        label=np.array([0, 2, 0, 0, 1], np.int32),
        weight=np.float32([1, 1, 0, 0, 0]),
        used=np.array([True, True, True, True, False]),
        is_labeled=np.array([True, True, False, False, True]),
    )
    kernel, bias = (np.asarray(state["head"][n][...], np.float64) for n in ("kernel", "bias"))

    def log_softmax(inputs):
        logits = inputs @ kernel + bias
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    weak, strong = log_softmax(x + 1), log_softmax(2 * x)
    surest = 2 + np.exp(weak[2:4]).max(axis=1).argmax()
    threshold = np.sort(np.exp(weak[2:4]).max(axis=1)).mean()
    local = LocalTraining(augment=plus_one, strong_augment=doubled)
    loss = consistency(model, local, confident(threshold), unlabeled_weight=0.3)
    supervised = -(weak[0, 0] + weak[1, 2]) / 2
    unlabeled = -strong[surest, weak[surest].argmax()] / 2
    program = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (value, _), gradient = program(state, state, batch, KEY)
    assert float(value) == pytest.approx(supervised + 0.3 * unlabeled, rel=1e-5)
    step = np.exp(weak[:2]) - np.eye(3)[[0, 2]]
    expected = (x[:2] + 1).T @ step / 2
    step = np.exp(strong[surest]) - np.eye(3)[weak[surest].argmax()]
    expected += 0.3 * np.outer(2 * x[surest], step) / 2
    np.testing.assert_allclose(gradient["head"]["kernel"][...], expected, rtol=1e-4, atol=1e-5)


def test_the_received_model_predicts_the_weak_view():
    """p_G is by the anchor, p_L by the model in training; both on the weak view, without a gradient."""
    model = mlp((4,), 3, hidden=(5,))
    state, anchor = model.init(KEY), model.init(jax.random.key(1))
    x = jax.random.normal(KEY, (4, 4))
    batch = Batch(x, jnp.zeros(4, int), jnp.ones(4), jnp.ones(4, bool), jnp.zeros(4, bool))

    def value(state):
        seen = {}

        def term(views):
            seen.update(own=views.own, received=views.received, strong=views.strong)
            return jnp.sum(views.own + views.received, axis=-1)

        local = LocalTraining(augment=plus_one, strong_augment=doubled)
        shifted = consistency(model, local, term, asks_received=True)
        return shifted(state, anchor, batch, KEY)[0], seen

    (loss, seen), slope = jax.jit(jax.value_and_grad(value, has_aux=True))(state)
    assert float(loss) == pytest.approx(2)
    np.testing.assert_allclose(seen["own"], jax.nn.softmax(model.apply(state, x + 1)), rtol=1e-5)
    np.testing.assert_allclose(
        seen["received"], jax.nn.softmax(model.apply(anchor, x + 1)), rtol=1e-5
    )
    np.testing.assert_allclose(seen["strong"], model.apply(state, 2 * x), rtol=1e-5)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(slope))


def test_a_threshold_of_each_class_and_either_label():
    own = jnp.array([[0.7, 0.3], [0.4, 0.6], [0.45, 0.55]])
    received = jnp.array([[0.2, 0.8], [0.9, 0.1], [0.65, 0.35]])
    views = Views(own, received, jnp.log(jnp.array([[0.5, 0.5]] * 2 + [[0.1, 0.9]])), None)
    least = jnp.array([0.7, 0.6])
    by_own, by_received = (confident(least, labeled_by=name)(views) for name in ("own", "received"))
    np.testing.assert_allclose(by_own, [np.log(2), np.log(2), 0], rtol=1e-5)
    np.testing.assert_allclose(by_received, [np.log(2), np.log(2), 0], rtol=1e-5)
    np.testing.assert_allclose(confident(0.55)(views)[2], -np.log(0.9), rtol=1e-5)
    np.testing.assert_allclose(
        confident(0.65, labeled_by="received")(views)[2], -np.log(0.1), rtol=1e-5
    )


def test_divergence_and_cross_entropy_by_hand():
    """KL((1/2, 1/2, 0), (1/4, 1/2, 1/4)) = log(2) / 2, and its gradient is q - p."""
    target, q = np.array([0.5, 0.5, 0]), np.array([0.25, 0.5, 0.25])
    logits = jnp.log(jnp.asarray(q, jnp.float32))
    assert float(divergence(logits, jnp.asarray(target))) == pytest.approx(np.log(2) / 2, rel=1e-5)
    assert float(soft_cross_entropy(logits, jnp.asarray(target))) == pytest.approx(
        1.5 * np.log(2), rel=1e-5
    )
    gradient = jax.grad(divergence)(logits, jnp.asarray(target))
    np.testing.assert_allclose(gradient, q - target, atol=1e-6)


def test_the_graph_labels_where_no_network_is_sure():
    own = jnp.array([[0.9, 0.1], [0.6, 0.4], [0.6, 0.4]])
    received = jnp.array([[0.5, 0.5], [0.5, 0.5], [0.05, 0.95]])
    strong = jnp.log(jnp.array([[0.2, 0.8]] * 3))
    label, weight = jnp.array([1, 1, 0]), jnp.array([0.5, 0.25, 1.0])
    batch = Batch(None, label, weight, jnp.ones(3, bool), jnp.zeros(3, bool))
    term = graph_where_unsure(lambda views: jnp.array([7.0, 8.0, 9.0]), 0.8)
    found = term(Views(own, received, strong, batch))
    np.testing.assert_allclose(found, [7, -0.25 * np.log(0.8), 9], rtol=1e-5)


TAU = 0.8


def predictions(n=40, classes=4):
    rng = np.random.default_rng(5)
    return rng.dirichlet(np.full(classes, 0.25), n), rng.random(n) < 0.7


def test_flexmatch_by_a_loop():
    p, member = predictions()
    count, unsure = np.zeros(4), 0
    for row, counts in zip(p, member, strict=True):
        if counts and row.max() >= TAU:
            count[row.argmax()] += 1
        elif counts:
            unsure += 1
    beta = count / max(count.max(), unsure)
    assert 0 < count.min() < count.max()
    assert unsure
    found = flexmatch(jnp.asarray(p, jnp.float32), jnp.asarray(member), TAU)
    np.testing.assert_allclose(found, TAU * beta / (2 - beta), rtol=1e-5)


def test_flexmatch_of_a_model_that_is_sure_of_all():
    """The class predicted most has tau itself."""
    p = jnp.array([[0.9, 0.1], [0.95, 0.05], [0.1, 0.9]])
    found = flexmatch(p, jnp.ones(3, bool), TAU)
    np.testing.assert_allclose(found, [TAU, TAU * 0.5 / 1.5], rtol=1e-6)


def test_freematch_by_a_loop():
    p, member = predictions()
    own = p[member]
    share = own.mean(axis=0)
    expected = own.max(axis=1).mean() * share / share.max()
    found = freematch(jnp.asarray(p, jnp.float32), jnp.asarray(member))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("rule", THRESHOLDS)
def test_a_client_without_unlabeled_examples_has_finite_thresholds(rule):
    found = THRESHOLDS[rule](jnp.full((3, 2), 0.5), jnp.zeros(3, bool), TAU)
    assert np.isfinite(found).all()


def test_predictions_of_a_client():
    """Each example on its own view, in evaluation mode; the mean leaves others out."""
    model = mlp((3,), 2, hidden=(4,))
    state, key = model.init(jax.random.key(0)), jax.random.key(1)
    x = jax.random.normal(key, (5, 3))
    label = jnp.array([0, -1, 1, 1, 0])
    data = ClientData(
        x, label, jnp.ones(5), jnp.array([True, False, False, False, False]), jnp.arange(5) < 4
    )
    np.testing.assert_array_equal(is_unlabeled(data), [False, False, True, True, False])
    found = client_logits(model, state, data, key, lambda key, rows: 2 * rows)
    np.testing.assert_allclose(found[:4], model.apply(state, 2 * x[:4]), rtol=1e-5)
    np.testing.assert_allclose(mean_where(x, is_unlabeled(data)), x[2:4].mean(axis=0), rtol=1e-5)
