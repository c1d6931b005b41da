"""Thresholds by class, against loops, and predictions of a client before its first step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.models.mlp import mlp
from jaxfed.training.local.batches import ClientData, is_unlabeled
from jaxfed.training.local.consistency import (
    THRESHOLDS,
    flexmatch,
    freematch,
)
from jaxfed.training.local.local_training import client_logits
from jaxfed.training.local.losses import mean_where

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
