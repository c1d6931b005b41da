"""RMIA, the robust membership inference attack (Zarifzadeh, Liu, Shokri, ICML 2024).

    ratio(x) = p(x) / P(x),        score(x) = share of a population Z with ratio(x) / ratio(z) >= 1

p is the target's probability of the example's class, P its mean over models with and without x. x is compared
with the same model's outputs for non-members: what all models, or this one, find easy cancels.

    online     P(x) = (mean over references with x  +  mean over references without) / 2
    offline    P(x) = ( (1 + a) mean over references without x  +  (1 - a) ) / 2

Offline, the first mean is replaced by the line a P_out + (1 - a): references trained on x have a larger
probability than those without, at most 1. a in [0, 1] is tuned with reference models as targets, whose
members are known (`tuned_a`); the default of the authors' code is 0.3. Their code counts > 1 where the
paper has >=. The two differ for ties, which are frequent with trees.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxfed.errors import UsageError
from jaxfed.privacy.membership.reference_models import inside, mean_over, outside
from jaxfed.privacy.membership.roc import area_under_curve

_TINY = 1e-45
GRID = tuple(number / 10 for number in range(11))


class Evidence(NamedTuple):
    """Probabilities of the true class of some examples.

    Fields:
        target: of the target model, [n], or [S, n] of several.
        reference: of reference models, [R, n].
        is_in: bool [R, n], True if the reference was trained on the example; None: all False.
    """

    target: np.ndarray
    reference: np.ndarray
    is_in: np.ndarray | None = None


def offline(examples: Evidence, population: Evidence, *, a: float = 0.3) -> np.ndarray:
    """Scores by references that were not trained on the example, float64 of the targets' shape.

    Args:
        examples: n of them.
        population: m others, non-members of the target.
        a: slope of the line above.

    Raises:
        UsageError: shapes that do not fit, an example without such references, or a number out of its range.

    Cost: S (n + m) log m + R (n + m).
    """
    if not 0 <= a <= 1:
        raise UsageError(f"a={a}: use 0 to 1")

    def marginal(evidence: Evidence) -> np.ndarray:
        is_out = outside(evidence.reference, evidence.is_in)
        return ((1 + a) * mean_over(evidence.reference, is_out) + (1 - a)) / 2

    return _scores(examples, population, marginal(examples), marginal(population))


def online(examples: Evidence, population: Evidence) -> np.ndarray:
    """Scores by references of both kinds, float64; arguments and errors as `offline`.

    P of a population that no reference was trained on (`is_in` None) is the mean of all of them.
    """
    if examples.is_in is None:
        raise UsageError("is_in=None: online scores need references trained on the examples")

    def marginal(evidence: Evidence) -> np.ndarray:
        without = mean_over(evidence.reference, outside(evidence.reference, evidence.is_in))
        if evidence.is_in is None:
            return without
        return (
            mean_over(evidence.reference, inside(evidence.reference, evidence.is_in)) + without
        ) / 2

    return _scores(examples, population, marginal(examples), marginal(population))


def tuned_a(examples: Evidence, population: Evidence) -> float:
    """The a of `GRID` with the largest mean AUC when each reference in turn is attacked by the others.

    Ties go to the first.

    Args:
        examples: each reference was trained on some of them and not on others; the target is unused.
        population: likewise; examples that the attacked reference was trained on are left out.

    Raises:
        UsageError: fewer than three references, no `is_in`, and as `offline`.

    Cost: R times that of `offline` for each value.
    """
    number = len(examples.reference)
    if examples.is_in is None or number < 3:
        raise UsageError(f"{number} references: tuning needs 3 or more, and is_in")
    areas = [[_area_against(row, examples, population, a) for row in range(number)] for a in GRID]
    return GRID[int(np.argmax(np.round(np.mean(areas, axis=1), 12)))]


def _area_against(row: int, examples: Evidence, population: Evidence, a: float) -> float:
    """AUC of the attack on one reference by the others, on examples that some of these never saw."""
    others = np.arange(len(examples.reference)) != row

    def attacked(evidence: Evidence, *, but_members: bool) -> tuple[Evidence, np.ndarray]:
        is_in = np.asarray(
            np.zeros(np.shape(evidence.reference), bool)
            if evidence.is_in is None
            else evidence.is_in
        )
        kept = ~is_in[others].all(axis=0)
        if but_members:
            kept &= ~is_in[row]
        reference = np.asarray(evidence.reference)[:, kept]
        rest = Evidence(reference[row], reference[others], is_in[others][:, kept])
        return rest, is_in[row, kept]

    own, member = attacked(examples, but_members=False)
    others_own, _ = attacked(population, but_members=True)
    return area_under_curve(offline(own, others_own, a=a), member).auc


def _scores(
    examples: Evidence,
    population: Evidence,
    marginal: np.ndarray,
    population_marginal: np.ndarray,
) -> np.ndarray:
    ratio, others = (
        np.asarray(evidence.target, np.float64) / np.maximum(below, _TINY)
        for evidence, below in ((examples, marginal), (population, population_marginal))
    )
    if not others.size or ratio.shape[:-1] != others.shape[:-1]:
        raise UsageError(
            f"examples {list(ratio.shape)}, of a population {list(others.shape)}: use [n] and [m], "
            "or [S, n] and [S, m], m >= 1"
        )
    pairs = zip(np.atleast_2d(ratio), np.sort(np.atleast_2d(others), axis=-1), strict=True)
    below = [np.searchsorted(ordered, row, side="right") for row, ordered in pairs]
    return np.reshape(below, ratio.shape) / others.shape[-1]
