"""Means and steps of the server: float32 on every device, and Algorithm 2 of Reddi et al. in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.algorithms.fedmatch import mean_divergence
from jaxfed.training.aggregate import SECOND_MOMENTS, adaptive
from jaxfed.training.pseudo_labels.prototypes import Prototypes, mean_probabilities
from jaxfed.training.round.round import weighted_mean

VALUES = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 2)), jnp.float32)
WEIGHTS = jnp.array([0.5, 2.0, 0.0])


@pytest.mark.parametrize(
    "compute",
    [
        lambda: weighted_mean({"w": VALUES}, WEIGHTS),
        lambda: mean_divergence(VALUES, VALUES[0], WEIGHTS > 0),
        lambda: mean_probabilities(VALUES[0], Prototypes(VALUES, jnp.ones((3, 4), bool))),
    ],
)
def test_gpus_are_told_not_to_round(compute):
    """Their default is TF32, in which a mean of equal models would not be that model."""
    products = [e for e in jax.make_jaxpr(compute)().eqns if e.primitive.name == "dot_general"]
    assert products
    assert {str(p) for e in products for p in e.params["precision"]} == {"HIGHEST"}


@pytest.mark.parametrize("name", SECOND_MOMENTS)
def test_three_steps_are_algorithm_2(name):
    rng = np.random.default_rng(0)
    eta, beta1, beta2, tau = 0.1, 0.9, 0.99, 1e-2
    optimizer = adaptive(name, eta, beta1=beta1, beta2=beta2, tau=tau)
    w = rng.standard_normal(5).astype(np.float32)
    state = optimizer.init(w)
    m, v = np.zeros(5), np.full(5, tau**2)
    for _ in range(3):
        delta = rng.standard_normal(5).astype(np.float32) * [1, 0.1, 1e-3, 0, 10]
        step, state = optimizer.update(-delta.astype(np.float32), state, w)
        m = beta1 * m + (1 - beta1) * delta
        square = delta**2
        v = {
            "adagrad": v + square,
            "yogi": v - (1 - beta2) * square * np.sign(v - square),
            "adam": beta2 * v + (1 - beta2) * square,
        }[name]
        np.testing.assert_allclose(step, eta * m / (np.sqrt(v) + tau), rtol=2e-5, atol=1e-7)
