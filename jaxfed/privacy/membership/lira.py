"""LiRA, the likelihood ratio attack (Carlini, Chien, Nasr, Song, Terzis, Tramer, S&P 2022).

phi(x) (`evidence.log_odds`) is modeled as normal over models, separately for training with and without x:

    online     score(x) = log N(phi; mu_in, sd_in) - log N(phi; mu_out, sd_out)
    offline    score(x) = (phi - mu_out) / sd_out

"online" is the likelihood ratio (the paper's Lambda). "offline" is a one-sided test that needs no model
trained on x. It uses the number of deviations in place of P(Z < phi), Z ~ N(mu_out, sd_out): the order is the
same, without saturation at 1. Means are per example, over the reference models of each kind. With variance
"example" deviations are per example too. One deviation for all examples is better with few references (below
64 according to the paper). "pooled" takes deviations about each example's mean. The authors' code takes the
deviation of all values about a single mean ("global"), so the spread between examples widens both normals.

Offline, x above all references is a member. If the target is less confident than references that never saw
x, the score must be low, so a two-sided test would be wrong.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.stats import norm

from jaxfed.errors import UsageError
from jaxfed.privacy.membership.evidence import inside, mean_over, outside

Variance = Literal["pooled", "global", "example"]

_FEWEST = 2
_LEAST = 1e-12  # smallest deviation, for identical references


def offline(
    phi: np.ndarray,
    reference_phi: np.ndarray,
    is_in: np.ndarray | None = None,
    *,
    variance: Variance = "pooled",
) -> np.ndarray:
    """Scores by references that were not trained on the example, float64 of the shape of `phi`.

    Args:
        phi: the target's log-odds, [n] or [S, n].
        reference_phi: [R, n].
        is_in: bool [R, n], True if the reference was trained on the example; None: all False.
        variance: estimator of deviations.

    Raises:
        UsageError: shapes that do not fit, or too few references for an example.
    """
    mean, deviation = _normal(reference_phi, outside(reference_phi, is_in), variance)
    return (np.asarray(phi, np.float64) - mean) / deviation


def online(
    phi: np.ndarray,
    reference_phi: np.ndarray,
    is_in: np.ndarray,
    *,
    variance: Variance = "pooled",
) -> np.ndarray:
    """Scores by references of both kinds, float64; arguments and errors as `offline`."""
    values = np.asarray(phi, np.float64)
    with_it = _normal(reference_phi, inside(reference_phi, is_in), variance)
    without = _normal(reference_phi, outside(reference_phi, is_in), variance)
    return norm.logpdf(values, *with_it) - norm.logpdf(values, *without)


def _normal(
    reference: np.ndarray, used: np.ndarray, variance: Variance
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each example, float64 [n] twice."""
    values = np.asarray(reference, np.float64)
    mean, count = mean_over(values, used), used.sum(axis=0)
    if variance == "global":
        if used.sum() < _FEWEST:
            raise UsageError(f"variance='global': {used.sum()} references; use 2 or more")
        return mean, np.full(len(mean), max(float(np.std(values[used])), _LEAST))
    squares = np.sum(np.square(values - mean), axis=0, where=used)
    # Each example's mean takes one degree of freedom.
    if variance == "pooled":
        freedom, total = np.sum(count - 1), np.full(len(mean), squares.sum())
    else:
        freedom, total = count - 1, squares
    if np.any(freedom < 1):
        raise UsageError(
            f"variance={variance!r}: an example has {int(count.min())} references of a kind; "
            "use 2 or more"
        )
    return mean, np.maximum(np.sqrt(total / freedom), _LEAST)
