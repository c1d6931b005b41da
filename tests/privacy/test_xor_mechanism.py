"""The XOR mechanism: what it promises by enumeration of everything that it may release, and what is left."""

import itertools
import math

import jax
import numpy as np
import pytest
from scipy import stats

from jaxfed.privacy import randomized_response as rr
from jaxfed.privacy import xor_mechanism as xor

SIGNIFICANCE = 1e-6


def likelihood(released, marks, p):
    flips = np.sum(np.asarray(released) != np.asarray(marks))
    return p**flips * (1 - p) ** (len(marks) - flips)


@pytest.mark.parametrize("num_classes", [2, 4])
@pytest.mark.parametrize("sensitivity", [1, 2, 4])
@pytest.mark.parametrize("epsilon", [0.1, 2.0])
def test_the_promise_is_attained_and_nowhere_more(epsilon, sensitivity, num_classes):
    """Over all pairs of 4 bits that differ in up to s and all that may be released of them."""
    exact = xor.flip_probability(epsilon, sensitivity, num_classes)
    paper = xor.flip_probability(epsilon, sensitivity, num_classes, "paper")
    everything = list(itertools.product((0, 1), repeat=4))
    worst = dict.fromkeys((exact, paper), 0.0)
    for one, other in itertools.product(everything, repeat=2):
        if np.sum(np.array(one) != other) > sensitivity:
            continue
        for p in worst:
            ratios = [likelihood(m, one, p) / likelihood(m, other, p) for m in everything]
            worst[p] = max(worst[p], math.log(max(ratios)))
    assert worst[exact] == pytest.approx(epsilon)
    assert worst[paper] == pytest.approx(epsilon / math.sqrt(num_classes))


@pytest.mark.parametrize("epsilon", [2.0, 40.0])
def test_bits_flip_with_the_stated_probability(epsilon):
    """Ones and zeros alike, every column, independently of neighbors."""
    marks = xor.one_hot(np.random.default_rng(0).integers(5, size=20_000), 5)
    flipped = xor.release(marks, epsilon, 20, rr.from_key(jax.random.key(0))) ^ marks
    p = xor.flip_probability(epsilon, 20, 5)
    for chosen in (flipped, flipped[marks], flipped[~marks], *flipped.T):
        assert stats.binomtest(int(chosen.sum()), chosen.size, p).pvalue > SIGNIFICANCE
    for a, b in ((flipped[:, 1:], flipped[:, :-1]), (flipped[1:], flipped[:-1])):
        assert stats.binomtest(int(np.sum(a & b)), a.size, p * p).pvalue > SIGNIFICANCE


def test_noise_is_the_systems_or_a_keys(monkeypatch):
    marks = np.zeros((300, 7), bool)
    systems = [xor.release(marks, 1.0, 10) for _ in range(2)]
    assert (systems[0] != systems[1]).any()
    key = rr.from_key(jax.random.key(3))
    ours = xor.release(marks, 1.0, 10, key)
    monkeypatch.setattr(rr, "_MARKS", 70)  # rows have their words, in whatever blocks
    np.testing.assert_array_equal(ours, xor.release(marks, 1.0, 10, key))
    np.testing.assert_array_equal(ours[:11], xor.release(marks[:11], 1.0, 10, key))
    assert not np.array_equal(ours, xor.release(marks, 1.0, 10, rr.from_key(jax.random.key(4))))
    assert len(np.unique(ours, axis=0)) > 100
