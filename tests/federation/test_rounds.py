"""The round loop: who plays rounds, drawn fairly, and when states are judged."""

from collections import Counter
from itertools import combinations, product
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from scipy import stats

import jaxfed
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clients import Federation
from jaxfed.federation.method import with_attributes
from jaxfed.federation.rounds import Sampling, cohorts_of, is_judged, play, sample_clients

CLIENTS = [(np.full((2, 1), j, np.float32), [0, 1]) for j in range(5)]


def summing(stage_1=0):
    """A method whose state is the numbers of the clients that it has seen, and its keys."""

    def round(state, cohort, key):
        ids = tuple(np.asarray(cohort.client_id).tolist())
        return (*state, (ids, jax.random.key_data(key).tolist())), {"clients": len(ids)}

    staged = with_attributes(
        round, stage_1=stage_1, needs_labels_in=lambda number: number <= stage_1
    )
    return FederatedAlgorithm(lambda key, federation: (), staged, lambda state, federation: {})


def test_rounds_follow_one_another_with_their_own_cohorts_and_keys():
    federation, key = jaxfed.Federation.from_clients(CLIENTS), jax.random.key(3)
    sampling = Sampling(2, "uniform")
    cohort_of = cohorts_of(summing(), federation, sampling, 7, 9)
    played = list(play(summing(), ("start",), range(4, 7), cohort_of=cohort_of, key=key))
    assert [one.round for one in played] == [4, 5, 6]
    state = ("start",)
    for one in played:
        assert one.before == state
        own_key = jax.random.fold_in(key, one.round)
        assert jax.random.key_data(one.key).tolist() == jax.random.key_data(own_key).tolist()
        clients = tuple(sample_clients(sampling, federation, 7, one.round))
        assert one.cohort.client_id.tolist() == list(clients)
        state = (*state, (clients, jax.random.key_data(own_key).tolist()))
        assert one.after == state
        assert one.metrics == {"clients": 2}


def test_rounds_that_need_labels_have_cohorts_of_clients_with_labels():
    clients = [(x, y if j < 2 else [-1, -1]) for j, (x, y) in enumerate(CLIENTS)]
    federation = jaxfed.Federation.from_clients(clients, num_classes=2)
    sampling = Sampling(2, "proportional")
    cohort_of = cohorts_of(summing(stage_1=2), federation, sampling, 0, 9)
    assert cohort_of(1).client_id.tolist() == cohort_of(2).client_id.tolist() == [0, 1]
    assert any(cohort_of(number).client_id.tolist() != [0, 1] for number in range(3, 9))


@pytest.mark.parametrize(
    ("every", "stage", "expected"),
    [
        *((0, 0, [5]), (1, 0, [1, 2, 3, 4, 5]), (2, 0, [2, 4, 5]), (9, 0, [5])),
        *((0, 2, [2, 5]), (3, 1, [1, 3, 5]), (0, 5, [5]), (0, 9, [5])),
    ],
)
def test_when_states_are_judged(every, stage, expected):
    """What pseudo-labels start from is always a candidate."""
    method = summing(stage_1=stage)
    assert [n for n in range(1, 6) if is_judged(method, n, 5, every)] == expected


# Calls of an algorithm's `round` that advance no experiment: one method's round is another's part.


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
