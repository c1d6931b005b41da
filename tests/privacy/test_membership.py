"""Attacks against slow loops and each other, on models whose members and examples' ease are known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import binomtest
from sklearn import metrics

from jaxfed.privacy import membership
from jaxfed.privacy.membership import (
    Evidence,
    area_under_curve,
    difficulty_scores,
    exact_interval,
    reference_scores,
    tpr_at_fpr,
)


def models(num_references=8, num_examples=300, num_population=200, seed=0, effect=1.5):
    """A target and references: log-odds are an example's ease, more if a model was trained on it, and noise.

    Returns (phi [R + 1, n], is_in [R + 1, n], phi of the population [R + 1, m]), the target first.
    """
    rng = np.random.default_rng(seed)
    is_in = rng.random((num_references + 1, num_examples)) < 0.5
    is_in[2::2] = ~is_in[1:-1:2]  # references of both kinds for everyone
    ease, of_population = 2 * rng.normal(size=num_examples), 2 * rng.normal(size=num_population)
    phi = ease + effect * is_in + 0.7 * rng.normal(size=is_in.shape)
    others = of_population + 0.7 * rng.normal(size=(num_references + 1, num_population))
    return phi, is_in, others


def probability(phi):
    return 1 / (1 + np.exp(-phi))


def auc(scores, is_in):
    return area_under_curve(scores, is_in).auc


def test_difficulty_is_a_mean_over_references_without_the_example():
    rng = np.random.default_rng(0)
    loss, others, is_in = rng.random((2, 6)), rng.random((4, 6)), rng.random((4, 6)) < 0.5
    is_in[0], is_in[1] = True, False
    scores = difficulty_scores(loss, others, is_in)
    for i in range(6):
        expected = np.mean([others[r, i] for r in range(4) if not is_in[r, i]])
        np.testing.assert_allclose(scores[:, i], expected - loss[:, i])
    # Of right and wrong alone a right answer counts by how rare it is.
    wrong = np.asarray([[1, 0], [1, 0], [1, 1]])
    nobody = np.zeros((3, 2), bool)
    assert difficulty_scores(np.zeros(2), wrong, nobody).tolist() == pytest.approx([1, 1 / 3])


def test_population_scores_are_shares():
    rng = np.random.default_rng(0)
    loss, others = (np.round(rng.gamma(1, size=number), 1) for number in (60, 25))
    share = np.mean((others > loss[:, None]) + (others == loss[:, None]) / 2, axis=-1)
    np.testing.assert_allclose(membership.population_scores(loss, others), share)


def test_reference_scores_example_after_example():
    phi, is_in, _ = models(num_references=6, num_examples=40)
    loss = np.round(np.logaddexp(0, -phi), 1)
    for own in loss[:2]:
        scores = reference_scores(own, loss[1:], is_in[1:])
        for x in range(40):
            others = loss[1:, x][~is_in[1:, x]]
            share = np.mean((others > own[x]) + (others == own[x]) / 2)
            assert scores[x] == pytest.approx(share)


def test_lira_example_after_example():
    phi, is_in, _ = models(num_references=10, num_examples=30)
    references, members = phi[1:], is_in[1:]
    online = membership.lira_online(phi[:2], references, members)
    offline = membership.lira_offline(phi[:2], references, members)
    means, squares, freedom = {}, {}, {}
    for kind, used in (("in", members), ("out", ~members)):
        for x in range(30):
            values = references[:, x][used[:, x]]
            means[kind, x] = values.mean()
            squares[kind, x] = np.sum((values - values.mean()) ** 2)
            freedom[kind, x] = len(values) - 1
    for x in range(30):
        sd = {}
        for kind in ("in", "out"):
            chosen = [(kind, y) for y in range(30)]
            sd[kind] = np.sqrt(sum(squares[c] for c in chosen) / sum(freedom[c] for c in chosen))
        for s in range(2):
            with_it = stats.norm(means["in", x], sd["in"])
            without = stats.norm(means["out", x], sd["out"])
            ratio = with_it.logpdf(phi[s, x]) - without.logpdf(phi[s, x])
            assert online[s, x] == pytest.approx(ratio, rel=1e-9)
            assert stats.norm.logcdf(offline[s, x]) == pytest.approx(
                without.logcdf(phi[s, x]), rel=1e-9
            )


def test_lira_of_references_that_agree_is_finite():
    """Models that are equal have no deviation to divide by."""
    phi, references = np.array([0.0, 1.0, 2.0]), np.ones((4, 3))
    members = np.arange(4)[:, None] < [2, 2, 2]
    offline = membership.lira_offline(phi, references, np.zeros((4, 3), bool))
    assert (np.diff(offline) > 0).all()
    assert offline[1] == 0
    for scores in (offline, membership.lira_online(phi, references, members)):
        assert np.isfinite(scores).all()


def test_rmia_example_after_example():
    phi, is_in, others = models(num_references=6, num_examples=25, num_population=30)
    p, q = probability(phi), probability(others)
    target, of_population = (Evidence(each[0], each[1:]) for each in (p, q))
    for a in (0.3, 1.0, 0.0):
        for s in range(2):
            scores = membership.rmia_offline(
                target._replace(target=p[s]), is_in[1:], of_population._replace(target=q[s]), a
            )
            ratio_z = q[s] / (((1 + a) * q[1:].mean(axis=0) + 1 - a) / 2)
            for x in range(25):
                out = p[1:, x][~is_in[1:, x]].mean()
                ratio = p[s, x] / (((1 + a) * out + 1 - a) / 2)
                assert scores[x] == pytest.approx(np.mean(ratio / ratio_z >= 1))
    scores = membership.rmia_online(target, is_in[1:], of_population)
    for x in range(25):
        halves = [p[1:, x][is_in[1:, x] == side].mean() for side in (True, False)]
        ratio = p[0, x] / np.mean(halves)
        assert scores[x] == pytest.approx(np.mean(ratio / (q[0] / q[1:].mean(axis=0)) >= 1))


def test_a_is_tuned_on_the_references():
    """By references alone, nearly as well as who knows the target's members."""
    phi, is_in, others = models(num_references=6)
    p, q = probability(phi), probability(others)
    tuned = membership.tuned_a(p[1:], is_in[1:], q[1:])
    target, of_population = (Evidence(each[0], each[1:]) for each in (p, q))
    areas = {
        a: auc(membership.rmia_offline(target, is_in[1:], of_population, a), is_in[0])
        for a in membership.GRID
    }
    assert areas[tuned] >= max(areas.values()) - 0.03


def test_log_odds_of_logits():
    rng = np.random.default_rng(0)
    logits, label = rng.normal(size=(2, 50, 4)), rng.integers(4, size=50)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    p = probabilities[:, np.arange(50), label]
    np.testing.assert_allclose(membership.log_odds_of_logits(logits, label), np.log(p / (1 - p)))
    sure = np.zeros((2, 3))
    sure[:, 0] = 60, 90  # both have probability 1 in a float
    first, second = membership.log_odds_of_logits(sure, np.zeros(2, int))
    assert second - first == pytest.approx(30)


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
