"""Neighborhoods keep their promise: published figures, exact tails, and graphs that are drawn."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest

from jaxfed.secure.session.neighborhoods import (
    Promise,
    check_partners,
    drawn_graph,
    enough_partners,
    is_connected,
    neighborhood,
)

# (colluding, leaving): {n: (k, t)} at sigma = 40, eta = 20, against a curious server: from the tests of the
# authors' implementation (github.com/google-parfait/federated-compute,
# fcp/secagg/server/graph_parameter_finder_test.cc).
PUBLISHED = {
    (0.05, 0.33): {
        100: (28, 6),
        1000: (72, 24),
        10**4: (86, 29),
        10**5: (96, 32),
        10**6: (102, 34),
    },
    (0.33, 0.05): {100: (34, 29), 1000: (78, 60), 10**4: (92, 70), 10**6: (110, 83)},
    (0.33, 0.33): {100: (68, 34), 1000: (286, 150), 10**4: (422, 221), 10**6: (518, 270)},
    (0.05, 0.05): {100: (12, 6), 1000: (30, 17), 10**4: (34, 20), 10**5: (36, 21), 10**6: (38, 22)},
    (0.45, 0.45): {100: (92, 46)},
    (0.33, 0.0): {1000: (38, 36), 10**6: (50, 47)},
    (0.0, 0.33): {1000: (38, 2), 10**6: (50, 2)},
    (0.0, 0.0): {10**4: (2, 2)},
}
WEAK = Promise(0.1, 0.2, 3, 3)


def source(rng):
    return lambda count: rng.bytes(count)


@pytest.mark.parametrize(("colluding", "leaving"), PUBLISHED)
def test_published_figures(colluding, leaving):
    for number, expected in PUBLISHED[colluding, leaving].items():
        assert neighborhood(number, 0, Promise(colluding, leaving, 40, 20)) == expected


def test_default_promise():
    """The tables of the module's docstring and of docs/threat-model.md; k grows with log n."""
    expected = {20: (8, 2), 100: (28, 6), 1000: (76, 25), 10**4: (92, 30), 10**5: (100, 33)}
    expected |= {10**6: (108, 35), 10**8: (120, 39)}
    assert {number: neighborhood(number) for number in expected} == expected


def failures(n, k, t, promise):
    """Probability bounds of (a), (b) and (c) in exact arithmetic."""
    c, d = int(promise.colluding * n), int(promise.leaving * n)
    draws = comb(n - 1, k)
    colluders = sum(comb(c, x) * comb(n - 1 - c, k - x) for x in range(t, k + 1))
    few = sum(comb(n - 1 - d, y) * comb(d, k - y) for y in range(t))
    gaps = Fraction(n * (n - k - 1), 2) * Fraction(comb(n - k, max(c + d - k, 0)), comb(n, c + d))
    cut = gaps if k <= c + d and k < n - 1 else 0
    return n * Fraction(colluders, draws), cut, n * Fraction(few, draws)


@pytest.mark.parametrize("number", [40, 200, 1000])
@pytest.mark.parametrize("promise", [Promise(), WEAK, Promise(0.2, 0.1, 20, 10)])
def test_smallest_by_exact_integers(number, promise):
    """k keeps all three bounds, t is the smallest that does, and k - 2 has none."""

    def holds(k, t):
        colluders, cut, few = failures(number, k, t, promise)
        security = Fraction(1, 2 ** (promise.security_bits + 1))
        return max(colluders, cut) <= security and few <= Fraction(1, 2**promise.correctness_bits)

    size, threshold = neighborhood(number, 0, promise)
    assert holds(size, threshold)
    assert threshold == 2 or not holds(size, threshold - 1)
    assert not any(holds(size - 2, t) for t in range(2, size - 1))


def test_cut_by_gaps_at_two_places_alone():
    """The bound (b) counts what cuts Harary's graph: k/2 that follow each other, twice."""
    graph = drawn_graph(range(60), 12, source(np.random.default_rng(1)), Promise(0, 0.1, 1, 1))
    ring = [0]
    for _ in range(59):  # the next on the ring shares the most neighbors
        known = set(graph.neighbors[ring[-1]])
        near = [j for j in known if j not in ring]
        ring.append(max(near, key=lambda j: len(known & set(graph.neighbors[j]))))
    one, two = set(ring[3:9]), set(ring[3:9]) | set(ring[30:36])
    assert is_connected(graph.neighbors, set(ring) - one)
    assert not is_connected(graph.neighbors, set(ring) - two)
    assert is_connected(graph.neighbors, set(ring) - (two - {ring[4]}))


def test_graph_is_regular_and_mutual():
    graph = drawn_graph(range(100), 28, source(np.random.default_rng(2)))
    assert {len(own) for own in graph.neighbors.values()} == {28}
    for client, own in graph.neighbors.items():
        assert own == sorted(set(own))
        assert client not in own
        assert all(client in graph.neighbors[j] for j in own)
    other = drawn_graph(range(100), 28, source(np.random.default_rng(3)))
    assert other.neighbors != graph.neighbors


def test_partners_of_fewer_clients():
    """78 clients need 24, 77 need 26: a k that was checked for 78 is made enough for the 77 that come."""
    assert (neighborhood(78).size, neighborhood(77).size) == (24, 26)
    check_partners(78, 24)
    assert enough_partners(77, 24) == 26
    assert enough_partners(77, 30) == 30
    assert enough_partners(77, 0) == 0
    check_partners(20, 19)
    check_partners(20, 0)
