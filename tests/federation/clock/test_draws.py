"""Draws that belong to clients: speeds against chance, and sets of free clients, all equally likely."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from jaxfed.federation.clock import Clock, draw_free, seconds_of, standard_normal

MANY = np.arange(100_000)


def test_draws_are_standard_normal_independent_and_a_clients_own():
    first, second = (standard_normal(MANY, 5, i) for i in range(2))
    quarters = np.searchsorted([-0.6745, 0, 0.6745], first)
    chi2 = ((np.bincount(quarters) - 25_000) ** 2 / 25_000).sum()
    assert chi2 < 16.3  # 3 degrees of freedom, one in a thousand
    for other in (second, np.roll(first, 1), standard_normal(MANY, 6, 0)):
        assert abs(np.corrcoef(first, other)[0, 1]) < 5 / np.sqrt(len(MANY))
    some = np.array([7, 99_999, 0])
    assert standard_normal(some, 5, 1).tolist() == second[some].tolist()


def test_speeds_are_lognormal():
    clock = Clock(seconds_per_example=0.02, speed_spread=0.7)
    logs = np.log(seconds_of(clock, 5, np.full(len(MANY), 10.0)))
    assert abs(np.median(logs) - np.log(0.2)) < 5 * 1.2533 * 0.7 / np.sqrt(len(MANY))
    assert abs(logs.std() / 0.7 - 1) < 5 / np.sqrt(2 * len(MANY))
    scaled = (logs - logs.mean()) / logs.std()
    assert abs((scaled**4).mean() - 3) < 5 * np.sqrt(96 / len(MANY))


@pytest.mark.parametrize("pool", [6, np.array([1, 3, 4, 5, 8, 9])])
def test_all_sets_of_free_clients_are_equally_likely(pool):
    everybody = np.arange(6) if isinstance(pool, int) else pool
    free, busy = everybody[[0, 2, 3, 5]], {*everybody[[1, 4]].tolist(), 77}
    rng, number = np.random.default_rng(0), 3000
    found = Counter(tuple(sorted(draw_free(rng, pool, 2, busy))) for _ in range(number))
    assert set(found) == set(combinations(free.tolist(), 2))
    expected = number / 6
    assert sum((n - expected) ** 2 / expected for n in found.values()) < 20.5  # 5 degrees, 0.1 %
