"""SAGE and FedLabel, whose labels are of two models, against NumPy; FixMatch by the received model."""

import jax.numpy as jnp
import numpy as np
import pytest
from float64_training import log_softmax

from jaxfed.algorithms.fedlabel import surer
from jaxfed.algorithms.sage import corrected, correction
from jaxfed.training.local.consistency import Views
from jaxfed.training.local.losses import softmax_cross_entropy

TAU, KAPPA = 0.6, np.log(2) / 0.05


def views(n=200, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    own, received = rng.dirichlet(np.full(classes, 0.6), (2, n))
    strong = rng.standard_normal((n, classes))
    return own, received, strong


def as_views(own, received, strong):
    return Views(*(jnp.asarray(part, jnp.float32) for part in (own, received, strong)), None)


def divergence(p, log_q):
    return sum(a * (np.log(a) - b) for a, b in zip(p, log_q, strict=True) if a > 0)


def test_sage_by_a_loop():
    own, received, strong = views()
    expected = []
    for p_l, p_g, log_s in zip(own, received, log_softmax(strong), strict=True):
        target, counts = np.zeros(3), max(p_l.max(), p_g.max()) >= TAU
        share = np.exp(-KAPPA * abs(p_l.max() - p_g.max())) if p_l.max() >= TAU else 0
        target[p_l.argmax()] += share
        target[p_g.argmax()] += 1 - share
        expected.append(divergence(target, log_s) if counts else 0)
    found = corrected(TAU, KAPPA)(as_views(own, received, strong))
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-5)
    assert 0 < np.mean(np.asarray(expected) == 0) < 1


def test_sage_believes_both_equally_at_a_difference_of_a_twentieth():
    own, received = jnp.array([[0.9, 0.1]]), jnp.array([[0.15, 0.85]])
    target, counts = correction(own, received, 0.6, KAPPA)
    np.testing.assert_allclose(target, [[0.5, 0.5]], atol=1e-4)
    assert counts == 1
    unsure = correction(jnp.array([[0.7, 0.3]]), received, 0.8, KAPPA)
    np.testing.assert_allclose(unsure[0], [[0, 1]])
    assert unsure[1] == 1
    assert correction(own, received, 0.95, KAPPA)[1] == 0


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_fedlabel_by_a_loop(weight):
    own, received, strong = views(seed=1)
    expected, agreements = [], 0
    for p_l, p_g, log_s in zip(own, received, log_softmax(strong), strict=True):
        best, other = (p_l, p_g) if p_l.max() >= p_g.max() else (p_g, p_l)
        value = -log_s[best.argmax()]
        if best.argmax() == other.argmax():
            agreements += 1
            value += weight * other.max() / best.max() * divergence(other, log_s)
        expected.append(value if best.max() >= TAU else 0)
    assert 0 < agreements < len(own)
    found = surer(TAU, weight, softmax_cross_entropy)(as_views(own, received, strong))
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-5)
