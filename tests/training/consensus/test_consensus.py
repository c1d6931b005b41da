"""Consensus against NumPy, one example after another; Proposition 1 against its series."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from jaxfed.training.consensus.consensus import (
    change_probability,
    largest_share,
    rounds_needed,
    staple,
    summed_probabilities,
    vote_histogram,
)

C = 4
TALLIES = {  # kind of answers, tally, threshold
    "majority": ("labels", partial(vote_histogram, num_classes=C), 0.0),
    "qualified_majority": ("labels", partial(vote_histogram, num_classes=C), 0.6),
    "mean": ("probabilities", summed_probabilities, 0.0),
}
NAMES = (*TALLIES, "staple")
BY_NAME = pytest.mark.parametrize("name", NAMES)
BY_TALLY = pytest.mark.parametrize("name", TALLIES)


def kind_of(name):
    return TALLIES[name][0] if name in TALLIES else "labels"


def agree(name, answers, clients):
    if name == "staple":
        return staple(np.where(clients[:, None] >= 0, answers, -1), C)
    _, tally, threshold = TALLIES[name]
    return largest_share(tally(answers, clients), threshold=threshold)


def answers_of(kind, num_clients=5, num_examples=40, seed=0):
    """Answers that mostly agree, some of them missing, and clients' ids."""
    rng = np.random.default_rng(seed)
    shape = (num_clients, num_examples)
    is_there = rng.random(shape) < 0.85
    truth = rng.integers(C, size=num_examples)
    if kind == "labels":
        votes = np.where(rng.random(shape) < 0.5, truth, rng.integers(C, size=shape))
        given = np.where(is_there, votes, -1).astype(np.int32)
    else:
        given = rng.dirichlet(np.ones(C), size=shape) * is_there[..., None]
        given = given.astype(np.float32)
    return given, np.arange(num_clients, dtype=np.int32)


def of_one_example(name, answers):
    """(label, weight, soft) of one example's answers, K of them, those missing left out."""
    if kind_of(name) == "labels":
        tally = np.bincount(answers[answers >= 0], minlength=C)
    else:
        tally = answers.sum(axis=0)
    if not tally.any():
        return -1, 0.0, np.zeros(C)
    share = tally / tally.sum()
    if share.max() < TALLIES[name][2] - 1e-9:
        return -1, 0.0, share
    return tally.argmax(), 1.0, share


@BY_TALLY
def test_example_after_example(name):
    answers, clients = answers_of(kind_of(name))
    answers[:, 3] = -1 if kind_of(name) == "labels" else 0
    label, weight, soft = agree(name, answers, clients)
    for u in range(answers.shape[1]):
        expected = of_one_example(name, answers[:, u])
        assert (label[u], weight[u]) == expected[:2]
        np.testing.assert_allclose(soft[u], expected[2], rtol=1e-6, atol=1e-7)
    assert label.dtype == np.int32
    assert label[3] == -1


@BY_TALLY
def test_a_tally_is_a_sum_over_clients(name):
    """Whoever adds up the tallies of single clients needs no more; the sum of integers is exact."""
    kind, tally_of, _ = TALLIES[name]
    answers, clients = answers_of(kind)
    tally = tally_of(answers, clients)
    parts = [np.asarray(tally_of(answers[k : k + 1], clients[k : k + 1])) for k in clients]
    if kind == "labels":
        np.testing.assert_array_equal(tally, sum(parts))
        assert tally.dtype == np.int32
    np.testing.assert_allclose(tally, sum(parts), rtol=1e-6, atol=1e-6)


@BY_NAME
@given(seed=st.integers(0, 2**31))
def test_order_and_padding_of_clients_are_inert(name, seed):
    """Padding rows may hold anything."""
    answers, clients = answers_of(kind_of(name), seed=seed)
    expected = agree(name, answers, clients)
    rng = np.random.default_rng(seed)
    padded = np.concatenate([answers, answers[rng.integers(5, size=3)]])
    order = rng.permutation(8)
    ids = np.concatenate([clients, np.full(3, -1, np.int32)])[order]
    for ours, theirs in zip(agree(name, padded[order], ids), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@BY_NAME
@given(seed=st.integers(0, 2**31))
def test_classes_have_no_order_but_in_ties(name, seed):
    answers, clients = answers_of(kind_of(name), seed=seed)
    permutation = np.random.default_rng(seed).permutation(C).astype(np.int32)
    if kind_of(name) == "labels":
        permuted = np.where(answers >= 0, permutation[answers], -1).astype(np.int32)
    else:
        permuted = answers[..., np.argsort(permutation)]
    label, weight, soft = map(np.asarray, agree(name, answers, clients))
    other_label, other_weight, other_soft = map(np.asarray, agree(name, permuted, clients))
    np.testing.assert_allclose(other_soft[:, permutation], soft, rtol=1e-3, atol=1e-4)
    ordered = np.sort(soft, axis=1)
    is_clear = ordered[:, -1] - ordered[:, -2] > 1e-3
    expected = np.where(label >= 0, permutation[label], -1)
    np.testing.assert_array_equal(other_label[is_clear], expected[is_clear])
    np.testing.assert_array_equal(other_weight, weight)


def test_ties_go_to_the_smallest_class():
    votes, clients = np.int32([[2], [0], [2], [0]]), np.arange(4, dtype=np.int32)
    assert agree("majority", votes, clients).label == 0
    assert agree("majority", votes[:3], clients[:3]).label == 2


@pytest.mark.parametrize("num_clients", range(2, 60, 3))
def test_a_share_that_is_the_threshold_is_enough(num_clients):
    """k of K votes at threshold k / K, whatever the rounding; k - 1 are too few."""
    for k in range(num_clients // 2 + 1, num_clients + 1):
        votes = np.full((num_clients, 2), 1, np.int32)
        votes[k:, 0] = 0
        votes[k - 1 :, 1] = 0
        tally = vote_histogram(votes, np.arange(num_clients, dtype=np.int32), 2)
        label = np.asarray(largest_share(tally, threshold=k / num_clients).label)
        assert label[0] == 1
        assert label[1] != 1


def test_of_one_hot_probabilities_the_mean_is_the_majority():
    votes, clients = answers_of("labels")
    one_hot = (votes[..., None] == np.arange(C)).astype(np.float32)
    expected = agree("majority", votes, clients)
    for ours, theirs in zip(agree("mean", one_hot, clients), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_estimates_below_zero_count_as_zero():
    tally = np.float32([[-3, 4, 1, 0], [-1, -2, -3, -4]])
    agreed = largest_share(tally)
    np.testing.assert_array_equal(agreed.label, [1, -1])
    np.testing.assert_allclose(agreed.soft, [[0, 0.8, 0.2, 0], [0, 0, 0, 0]])


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
