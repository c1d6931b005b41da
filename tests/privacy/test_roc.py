"""ROC against scikit-learn and brute force, with ties; DeLong's interval against what it promises."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn import metrics

from jaxfed.privacy.membership import area_under_curve, exact_interval, tpr_at_fpr


def drawn(seed, num_members=30, num_others=50, values=None, shift=0.7):
    """Scores of members, larger by `shift`, and of others; rounded to few values where there are ties."""
    rng = np.random.default_rng(seed)
    member = rng.permutation(np.arange(num_members + num_others) < num_members)
    score = rng.normal(size=member.size) + shift * member
    return (score if values is None else np.round(score * values)), member


TIES = pytest.mark.parametrize("values", [None, 3, 1], ids=["distinct", "some ties", "ties"])


@TIES
@given(seed=st.integers(0, 2**31))
def test_the_area_is_scikit_learns(values, seed):
    score, member = drawn(seed, values=values)
    area = area_under_curve(score, member)
    assert area.auc == pytest.approx(metrics.roc_auc_score(member, score), abs=1e-12)


@TIES
@given(seed=st.integers(0, 2**31), rate=st.floats(0, 1))
def test_rates_are_of_thresholds_that_there_are(values, seed, rate):
    score, member = drawn(seed, values=values)
    best = 0.0
    for threshold in [np.inf, *score]:
        taken = score >= threshold
        if np.mean(taken[~member]) <= rate:
            best = max(best, float(np.mean(taken[member])))
    assert tpr_at_fpr(score, member, rate) == best


@TIES
@pytest.mark.parametrize("seed", range(5))
def test_deviation_is_that_of_placements(values, seed):
    """The definition, pair by pair."""
    score, member = drawn(seed, 12, 9, values)
    s, t = score[member], score[~member]
    wins = (s[:, None] > t) + (s[:, None] == t) / 2
    variance = wins.mean(axis=1).var(ddof=1) / 12 + wins.mean(axis=0).var(ddof=1) / 9
    area = area_under_curve(score, member)
    assert area.auc == pytest.approx(wins.mean())
    assert area.deviation == pytest.approx(np.sqrt(variance))
    assert area.high == pytest.approx(min(1, wins.mean() + 1.9599640 * area.deviation))
    assert area.low == pytest.approx(max(0, wins.mean() - 1.9599640 * area.deviation))


def test_a_score_that_is_the_same_for_all_tells_nothing():
    member = np.arange(20) < 7
    area = area_under_curve(np.zeros(20), member)
    assert area == (0.5, 0.5, 0.5, 0.0)
    assert tpr_at_fpr(np.zeros(20), member, 0.99) == 0
    assert area_under_curve(member.astype(float), member).auc == 1
    assert area_under_curve(np.where(member, -np.inf, np.inf), member).auc == 0


@pytest.mark.parametrize(("hits", "trials"), [(0, 125), (3, 125), (125, 125), (1, 1)])
def test_the_interval_of_a_rate_is_clopper_and_pearsons(hits, trials):
    expected = binomtest(hits, trials).proportion_ci(method="exact")
    assert exact_interval(hits, trials) == pytest.approx((expected.low, expected.high))
