"""Randomized response: probabilities, unbiased estimates, budgets, and XCLP over it."""

import dataclasses
import itertools
import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from jaxfed import xclp
from jaxfed.errors import UsageError
from jaxfed.kernels import hamming
from jaxfed.privacy import randomized_response as rr

SIGNIFICANCE = 1e-6


def bits_of(codes):
    return np.unpackbits(np.asarray(codes).view(np.uint8), axis=1, bitorder="little")


@given(st.floats(1e-3, 20))
def test_a_bit_is_as_private_as_stated(epsilon):
    """The likelihood ratio of the two answers is e^eps."""
    q = rr.flip_probability(epsilon)
    assert 0 < q < 0.5
    assert math.log((1 - q) / q) == pytest.approx(epsilon)


@given(st.floats(1e-3, 20), st.integers(2, 100))
def test_a_label_is_as_private_as_stated(epsilon, num_classes):
    keep, other = rr.answer_probabilities(epsilon, num_classes)
    assert keep + (num_classes - 1) * other == pytest.approx(1)
    assert math.log(keep / other) == pytest.approx(epsilon)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_bits_flip_with_the_stated_probability(epsilon):
    """Every position alike, independently of the bit, of its neighbors and of other rows."""
    codes = np.random.default_rng(0).integers(0, 2**32, (600, 4), dtype=np.uint32)
    flipped = bits_of(rr.randomize_bits(codes, jax.random.key(0), epsilon)) ^ bits_of(codes)
    q = rr.flip_probability(epsilon)
    for chosen in (flipped, flipped[bits_of(codes) == 0], flipped[bits_of(codes) == 1]):
        assert stats.binomtest(int(chosen.sum()), chosen.size, q).pvalue > SIGNIFICANCE
    columns = flipped.sum(axis=0)
    chi2 = np.sum((columns - 600 * q) ** 2) / (600 * q * (1 - q))
    assert SIGNIFICANCE < stats.chi2.cdf(chi2, 128) < 1 - SIGNIFICANCE
    for a, b in ((flipped[:, 1:], flipped[:, :-1]), (flipped[1:], flipped[:-1])):
        both = int(np.sum(a & b))
        assert stats.binomtest(both, a.size, q * q).pvalue > SIGNIFICANCE


def test_noise_depends_on_the_key_and_not_on_the_neighbors():
    codes = np.zeros((300, 2), np.uint32)
    noisy = np.asarray(rr.randomize_bits(codes, jax.random.key(1), 1.0))
    np.testing.assert_array_equal(noisy[:7], rr.randomize_bits(codes[:7], jax.random.key(1), 1.0))
    assert np.any(noisy != np.asarray(rr.randomize_bits(codes, jax.random.key(2), 1.0)))
    assert rr.randomize_bits(codes[:0], jax.random.key(1), 1.0).shape == (0, 2)


