"""Epsilon of noisy sums of what is drawn at random, against the library and against integrals."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from dp_accounting.rdp import RdpAccountant
from scipy import integrate, stats
from scipy.special import logsumexp

from jaxfed.privacy import composition
from jaxfed.privacy.composition import (
    EVERYTHING,
    Poisson,
    WithoutReplacement,
    epsilon_of,
    gaussian_delta,
    gaussian_epsilon,
    mean_sensitivity,
    noise_multiplier_of,
    renyi_epsilon_of,
)

DELTA = 1e-5


def integrated(q, z, orders):
    """Renyi divergences of one Poisson draw: the integral over what is seen, in NumPy."""
    x = np.linspace(-40 * z, orders.max() + 40 * z, 200_001)
    ratio = np.logaddexp(np.log1p(-q), np.log(q) + (2 * x - 1) / (2 * z**2))
    density = -(x**2) / (2 * z**2) - np.log(z * np.sqrt(2 * np.pi)) + np.log(x[1] - x[0])
    return np.array([logsumexp(density + a * ratio) / (a - 1) for a in orders])


@pytest.mark.parametrize(("q", "z", "releases"), [(0.1, 1.0, 100), (0.02, 0.8, 500)])
@pytest.mark.sample(1)
def test_poisson_draws_are_accounted_as_their_integral_says(q, z, releases):
    orders = np.array([1 + x / 10 for x in range(5, 80)])
    divergences = releases * integrated(q, z, orders)
    bound = divergences + np.log1p(-1 / orders) - np.log(orders * DELTA) / (orders - 1)
    ours = renyi_epsilon_of(DELTA, z, releases, Poisson(q))
    assert ours == pytest.approx(bound.min(), rel=2e-3)
    assert orders[bound.argmin()] in orders[1:-1]


@pytest.mark.parametrize(
    ("q", "z", "releases"), [(0.1, 1.0, 100), (0.02, 0.8, 500), (0.1, 4.0, 300), (0.05, 0.7, 1)]
)
@pytest.mark.sample(1)
def test_poisson_epsilon_lies_between_an_optimistic_and_the_renyi_bound(q, z, releases):
    """At most a thousandth above the optimistic estimate, which is a lower bound."""
    least = from_gaussian_mechanism(
        z, sampling_prob=q, pessimistic_estimate=False, use_connect_dots=False
    ).self_compose(releases)
    ours = epsilon_of(DELTA, z, releases, Poisson(q))
    renyi = renyi_epsilon_of(DELTA, z, releases, Poisson(q))
    assert least.get_epsilon_for_delta(DELTA) <= ours
    assert ours == pytest.approx(least.get_epsilon_for_delta(DELTA), rel=0.02)
    assert ours < 0.95 * renyi


def test_one_poisson_release_has_its_closed_form():
    """delta(epsilon) = q delta_1(log(1 + (e^epsilon - 1) / q)) of one contribution more."""
    q, z, epsilon = 0.1, 1.0, 1.5
    inner = np.log1p(np.expm1(epsilon) / q)
    delta = q * composition.gaussian_delta(inner, 1.0, z)
    assert epsilon_of(delta, z, 1, Poisson(q)) == pytest.approx(epsilon, abs=2e-3)
    assert epsilon_of(delta, z, 1, Poisson(q)) >= epsilon


def test_draws_without_replacement_are_accounted_by_the_librarys_renyi():
    """One in place of another moves the sum by twice the bound."""
    accountant = RdpAccountant(composition._ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(
        dp_accounting.SampledWithoutReplacementDpEvent(100, 5, dp_accounting.GaussianDpEvent(2.0)),
        300,
    )
    assert epsilon_of(DELTA, 4.0, 300, WithoutReplacement(5, 100)) == accountant.get_epsilon(DELTA)


def test_a_draw_never_costs_more_than_none():
    """The bound for draws without replacement alone does, with little noise."""
    event = dp_accounting.SampledWithoutReplacementDpEvent(8, 4, dp_accounting.GaussianDpEvent(0.5))
    accountant = RdpAccountant(None, dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(event, 100)
    ours = epsilon_of(DELTA, 1.0, 100, WithoutReplacement(4, 8))
    assert ours < 0.9 * accountant.get_epsilon(DELTA)
    always_in = composition.gaussian_epsilon(DELTA, 2.0, 1.0, releases=100)
    assert always_in < ours < 1.1 * always_in
    assert epsilon_of(DELTA, 1.0, 100, Poisson(0.5)) < epsilon_of(DELTA, 1.0, 100, EVERYTHING)


def test_without_a_draw_epsilon_is_exact():
    accountant = PLDAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(3.0), 50)
    assert epsilon_of(DELTA, 3.0, 50, EVERYTHING) == pytest.approx(
        accountant.get_epsilon(DELTA), rel=1e-3
    )


@pytest.mark.parametrize("draw", [EVERYTHING, Poisson(0.1)])
@pytest.mark.sample(1)
def test_noise_for_an_epsilon_is_the_least(draw):
    z = noise_multiplier_of(2.0, DELTA, 20, draw)
    assert 1.98 < epsilon_of(DELTA, z, 20, draw) <= 2
    assert epsilon_of(DELTA, 0.998 * z, 20, draw) > 2
    assert epsilon_of(DELTA, z, 0, draw) == 0


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


def test_the_sensitivity_of_a_mean_is_attained():
    rng = np.random.default_rng(0)
    z = rng.standard_normal((5, 3))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    other = z.copy()
    other[2] = -z[2]
    assert np.linalg.norm(z.mean(0) - other.mean(0)) == pytest.approx(mean_sensitivity(1.0, 5))
