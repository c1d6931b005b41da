"""Evaluation of membership scores: AUC with a confidence interval, and TPR at low FPR.

With m members and n others, scores s and t,

    AUC = P(s > t) + P(s = t) / 2 = 1 / (m n) sum_ij ( 1[s_i > t_j] + 1[s_i = t_j] / 2 )

the probability that a member has the larger score; FedCT's "vulnerability" is an AUC. 0.5 is chance. An
attack that is certain about few examples and guesses the rest has an AUC near 0.5, so the true positive rate
at a small false positive rate is reported too (Carlini et al., S&P 2022).

The interval is DeLong's (Biometrics 44, 1988): with the placements

    v_i = 1/n sum_j (1[s_i > t_j] + 1[s_i = t_j] / 2),    w_j = 1/m sum_i (...),    AUC = mean v = mean w
    Var(AUC) = var(v) / m + var(w) / n,      AUC +- z sd, inside [0, 1]

It needs no resampling. It treats examples, not models, as independent: it covers other examples of the same
model, not other trainings. At an AUC of 0 or 1 it has no width.

For several scores of the same examples, [S, n] (rounds, clients' models), areas and placements are means over
them, so the interval is that of the mean area.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.stats import beta, norm, rankdata

from jaxfed.errors import UsageError

_LEVEL = 0.95  # of confidence intervals


class Area(NamedTuple):
    """An area under the curve.

    Fields:
        auc: the area.
        low: of the interval.
        high: of the interval.
        deviation: DeLong's standard deviation.
    """

    auc: float
    low: float
    high: float
    deviation: float


class Vulnerability(NamedTuple):
    """Reported figures of an attack.

    Fields:
        area: AUC and its interval.
        tpr_at_1_percent: true positive rate at a false positive rate of at most 1 percent.
        tpr_at_none: the same without false positives. With n non-members the resolution is 1 / n, and a rate
            of up to 3 / n is compatible with it (95 percent).
    """

    area: Area
    tpr_at_1_percent: float
    tpr_at_none: float


def area_under_curve(score: np.ndarray, is_member: np.ndarray) -> Area:
    """AUC with DeLong's interval of 95 percent.

    Args:
        score: real [n], or [S, n] for the same examples.
        is_member: bool [n].

    Raises:
        UsageError: scores that are not numbers, fewer than two members or others.

    Cost: S n log n.
    """
    scores, member = _checked(score, is_member)
    num_members, num_others = int(member.sum()), int((~member).sum())
    if min(num_members, num_others) < 2:
        raise UsageError(
            f"{num_members} members, {num_others} others: an interval needs 2 or more of each"
        )
    ranks = rankdata(scores, axis=-1)  # ties share the mean of their ranks
    among_members = rankdata(scores[..., member], axis=-1)
    among_others = rankdata(scores[..., ~member], axis=-1)
    above = (ranks[..., member] - among_members) / num_others
    below = 1 - (ranks[..., ~member] - among_others) / num_members
    of_members = np.atleast_2d(above).mean(axis=0)
    of_others = np.atleast_2d(below).mean(axis=0)
    auc = float(of_members.mean())
    variance = of_members.var(ddof=1) / num_members + of_others.var(ddof=1) / num_others
    deviation = float(np.sqrt(variance))
    reach = float(norm.ppf((1 + _LEVEL) / 2)) * deviation
    return Area(auc, max(0.0, auc - reach), min(1.0, auc + reach), deviation)


def tpr_at_fpr(score: np.ndarray, is_member: np.ndarray, rate: float) -> float:
    """The largest true positive rate of a threshold with a false positive rate of at most `rate`.

    Without interpolation. For [S, n] it is the mean over S.

    Raises:
        UsageError: a rate outside of [0, 1], scores that are not numbers, or no members or no others.
    """
    scores, member = _checked(score, is_member)
    if not 0 <= rate <= 1:
        raise UsageError(f"rate={rate}: use 0 to 1")
    return float(np.mean([_tpr_at_fpr(row, member, rate) for row in np.atleast_2d(scores)]))


def _tpr_at_fpr(scores: np.ndarray, member: np.ndarray, rate: float) -> float:
    """`tpr_at_fpr` of scores [n]; equal scores are on the same side of every threshold."""
    order = np.argsort(-scores, kind="stable")
    ordered, hits = scores[order], member[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)
    true, false = np.cumsum(hits)[is_last], np.cumsum(~hits)[is_last]
    return float((true / member.sum())[false / (~member).sum() <= rate].max(initial=0))


def vulnerability(score: np.ndarray, is_member: np.ndarray) -> Vulnerability:
    """All figures for scores [n] or [S, n]; interval of 95 percent.

    Raises:
        UsageError: as `area_under_curve`.
    """
    return Vulnerability(
        area_under_curve(score, is_member),
        tpr_at_fpr(score, is_member, 0.01),
        tpr_at_fpr(score, is_member, 0.0),
    )


def exact_interval(hits: int, trials: int) -> tuple[float, float]:
    """Clopper and Pearson's interval of a rate, 95 percent, from `hits` in one or more `trials`."""
    tail = (1 - _LEVEL) / 2
    low = beta.ppf(tail, hits, trials - hits + 1) if hits else 0.0
    high = beta.ppf(1 - tail, hits + 1, trials - hits) if hits < trials else 1.0
    return float(low), float(high)


def _checked(score: np.ndarray, is_member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scores, member = np.asarray(score, np.float64), np.asarray(is_member, bool)
    if scores.ndim not in (1, 2) or member.shape != scores.shape[-1:]:
        raise UsageError(
            f"scores {list(scores.shape)} of members {list(member.shape)}: use [n] or [S, n], and "
            "[n]"
        )
    if np.isnan(scores).any():
        raise UsageError("scores: one is not a number")
    if not member.any() or member.all():
        raise UsageError("members: use examples of which some are members, and others not")
    return scores, member
