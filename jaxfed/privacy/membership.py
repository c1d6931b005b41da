"""Membership inference: was this example in a model's training set?

An attack maps arrays of n examples (losses, probabilities) to one score per example, float64 [n]; larger
scores indicate members. Attacked models, and shadow models, the references here, are trained elsewhere.

One model
---------
Gap (Yeom et al., CSF 2018; the baseline of Choquette-Choo et al., ICML 2021) needs labels alone:

    score(x) = 1[f(x) = y],     AUC = 1/2 + (accuracy on members - accuracy on others) / 2      exactly

Loss threshold (Yeom, Giacomelli, Fredrikson, Jha, CSF 2018): members are fitted better.

    score(x) = -loss(f(x), y),     member where loss <= threshold

An example that is hard for every model looks like a non-member; attacks by references correct this.

Population (attack P of Ye, Maddi, Murakonda, Bindschaedler, Shokri, CCS 2022): the same scores, as ranks in a
population Z of non-members, so that a threshold has a known false positive rate.

    score(x) = share of Z with loss(z) > loss(x),    ties half
    member where score >= 1 - alpha: FPR alpha

Gradient norm, with white-box access: training on x makes the gradient at x small.

    score(x) = -|grad_w loss(f_w(x), y)|

(After Nasr, Shokri, Houmansadr, S&P 2019, whose attack learns from gradients of all layers; this one uses
their norm.)

References
----------
Besides the target model there are R reference models, with values [R, n] on the examples. Each was trained on
some of the examples (`is_in`, bool [R, n]) and not on others. An example that is easy for all models is no
evidence.

    difficulty    score(x) = mean over references not trained on x of loss_ref(x)  -  loss(x)
    reference     score(x) = share of the references not trained on x whose loss on x is larger,   ties half

Difficulty calibration is by Watson, Guo, Cormode, Sablayrolles, ICLR 2022; reference is attack R of Ye et
al., CCS 2022. The loss is arbitrary; with 1[f(x) != y], for label-only models, a correct answer counts more
the rarer it is.

LiRA, the likelihood ratio attack (Carlini, Chien, Nasr, Song, Terzis, Tramer, S&P 2022), has log-odds of an
example's class,

    phi = log p / (1 - p) = z_y - log sum_{c != y} exp z_c          p = p_y(x), logits z

which are nearly normal over models, unlike p, and keep their precision where p rounds to 1. They are modeled
as normal over models, separately for training with and without x:

    online     score(x) = log N(phi; mu_in, sd_in) - log N(phi; mu_out, sd_out)
    offline    score(x) = (phi - mu_out) / sd_out

"online" is the likelihood ratio (the paper's Lambda). "offline" is a one-sided test that needs no model
trained on x, by the number of deviations in place of P(Z < phi), Z ~ N(mu_out, sd_out): the order is the
same, without saturation at 1. Means are per example, over the reference models of each kind. The deviation is
one for all examples, of values about their example's mean: better with few references (below 64 according to
the paper) than a deviation per example. (The authors' code takes the deviation of all values about a single
mean, so the spread between examples widens both normals.)

RMIA, the robust membership inference attack (Zarifzadeh, Liu, Shokri, ICML 2024):

    ratio(x) = p(x) / P(x),        score(x) = share of a population Z with ratio(x) / ratio(z) >= 1
    online     P(x) = (mean over references with x  +  mean over references without) / 2
    offline    P(x) = ( (1 + a) mean over references without x  +  (1 - a) ) / 2

p is the target's probability of the example's class, P its mean over models with and without x. Offline, the
first mean is replaced by the line a P_out + (1 - a): references trained on x have a larger probability than
those without, at most 1. a in [0, 1] is tuned with reference models as targets, whose members are known
(`tuned_a`); the default of the authors' code is 0.3. Their code counts > 1 where the paper has >=. The two
differ for ties, which are frequent with trees.

Evaluation
----------
With m members and n others, scores s and t,

    AUC = P(s > t) + P(s = t) / 2 = 1 / (m n) sum_ij ( 1[s_i > t_j] + 1[s_i = t_j] / 2 )

the probability that a member has the larger score; FedCT's "vulnerability" is an AUC. 0.5 is chance. An
attack that is certain about few examples and guesses the rest has an AUC near 0.5, so the true positive rate
at a small false positive rate is reported too (Carlini et al., S&P 2022).

The interval is DeLong's (Biometrics 44, 1988): with the placements

    v_i = 1/n sum_j (1[s_i > t_j] + 1[s_i = t_j] / 2),    w_j = 1/m sum_i (...),    AUC = mean v = mean w
    Var(AUC) = var(v) / m + var(w) / n,      AUC +- z sd, inside [0, 1]

It treats examples, not models, as independent: it covers other examples of the same model, not other
trainings. At an AUC of 0 or 1 it has no width.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp
from scipy.stats import beta, norm, rankdata

DEFAULT_A = 0.3
GRID = tuple(number / 10 for number in range(11))  # values of RMIA's a
REACH = float(norm.ppf(0.975))  # deviations of a normal on either side of an interval of 95 percent

_TINY = 1e-45
_ALL = np.asarray(True)  # references, of a population that none was trained on
_LEAST = 1e-12  # smallest deviation, for identical references


def gap_auc(accuracy_on_members: float, accuracy_on_others: float) -> float:
    """Return the AUC of the gap attack."""
    return 0.5 + (accuracy_on_members - accuracy_on_others) / 2


def population_scores(loss: np.ndarray, population_loss: np.ndarray) -> np.ndarray:
    """Shares of the population's losses [m] that are larger than each loss [n]."""
    ordered = np.sort(np.asarray(population_loss, np.float64))
    below = np.searchsorted(ordered, loss, side="left")
    not_above = np.searchsorted(ordered, loss, side="right")
    return 1 - (below + not_above) / 2 / len(ordered)


