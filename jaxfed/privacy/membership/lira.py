"""LiRA, the likelihood ratio attack (Carlini, Chien, Nasr, Song, Terzis, Tramer, S&P 2022).

phi(x) (`jaxfed.privacy.membership.evidence`) is modeled as normal over models, separately for training with
and without x:

    online     score(x) = log N(phi; mu_in, sd_in) - log N(phi; mu_out, sd_out)
    offline    score(x) = (phi - mu_out) / sd_out

"online" is the likelihood ratio (the paper's Lambda). "offline" is a one-sided test that needs no model
trained on x. It uses the number of deviations in place of P(Z < phi), Z ~ N(mu_out, sd_out): the order is the
same, without saturation at 1. Means are per example, over the reference models of each kind. The deviation is
one for all examples, of values about their example's mean: better with few references (below 64 according to
the paper) than a deviation per example. (The authors' code takes the deviation of all values about a single
mean, so the spread between examples widens both normals.)

Offline, x above all references is a member. If the target is less confident than references that never saw
x, the score must be low, so a two-sided test would be wrong.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import norm

from jaxfed.errors import UsageError
from jaxfed.privacy.membership.evidence import inside, mean_over, outside

_LEAST = 1e-12  # smallest deviation, for identical references


def offline(
    phi: np.ndarray, reference_phi: np.ndarray, is_in: np.ndarray | None = None
) -> np.ndarray:
    """Scores by references that were not trained on the example, float64 of the shape of `phi`.

    Args:
        phi: the target's log-odds, [n] or [S, n].
        reference_phi: [R, n].
        is_in: bool [R, n], True if the reference was trained on the example; None: all False.

    Raises:
        UsageError: shapes that do not fit, or too few references for an example.
    """
    mean, deviation = _normal(reference_phi, outside(reference_phi, is_in))
    return (np.asarray(phi, np.float64) - mean) / deviation


def online(phi: np.ndarray, reference_phi: np.ndarray, is_in: np.ndarray) -> np.ndarray:
    """Scores by references of both kinds, float64; arguments and errors as `offline`."""
    values = np.asarray(phi, np.float64)
    with_it = _normal(reference_phi, inside(reference_phi, is_in))
    without = _normal(reference_phi, outside(reference_phi, is_in))
    return norm.logpdf(values, *with_it) - norm.logpdf(values, *without)


def _normal(reference: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, float]:
    """Mean of each example, float64 [n], and the deviation of all."""
    values = np.asarray(reference, np.float64)
    mean, count = mean_over(values, used), used.sum(axis=0)
    freedom = np.sum(count - 1)  # each example's mean takes one degree of freedom
    if freedom < 1:
        raise UsageError("every example has 1 reference of a kind; use 2 or more for some")
    squares = np.sum(np.square(values - mean), axis=0, where=used)
    return mean, max(float(np.sqrt(squares.sum() / freedom)), _LEAST)
