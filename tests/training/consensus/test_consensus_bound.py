"""Proposition 1 against its series, binomials, and the figures that the paper prints."""

import math

import numpy as np
import pytest
from scipy import stats

from jaxfed.training.consensus.consensus import change_probability, rounds_needed


@pytest.mark.parametrize(("m", "c", "rounds"), [(5, 1.0, 10), (7, 2.5, 4), (50, 1.0, 20)])
def test_the_sum_over_rounds(m, c, rounds):
    """Term by term, up to the integral of what is left."""
    t = np.arange(rounds + 1, 200_000, dtype=float)
    series = np.sum((4 * c / t) ** (m / 2))
    rest = (4 * c) ** (m / 2) * t[-1] ** (1 - m / 2) / (m / 2 - 1)
    assert change_probability(m, 30, rounds, c) == pytest.approx(30 * (series + rest), rel=1e-5)


@pytest.mark.parametrize("m", [3, 4, 5, 50])
@pytest.mark.parametrize("c", [1.0, 3.0])
def test_a_round_is_above_the_binomials_tail(m, c):
    """m/2 or fewer of m clients reproduce a label: the exact probability, summed over rounds."""
    rounds = math.ceil(2 * c)
    t = np.arange(rounds + 1, 20_000)
    exact = stats.binom.cdf(m // 2, m, 1 - c / t)
    assert np.sum(exact) <= change_probability(m, 1, rounds, c)
    assert np.all(exact <= (4 * c / t) ** (m / 2))


@pytest.mark.parametrize(("c", "printed"), [(1, 0.9993), (2, 0.9962), (10, 0.7868)])
def test_the_papers_figures_are_of_one_example(c, printed):
    """m = 5, t_0 = 1000, and |U| = 10000 says the paper, where the bound is above 1."""
    assert 1 - change_probability(5, 1, 1000, c) == pytest.approx(printed, abs=5e-5)
    assert change_probability(5, 10_000, 1000, c) > 1
    for m in (50, 100):
        assert change_probability(m, 10_000, 1000, c) < 1e-20


def test_it_falls_with_clients_and_rounds():
    values = [change_probability(m, 10_000, 1000, 2) for m in (3, 5, 10, 100, 1000, 3000)]
    assert np.all(np.diff(values) <= 0)
    assert values[-1] == 0
    assert math.isfinite(change_probability(3000, 10, 100, 50))
    log_at = [math.log(change_probability(200, 10, t, 1)) for t in (30, 1000)]
    assert log_at[1] < log_at[0] - 250
    # Where zeta is below what a float holds: an upper bound, and nearly the sum's first term.
    first_term = 100 * math.log(4 * 300 / 10_001)
    ours = math.log(change_probability(200, 1, 10_000, 300))
    assert first_term < ours < first_term + math.log(1 + 10_001 / 99) + 1e-9


@pytest.mark.parametrize(("m", "u", "c", "delta"), [(5, 10_000, 1, 0.05), (50, 100, 10, 1e-3)])
def test_the_smallest_number_of_rounds(m, u, c, delta):
    rounds = rounds_needed(m, u, c, delta)
    assert change_probability(m, u, rounds, c) <= delta
    assert rounds + 1 == 2 * c or change_probability(m, u, rounds - 1, c) > delta


def test_rounds_that_the_docstring_names():
    assert rounds_needed(5, 10_000, 1, 0.05) == 26_306
    assert rounds_needed(2000, 1, 2.0, 0.9) >= 3  # a_t >= 1/2 is asked for in any case
