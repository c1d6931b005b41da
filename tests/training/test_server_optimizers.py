"""Adaptive server optimizers against Algorithm 2 of Reddi et al., in NumPy."""

import numpy as np
import pytest

from jaxfed.training.aggregate import SECOND_MOMENTS, adaptive


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
