"""Consensus against NumPy, one example after another; sums under masks; Proposition 1 against its series."""

import math
from functools import partial

import message_sizes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from jaxfed.federation.communication import Communication
from jaxfed.secure import vote_sums
from jaxfed.training.consensus import (
    change_probability,
    in_fresh_session,
    largest_share,
    rounds_needed,
    summed_answers,
    summed_probabilities,
    vote_histogram,
)

C, U = 4, 50
TALLIES = {  # kind of answers, tally, threshold
    "majority": ("labels", partial(vote_histogram, num_classes=C), 0.0),
    "qualified_majority": ("labels", partial(vote_histogram, num_classes=C), 0.6),
    "mean": ("probabilities", summed_probabilities, 0.0),
}
BY_TALLY = pytest.mark.parametrize("name", TALLIES)


def agree(name, answers, clients):
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
    if TALLIES[name][0] == "labels":
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
    answers, clients = answers_of(TALLIES[name][0])
    answers[:, 3] = -1 if TALLIES[name][0] == "labels" else 0
    label, weight, soft = agree(name, answers, clients)
    for u in range(answers.shape[1]):
        expected = of_one_example(name, answers[:, u])
        assert (label[u], weight[u]) == expected[:2]
        np.testing.assert_allclose(soft[u], expected[2], rtol=1e-6, atol=1e-7)
    assert label.dtype == np.int32
    assert label[3] == -1


@BY_TALLY
@given(seed=st.integers(0, 2**31))
def test_order_and_padding_of_clients_are_inert(name, seed):
    """Padding rows may hold anything."""
    answers, clients = answers_of(TALLIES[name][0], seed=seed)
    expected = agree(name, answers, clients)
    rng = np.random.default_rng(seed)
    padded = np.concatenate([answers, answers[rng.integers(5, size=3)]])
    order = rng.permutation(8)
    ids = np.concatenate([clients, np.full(3, -1, np.int32)])[order]
    for ours, theirs in zip(agree(name, padded[order], ids), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


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


def test_estimates_below_zero_count_as_zero():
    tally = np.float32([[-3, 4, 1, 0], [-1, -2, -3, -4]])
    agreed = largest_share(tally)
    np.testing.assert_array_equal(agreed.label, [1, -1])
    np.testing.assert_allclose(agreed.soft, [[0, 0.8, 0.2, 0], [0, 0, 0, 0]])


ANSWERS = np.random.default_rng(0).dirichlet(np.ones(C), (4, U)).astype(np.float32)
MARKS = np.random.default_rng(0).integers(0, 2, (3, U, C)).astype(bool)


@pytest.mark.parametrize("sums", ["masked", "masked_resilient"])
def test_masked_sums_are_those_in_the_clear(sums):
    ids = np.int32([5, -1, 0, 7])
    plain, masked = Communication(), Communication()
    ours = summed_answers(ANSWERS, ids, sums, masked)
    theirs = summed_answers(ANSWERS, ids, "plaintext", plain)
    assert ours.dtype == theirs.dtype == np.float32
    np.testing.assert_allclose(theirs, ANSWERS[[0, 2, 3]].sum(axis=0), rtol=1e-6)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
    assert plain.upload == {"votes": 3 * 4 * U * C}
    assert "votes" not in masked.upload
    assert ("secrets" in masked.upload) == (sums == "masked_resilient")


@pytest.mark.parametrize("sums", ["masked", "masked_resilient"])
@pytest.mark.parametrize("ids", [[-1, -1, -1, -1], [-1, 3, -1, -1]])
def test_one_client_alone_has_no_sum(ids, sums):
    communication = Communication()
    total = summed_answers(ANSWERS, np.int32(ids), sums, communication)
    assert total.shape == (U, C)
    assert not total.any()
    assert not communication.upload


def test_marks_need_not_be_one_hot():
    """What a mechanism releases has any number of ones in a row."""
    communication = Communication()
    total = in_fresh_session(vote_sums.vote_histogram, list(MARKS), communication)
    np.testing.assert_array_equal(total, np.sum(MARKS, axis=0))
    assert communication.upload["upload"] == message_sizes.votes(3, U, C)["upload"]


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
    # Where zeta is below what a float holds: an upper bound, and nearly the sum's first term.
    first_term = 100 * math.log(4 * 300 / 10_001)
    ours = math.log(change_probability(200, 1, 10_000, 300))
    assert first_term < ours < first_term + math.log(1 + 10_001 / 99) + 1e-9


@pytest.mark.parametrize(("m", "u", "c", "delta"), [(5, 10_000, 1, 0.05), (50, 100, 10, 1e-3)])
def test_the_smallest_number_of_rounds(m, u, c, delta):
    rounds = rounds_needed(m, u, c, delta)
    assert change_probability(m, u, rounds, c) <= delta
    assert rounds + 1 == 2 * c or change_probability(m, u, rounds - 1, c) > delta
