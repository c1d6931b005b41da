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

_HALVINGS = 200


def mean_sensitivity(norm: float, count: int) -> float:
    """Delta of a mean of `count` vectors of norm up to `norm` when one vector is replaced: 2 B / n."""
    return 2 * norm / count


def delta_of(epsilon: float, sensitivity: float, sigma: float, releases: int = 1) -> float:
    """The smallest delta for this epsilon, after `releases` releases."""
    # Imported here: it takes a tenth of a second, and every run imports this file.
    from scipy.special import log_ndtr

    a = sensitivity / sigma * math.sqrt(releases)
    if a == 0:
        return 0.0
    first, second = log_ndtr(a / 2 - epsilon / a), epsilon + log_ndtr(-a / 2 - epsilon / a)
    # exp(first) - exp(second), close to each other if delta is small.
    return math.exp(first) * max(0.0, -math.expm1(float(second - first)))


def epsilon_of(delta: float, sensitivity: float, sigma: float, releases: int = 1) -> float:
    """The smallest epsilon for this delta in (0, 1), after `releases` releases."""
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
