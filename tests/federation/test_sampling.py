"""Who takes part is drawn fairly: all cohorts that may be are equally likely, one round's and the next's."""

from collections import Counter
from itertools import combinations, product
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from jaxfed.federation.clients import Federation
from jaxfed.federation.sampling import Sampling, sample_clients

LEAST = 1e-6  # of a chi-square test that is right


class Counted(SimpleNamespace):
    by_labels = Federation.by_labels


def clients(number, num_labeled):
    labeled = [range(client < num_labeled) for client in range(number)]
    return Counted(num_clients=number, label_counts=list(map(len, labeled)))


def are_equally_likely(drawn, possible):
    counts = Counter(drawn)
    assert counts.keys() <= set(possible)
    assert stats.chisquare([counts[one] for one in possible]).pvalue > LEAST


@pytest.mark.parametrize("along", ["rounds", "seeds"])
@pytest.mark.parametrize(
    ("sampling", "size", "needs_labels", "possible"),
    [
        ("uniform", 2, False, list(combinations(range(6), 2))),
        # Two of six have labels: one of them, and two of the others.
        ("proportional", 3, False, [(a, *b) for a in (0, 1) for b in combinations(range(2, 6), 2)]),
        ("proportional", 1, True, [(0,), (1,)]),
    ],
)
def test_all_cohorts_are_equally_likely(sampling, size, needs_labels, possible, along):
    federation, config = clients(6, 2), Sampling(size, sampling)
    streams = [(3, n) if along == "rounds" else (n, 3) for n in range(1, 2001)]
    drawn = [
        tuple(sample_clients(config, federation, seed, number, needs_labels=needs_labels))
        for seed, number in streams
    ]
    are_equally_likely(drawn, possible)


def test_groups_are_equally_likely():
    federation, config = clients(6, 6), Sampling(2, "groups")
    drawn = [tuple(sample_clients(config, federation, seed, 2)) for seed in range(2000)]
    are_equally_likely(drawn, list(combinations(range(6), 2)))


def test_one_round_tells_nothing_of_the_next():
    federation, config = clients(5, 5), Sampling(1)
    drawn = [sample_clients(config, federation, 0, number)[0] for number in range(5000)]
    pairs = zip(drawn[::2], drawn[1::2], strict=True)
    are_equally_likely(pairs, list(product(range(5), repeat=2)))


@pytest.mark.parametrize("sampling", ["uniform", "proportional", "groups"])
def test_clients_are_counted_once_and_not_in_every_round(sampling, monkeypatch):
    counted = []

    class Counting(Counted):
        @property
        def label_counts(self):
            counted.append("labels")
            return [1, 0] * 500

    plain = np.random.default_rng

    class Generator:
        def __init__(self, seed):
            self.own = plain(seed)

        def permutation(self, number):
            counted.append("groups")
            return self.own.permutation(number)

        def choice(self, *arguments, **keywords):
            return self.own.choice(*arguments, **keywords)

    monkeypatch.setattr(np.random, "default_rng", Generator)
    federation = Counting(num_clients=1000)
    seed = 10**6 + len(sampling)  # of no other test: groups are kept for the last one
    for number in range(5):
        assert len(sample_clients(Sampling(10, sampling), federation, seed, number)) == 10
    assert counted == {"uniform": [], "proportional": ["labels"], "groups": ["groups"]}[sampling]