def log_odds_of_logits(logits: np.ndarray, label: np.ndarray) -> np.ndarray:
    """phi of logits [..., n, C] with labels int [n], float64 [..., n]."""
    z = np.asarray(logits, np.float64)
    is_own = np.arange(z.shape[-1]) == np.asarray(label)[:, None]
    index = np.broadcast_to(np.asarray(label)[:, None], (*z.shape[:-1], 1))
    of_label = np.take_along_axis(z, index, axis=-1)[..., 0]
    return of_label - logsumexp(np.where(is_own, -np.inf, z), axis=-1)


def difficulty_scores(
    loss: np.ndarray, reference_loss: np.ndarray, is_in: np.ndarray
) -> np.ndarray:
    """Mean loss of the references without the example minus the target's."""
    return _mean_over(reference_loss, ~is_in) - np.asarray(loss, np.float64)


def reference_scores(loss: np.ndarray, reference_loss: np.ndarray, is_in: np.ndarray) -> np.ndarray:
    """Share of references without the example that have a larger loss."""
    return _mean_over((reference_loss > loss) + (reference_loss == loss) / 2, ~is_in)


def lira_offline(phi: np.ndarray, reference_phi: np.ndarray, is_in: np.ndarray) -> np.ndarray:
    """Deviations of the target's log-odds above the mean of references not trained on the example."""
    mean, deviation = _normal(reference_phi, ~is_in)
    return (np.asarray(phi, np.float64) - mean) / deviation


def lira_online(phi: np.ndarray, reference_phi: np.ndarray, is_in: np.ndarray) -> np.ndarray:
    """Log-likelihood ratio of the target's log-odds by references of both kinds."""
    with_it, without = _normal(reference_phi, is_in), _normal(reference_phi, ~is_in)
    return norm.logpdf(phi, *with_it) - norm.logpdf(phi, *without)


def _normal(reference: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, float]:
    """Mean of each example, float64 [n], and the deviation of all."""
    values = np.asarray(reference, np.float64)
    mean, count = _mean_over(values, used), used.sum(axis=0)
    freedom = np.sum(count - 1)  # each example's mean takes one degree of freedom
    squares = np.sum(np.square(values - mean), axis=0, where=used)
    return mean, max(float(np.sqrt(squares.sum() / freedom)), _LEAST)


