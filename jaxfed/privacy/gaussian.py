"""Exact (epsilon, delta) of the Gaussian mechanism.

A vector that one record changes by at most Delta (Euclidean norm), released with N(0, sigma^2) on every
number, is (epsilon, delta)-differentially private if and only if

    delta >= Phi(a / 2 - epsilon / a) - e^epsilon Phi(-a / 2 - epsilon / a),     a = Delta / sigma

(Balle, Wang, ICML 2018, Theorem 8; the classic sigma = Delta sqrt(2 ln(1.25 / delta)) / epsilon is larger,
and holds for epsilon < 1 only). Releases with a_1 .. a_R, also adaptive ones, are
together as private as one with a = sqrt(sum a_r^2) (Dong, Roth, Su, 2022). Amplification by sampling clients
is not included.
"""

from __future__ import annotations

import math

from jaxfed.errors import UsageError

_HALVINGS = 200


def mean_sensitivity(norm: float, count: int) -> float:
    """Delta of a mean of `count` vectors of norm up to `norm` when one vector is replaced: 2 B / n.

    Raises:
        UsageError: no vectors, or a norm below 0.
    """
    if count < 1 or norm < 0:
        raise UsageError(f"mean_sensitivity(norm={norm}, count={count}): use norm >= 0, count >= 1")
    return 2 * norm / count


def delta_of(epsilon: float, sensitivity: float, sigma: float, releases: int = 1) -> float:
    """The smallest delta for this epsilon, after `releases` releases.

    Raises:
        UsageError: epsilon or sensitivity below 0, sigma that is not positive, or no release.
    """
    # Imported here: it takes a tenth of a second, and every run imports this file.
    from scipy.special import log_ndtr

    _check(sensitivity, sigma, releases)
    if epsilon < 0:
        raise UsageError(f"epsilon={epsilon}: use numbers from 0 on")
    a = sensitivity / sigma * math.sqrt(releases)
    if a == 0:
        return 0.0
    first, second = log_ndtr(a / 2 - epsilon / a), epsilon + log_ndtr(-a / 2 - epsilon / a)
    # exp(first) - exp(second), close to each other if delta is small.
    return math.exp(first) * max(0.0, -math.expm1(float(second - first)))


def epsilon_of(delta: float, sensitivity: float, sigma: float, releases: int = 1) -> float:
    """The smallest epsilon for this delta, after `releases` releases.

    Raises:
        UsageError: delta outside of (0, 1), and as `delta_of`.
    """
    if not 0 < delta < 1:
        raise UsageError(f"delta={delta}: use numbers above 0 and below 1")
    if delta_of(0.0, sensitivity, sigma, releases) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while delta_of(high, sensitivity, sigma, releases) > delta:
        high *= 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle > 0 and delta_of(middle, sensitivity, sigma, releases) <= delta:
            high = middle
        else:
            low = middle
    return high


def _check(sensitivity: float, sigma: float, releases: int) -> None:
    if sensitivity < 0 or sigma <= 0 or releases < 1:
        raise UsageError(
            f"sensitivity={sensitivity}, sigma={sigma}, releases={releases}: use sensitivity >= 0, "
            "sigma > 0, releases >= 1"
        )
