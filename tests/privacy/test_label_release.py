"""Labels by randomized response: the promise of r rows by enumeration, and estimates without bias."""

import itertools
import math

import jax
import numpy as np
import pytest
from scipy import stats
from threat_model import table

from jaxfed.privacy import composition
from jaxfed.privacy import randomized_response as rr
from jaxfed.privacy import xor_mechanism as sensitivity
from jaxfed.privacy import xor_mechanism as xor


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("epsilon", [0.1, 3.0])
def test_the_promise_is_attained_and_nowhere_more(epsilon, rows, num_classes):
    """Over all pairs of 3 labels that differ in up to r, and all answers."""
    keep, _ = rr.answer_probabilities(epsilon / rows, num_classes)
    other = (1 - keep) / (num_classes - 1)
    everything = np.array(list(itertools.product(range(num_classes), repeat=3)))
    likelihood = np.prod(
        np.where(everything[:, None] == everything[None], keep, other), axis=-1
    )  # [labels, answers]
    differ = np.sum(everything[:, None] != everything[None], axis=-1)
    ratio = np.log(likelihood[:, None] / likelihood[None]).max(axis=-1)
    assert ratio[differ <= rows].max() == pytest.approx(epsilon)


def test_releases_add_up():
    """By enumeration of two answers: the ratio of both is the product."""
    keep, _ = rr.answer_probabilities(1.0, 2)
    ratio = (keep / (1 - keep)) ** 2
    assert math.log(ratio) == pytest.approx(composition.basic(1.0, 2))
    assert composition.basic(1.0, 0) == composition.approximate(1.0, 0, 1e-5) == 0


@pytest.mark.parametrize(("epsilon", "releases"), [(0.1, 200), (0.05, 1000), (2.0, 3)])
def test_the_approximate_total_holds(epsilon, releases):
    """Against the worst pair of pure mechanisms, randomized response, whose delta is a sum of binomials."""
    delta = 1e-5
    total = composition.approximate(epsilon, releases, delta)
    assert total <= composition.basic(epsilon, releases)
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))
    k = np.arange(releases + 1)
    one, other = stats.binom.pmf(k, releases, keep), stats.binom.pmf(k, releases, 1 - keep)
    assert np.sum(np.maximum(one - math.exp(total) * other, 0)) <= delta


def consensus_percent(epsilon, rows, num_examples=4000):
    """How often consensus has the class that five clients all say, by the three readings."""
    truth = np.random.default_rng(0).integers(10, size=num_examples)
    sources = [rr.from_key(jax.random.key(k)) for k in range(5)]
    marks = xor.one_hot(truth, 10)
    bits = [xor.release(marks, epsilon, 2 * rows, draw) for draw in sources]
    first = [xor.one_hot(each.argmax(axis=1), 10) for each in bits]
    answers = [rr.randomize_labels(truth, draw, 10, epsilon / rows) for draw in sources]
    answered = [xor.one_hot(each, 10) for each in answers]
    return [
        f"{100 * np.mean(np.sum(votes, axis=0).argmax(axis=1) == truth):.1f}"
        for votes in (first, bits, answered)
    ]


@pytest.mark.parametrize("row", table("noise"), ids=lambda row: row[1])
def test_figures_of_the_threat_model(row):
    _, epsilon, *percent = row
    assert float(row[0]) == pytest.approx(float(epsilon) / 1500, rel=0.01)
    assert percent == consensus_percent(float(epsilon), 1500)


@pytest.mark.parametrize("num_public", [1, 10, 170, 10_000, 50_000])
@pytest.mark.parametrize("delta", [0.5, 0.05, 1e-3, 1e-6])
def test_the_bound_is_a_quantile_of_the_binomial(num_public, delta):
    """Never below it, and of many examples hardly above."""
    for rate in (0.0, 1e-5, 1e-3, 0.03, 0.3, 0.7, 1.0):
        bound = sensitivity.stability_bound(num_public, rate, delta)
        quantile = stats.binom.isf(delta, num_public, rate)
        assert quantile <= bound <= num_public
        slack = stats.norm.isf(delta) ** 2 + 2
        assert bound <= quantile + slack