def _mean_over(reference: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Mean over the references in use, float64 [n] from [R, n] and bool [R, n]."""
    return np.mean(np.asarray(reference, np.float64), axis=0, where=used)


class Evidence(NamedTuple):
    """Probabilities of the true class of some examples: of the target [n], of references [R, n]."""

    target: np.ndarray
    reference: np.ndarray


def rmia_offline(
    examples: Evidence, is_in: np.ndarray, population: Evidence, a: float = DEFAULT_A
) -> np.ndarray:
    """RMIA's scores by references that were not trained on the example: is_in bool [R, n] says which were.

    The population are m others, which no model was trained on. Cost: (n + m) log m + R (n + m).
    """

    def marginal(of: Evidence, is_out: np.ndarray) -> np.ndarray:
        return ((1 + a) * _mean_over(of.reference, is_out) + (1 - a)) / 2

    return _shares_below(
        examples, marginal(examples, ~is_in), population, marginal(population, _ALL)
    )


def rmia_online(examples: Evidence, is_in: np.ndarray, population: Evidence) -> np.ndarray:
    """RMIA's scores by references of both kinds; arguments as `rmia_offline`."""
    with_it, without = (_mean_over(examples.reference, used) for used in (is_in, ~is_in))
    of_population = _mean_over(population.reference, _ALL)
    return _shares_below(examples, (with_it + without) / 2, population, of_population)


def _shares_below(
    examples: Evidence, marginal: np.ndarray, population: Evidence, of_population: np.ndarray
) -> np.ndarray:
    ratio, others = (
        np.asarray(evidence.target, np.float64) / np.maximum(below, _TINY)
        for evidence, below in ((examples, marginal), (population, of_population))
    )
    return np.searchsorted(np.sort(others), ratio, side="right") / len(others)


def tuned_a(reference: np.ndarray, is_in: np.ndarray, population: np.ndarray) -> float:
    """The a of `GRID` with the largest mean AUC when each reference in turn is attacked by the others.

    Probabilities are [R, n], R >= 3, and [R, m]; each reference was trained on some of the n examples and not
    on others. Ties go to the first. Cost: R times that of `rmia_offline` for each value.
    """

    def area_against(row: int, a: float) -> float:
        """AUC of the attack on one reference by the others, on examples that some of these never saw."""
        others = np.arange(len(reference)) != row
        kept = ~is_in[others].all(axis=0)
        examples = Evidence(reference[row, kept], reference[others][:, kept])
        outsiders = Evidence(population[row], population[others])
        scores = rmia_offline(examples, is_in[others][:, kept], outsiders, a)
        return area_under_curve(scores, is_in[row, kept]).auc

    areas = [[area_against(row, a) for row in range(len(reference))] for a in GRID]
    return GRID[int(np.argmax(np.round(np.mean(areas, axis=1), 12)))]


class Area(NamedTuple):
    """An area under the curve: `auc`, its interval of 95 percent, and DeLong's standard deviation."""

    auc: float
    low: float
    high: float
    deviation: float


def area_of(auc: float, deviation: float) -> Area:
    """Area with the interval of a normal, inside [0, 1]."""
    reach = REACH * deviation
    return Area(auc, max(0.0, auc - reach), min(1.0, auc + reach), deviation)


def area_under_curve(score: np.ndarray, is_member: np.ndarray) -> Area:
    """AUC with DeLong's interval, of real scores [n] with two members (bool [n]) and two others or more."""
    num_members, num_others = int(is_member.sum()), int((~is_member).sum())
    ranks = rankdata(score)  # ties share the mean of their ranks
    above = (ranks[is_member] - rankdata(score[is_member])) / num_others
    below = 1 - (ranks[~is_member] - rankdata(score[~is_member])) / num_members
    variance = above.var(ddof=1) / num_members + below.var(ddof=1) / num_others
    return area_of(float(above.mean()), float(np.sqrt(variance)))


def tpr_at_fpr(score: np.ndarray, is_member: np.ndarray, rate: float) -> float:
    """The largest true positive rate of a threshold with a false positive rate of at most `rate`.

    Without interpolation; equal scores are on the same side of every threshold. With n non-members the
    resolution is 1 / n, and a rate of up to 3 / n is compatible with none of them (95 percent).
    """
    order = np.argsort(-score, kind="stable")
    ordered, hits = score[order], is_member[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)
    true, false = np.cumsum(hits)[is_last], np.cumsum(~hits)[is_last]
    return float((true / is_member.sum())[false / (~is_member).sum() <= rate].max(initial=0))


def exact_interval(hits: int, trials: int) -> tuple[float, float]:
    """Clopper and Pearson's interval of a rate, 95 percent, from `hits` in one or more `trials`."""
    tail = (1 - 0.95) / 2
    low = beta.ppf(tail, hits, trials - hits + 1) if hits else 0.0
    high = beta.ppf(1 - tail, hits + 1, trials - hits) if hits < trials else 1.0
    return float(low), float(high)
