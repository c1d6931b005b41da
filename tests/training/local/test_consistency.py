"""Consistency of two views: FixMatch by formula, terms by NumPy, thresholds by loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.models.mlp import mlp
from jaxfed.training.local.consistency import (
    confident,
    consistency,
    flexmatch,
)
from jaxfed.training.local.local_training import LocalTraining
from jaxfed.training.local.losses import Batch

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
            seen.update(current=views.current, received=views.received, strong=views.strong)
            return jnp.sum(views.current + views.received, axis=-1)

        local = LocalTraining(augment=plus_one, strong_augment=doubled)
        shifted = consistency(model, local, term, asks_received=True)
        return shifted(state, anchor, batch, KEY)[0], seen

    (loss, seen), slope = jax.jit(jax.value_and_grad(value, has_aux=True))(state)
    assert float(loss) == pytest.approx(2)
    np.testing.assert_allclose(
        seen["current"], jax.nn.softmax(model.apply(state, x + 1)), rtol=1e-5
    )
    np.testing.assert_allclose(
        seen["received"], jax.nn.softmax(model.apply(anchor, x + 1)), rtol=1e-5
    )
    np.testing.assert_allclose(seen["strong"], model.apply(state, 2 * x), rtol=1e-5)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(slope))


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