@pytest.mark.parametrize("epsilon", [0.5, 1.5, 3.0])
def test_distances_are_unbiased_with_the_stated_deviation(epsilon):
    """Over many draws, at h = 0, h = L and between."""
    num_bits, draws = 512, 400
    base = np.zeros((1, num_bits // 32), np.uint32)
    for distance, other in ((0, base), (512, ~base), (128, base.copy())):
        if distance == 128:
            other[0, :4] = 2**32 - 1
        seen = hamming.distances(
            rr.randomize_bits(np.repeat(base, draws, 0), jax.random.key(3), epsilon),
            rr.randomize_bits(np.repeat(other, draws, 0), jax.random.key(4), epsilon),
        ).diagonal()
        estimate = np.asarray(rr.unbiased_distances(seen, num_bits, epsilon), np.float64)
        deviation = rr.distance_deviation(num_bits, epsilon)
        z = (estimate.mean() - distance) / (deviation / math.sqrt(draws))
        assert 2 * stats.norm.sf(abs(z)) > SIGNIFICANCE
        chi2 = np.sum((estimate - distance) ** 2) / deviation**2
        assert SIGNIFICANCE < stats.chi2.cdf(chi2, draws) < 1 - SIGNIFICANCE


def test_expected_distance_by_enumeration():
    """E[h'] over all flips of two 2-bit codes, summed out, gives back h."""
    epsilon = 0.7
    q = rr.flip_probability(epsilon)
    for a, b in itertools.product(range(4), repeat=2):
        expected = sum(
            q ** (x.bit_count() + y.bit_count())
            * (1 - q) ** (4 - x.bit_count() - y.bit_count())
            * float(rr.unbiased_distances(np.int32(((a ^ x) ^ (b ^ y)).bit_count()), 2, epsilon))
            for x, y in itertools.product(range(4), repeat=2)
        )
        assert expected == pytest.approx((a ^ b).bit_count(), abs=1e-5)


@pytest.mark.parametrize(("epsilon", "num_classes"), [(0.5, 2), (1.0, 10), (3.0, 5)])
def test_labels_answer_with_the_stated_probabilities(epsilon, num_classes):
    labels = np.repeat(np.arange(-1, num_classes), 3000)
    answers = rr.randomize_labels(labels, jax.random.key(0), num_classes, epsilon)
    assert np.all(answers[labels < 0] == -1)
    keep, other = rr.answer_probabilities(epsilon, num_classes)
    for label in range(num_classes):
        counts = np.bincount(answers[labels == label], minlength=num_classes)
        expected = np.full(num_classes, 3000 * other)
        expected[label] = 3000 * keep
        assert stats.chisquare(counts, expected).pvalue > SIGNIFICANCE


@pytest.mark.parametrize("num_classes", [2, 10])
def test_expected_one_hot_is_the_true_one(num_classes):
    """The expectation over all answers, summed out: the identity matrix, and zero without a label."""
    epsilon = 1.3
    keep, other = rr.answer_probabilities(epsilon, num_classes)
    answers = rr.unbiased_one_hot(np.arange(num_classes), num_classes, epsilon)
    probabilities = np.full((num_classes, num_classes), other)
    np.fill_diagonal(probabilities, keep)
    np.testing.assert_allclose(probabilities @ answers, np.eye(num_classes), atol=1e-5)
    np.testing.assert_allclose(answers.sum(axis=1), 1, atol=1e-5)
    assert not rr.unbiased_one_hot(np.array([-1, -1]), num_classes, epsilon).any()


def test_budget_says_what_a_record_costs():
    budget = rr.bit_budget(1.0, 4096, 1e-6)
    assert budget.bit == 1.0
    assert budget.record_pure == 4096.0
    assert budget.record_zcdp == 2048.0
    expected = 2048 + 2 * math.sqrt(2048 * math.log(1e6))
    assert budget.record_approximate == pytest.approx(expected)
    large = rr.bit_budget(4.0, 4096, 1e-6)
    assert large.record_approximate == large.record_pure  # the approximate form is the weaker one


@pytest.mark.parametrize(
    ("function", "arguments", "named"),
    [
        (rr.flip_probability, (0.0,), "epsilon=0.0"),
        (rr.flip_probability, (math.nan,), "epsilon=nan"),
        (rr.flip_probability, (math.inf,), "epsilon=inf"),
        (rr.bit_budget, (1.0, 64, 0.0), "delta=0.0"),
        (rr.answer_probabilities, (1.0, 1), "num_classes=1"),
        (rr.answer_probabilities, (-1.0, 2), "epsilon=-1.0"),
    ],
)
def test_refuses(function, arguments, named):
    with pytest.raises(UsageError, match=named):
        function(*arguments)


def blobs(sizes=(60, 50, 40), num_classes=3, labeled=0.4, seed=0):
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((num_classes, 16)) * 2
    truth = [rng.integers(num_classes, size=size) for size in sizes]
    vectors = [np.float32(centers[y] + rng.standard_normal((len(y), 16))) for y in truth]
    labels = [np.where(rng.random(len(y)) < labeled, y, -1) for y in truth]
    return vectors, labels, truth


def accuracy(truth, **parameters):
    vectors, labels, _ = blobs()
    predictions = xclp.propagate_labels(
        vectors, labels, num_classes=3, num_bits=512, alpha=0.9, **parameters
    )
    return np.mean(np.concatenate([p.labels for p in predictions]) == np.concatenate(truth))


def test_xclp_bears_noise_and_loses_with_it():
    truth = blobs()[2]
    clean = accuracy(truth)
    assert clean > 0.9
    for name in ("bit_epsilon", "label_epsilon"):
        assert accuracy(truth, **{name: 4.0}) > clean - 0.1
        assert accuracy(truth, **{name: 0.05}) < clean - 0.1


def test_xclp_scores_are_unbiased_in_the_labels(monkeypatch):
    """Mean of Z over draws of the labels' noise: Z of the true labels, within 6 standard errors."""
    vectors, labels, _ = blobs(sizes=(12, 9), labeled=0.7)
    p = xclp.Parameters(num_classes=3, num_bits=64, num_neighbors=3, alpha=0.8)

    def scores(parameters):
        result = xclp.cross_client_label_propagation(vectors, labels, parameters)
        return np.concatenate([prediction.scores for prediction in result.predictions])

    truth = scores(p)
    randomize = rr.randomize_labels
    draws = []
    for draw in range(60):
        monkeypatch.setattr(
            rr,
            "randomize_labels",
            lambda y, key, c, eps, draw=draw: randomize(y, jax.random.fold_in(key, draw), c, eps),
        )
        draws.append(scores(dataclasses.replace(p, label_epsilon=1.5)))
    error = np.mean(draws, axis=0) - truth
    deviation = np.std(draws, axis=0) / math.sqrt(len(draws))
    assert np.all(np.abs(error) <= 6 * deviation + 1e-4)
    # Without the correction the same draws are far off.
    biased = np.mean(
        [
            xclp.one_hot_labels(randomize(labels[0], jax.random.key(d), 3, 1.5), 3)
            for d in range(60)
        ],
        axis=0,
    )
    assert np.max(np.abs(biased - xclp.one_hot_labels(labels[0], 3))) > 0.2


@pytest.mark.parametrize("name", ["bit_epsilon", "label_epsilon"])
@pytest.mark.parametrize("value", [-0.5, math.inf, math.nan])
def test_xclp_refuses(name, value):
    with pytest.raises(UsageError, match=name):
        xclp.Parameters(num_classes=2, **{name: value})
