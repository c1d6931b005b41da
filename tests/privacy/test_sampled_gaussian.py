"""Epsilon of noisy sums of what is drawn at random, against the library and against integrals."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from dp_accounting.rdp import RdpAccountant
from scipy.special import logsumexp

from jaxfed.privacy import composition, sampled_gaussian
from jaxfed.privacy.sampled_gaussian import (
    EVERYTHING,
    Poisson,
    WithoutReplacement,
    epsilon_of,
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


def test_a_large_epsilon_is_by_renyi_alone(monkeypatch):
    monkeypatch.setattr(sampled_gaussian, "_loss_distribution", None)
    assert epsilon_of(DELTA, 0.1, 50, Poisson(0.5)) > 200


def test_draws_without_replacement_are_accounted_by_the_librarys_renyi():
    """One in place of another moves the sum by twice the bound."""
    accountant = RdpAccountant(
        sampled_gaussian._ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE
    )
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


@pytest.mark.parametrize("z", [1e-6, 1e-2, sampled_gaussian.MOST_NOISE])
@pytest.mark.parametrize("draw", [EVERYTHING, Poisson(1e-4), WithoutReplacement(1, 2)])
def test_extreme_noise_has_an_epsilon(z, draw, caplog):
    epsilon = epsilon_of(DELTA, z, 50, draw)
    assert (1e4 < epsilon < 1e20) if z < 1 else (0 <= epsilon < 1e-2)
    assert not caplog.records
