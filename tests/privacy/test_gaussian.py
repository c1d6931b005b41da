"""The Gaussian mechanism's promise against its definition, integrated numerically."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, stats

from jaxfed.privacy.composition import gaussian_delta, gaussian_epsilon, mean_sensitivity


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 3.0])
@pytest.mark.parametrize("a", [0.1, 0.5, 1.0, 4.0])
def test_delta_is_the_hockey_stick_of_the_two_densities(epsilon, a):
    p, q = stats.norm(0, 1), stats.norm(a, 1)
    end = (a**2 / 2 - epsilon) / a  # where p = e^epsilon q: p is larger to the left
    expected, _ = integrate.quad(
        lambda x: p.pdf(x) - math.exp(epsilon) * q.pdf(x), -12, end, epsabs=1e-13
    )
    assert gaussian_delta(epsilon, a, 1.0) == pytest.approx(expected, rel=1e-6, abs=1e-12)
    assert gaussian_delta(epsilon, 3 * a, 3.0) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.1])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 20.0])
def test_epsilon_and_delta_are_inverse(delta, sigma):
    epsilon = gaussian_epsilon(delta, 1.0, sigma)
    assert gaussian_delta(epsilon, 1.0, sigma) <= delta
    if epsilon > 0:
        assert gaussian_delta(epsilon, 1.0, sigma) == pytest.approx(delta, rel=1e-6)


def test_releases_add_up_in_squares():
    assert gaussian_delta(1.0, 1.0, 2.0, releases=9) == pytest.approx(gaussian_delta(1.0, 3.0, 2.0))
    assert gaussian_epsilon(1e-5, 1.0, 10.0, releases=100) > gaussian_epsilon(1e-5, 1.0, 10.0)
    # Two releases are two independent coordinates: one vector that moves by sqrt(2).
    assert gaussian_delta(1.0, math.sqrt(2), 1.0) == pytest.approx(
        gaussian_delta(1.0, 1.0, 1.0, releases=2)
    )


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_what_nobody_moves_costs_nothing(epsilon):
    """A sensitivity of 0: the release tells nothing, at any noise."""
    assert gaussian_delta(epsilon, 0.0, 1.0) == 0
    assert gaussian_epsilon(1e-5, 0.0, 1.0, releases=7) == 0
    assert str(gaussian_delta(epsilon, 1e-20, 1.0)) == "0.0"  # and not -0.0


def test_small_deltas_keep_their_digits():
    assert 0 < gaussian_delta(30.0, 1.0, 0.3) < 1e-3
    values = [gaussian_delta(e, 1.0, 1.0) for e in np.linspace(0, 30, 100)]
    assert all(a >= b >= 0 for a, b in pairwise(values))


def test_the_sensitivity_of_a_mean_is_attained():
    rng = np.random.default_rng(0)
    z = rng.standard_normal((5, 3))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    other = z.copy()
    other[2] = -z[2]
    assert np.linalg.norm(z.mean(0) - other.mean(0)) == pytest.approx(mean_sensitivity(1.0, 5))
