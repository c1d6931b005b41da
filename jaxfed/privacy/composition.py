"""Composition of several releases of the same data, each with fresh noise, and the Gaussian mechanism.

    pure           eps_total = R eps                                              delta = 0 (basic)
    concentrated   rho = R eps^2 / 2         (Bun, Steinke, TCC 2016, Proposition 1.4, Lemma 1.7)
    approximate    eps_total = min( rho + 2 sqrt(rho ln(1 / delta)), R eps )    (Proposition 1.3)

A release may depend on earlier releases. In FedCT every communication is one release: T / b of them over T
rounds with communication period b. The paper states the eps of one.

A vector that one record changes by at most Delta (Euclidean norm), released with N(0, sigma^2) on every
number, is (epsilon, delta)-differentially private if and only if

    delta >= Phi(a / 2 - epsilon / a) - e^epsilon Phi(-a / 2 - epsilon / a),     a = Delta / sigma

(Balle, Wang, ICML 2018, Theorem 8; the classic sigma = Delta sqrt(2 ln(1.25 / delta)) / epsilon is larger,
and holds for epsilon < 1 only). Releases with a_1 .. a_R, also adaptive ones, are together as private as one
with a = sqrt(sum a_r^2) (Dong, Roth, Su, 2022). Amplification by sampling clients is not included.
"""

from __future__ import annotations

import math

_HALVINGS = 200


def basic(epsilon: float, releases: int) -> float:
    """R eps: pure epsilon of R releases at `epsilon` each."""
    return releases * epsilon


def approximate(epsilon: float, releases: int, delta: float) -> float:
    """eps at `delta` in (0, 1) of R releases at pure `epsilon` each; never more than `basic`."""
    pure, rho = basic(epsilon, releases), releases * epsilon**2 / 2
    return min(rho + 2 * math.sqrt(rho * math.log(1 / delta)), pure)


def mean_sensitivity(norm: float, count: int) -> float:
    """Delta of a mean of `count` vectors of norm up to `norm` when one vector is replaced: 2 B / n."""
    return 2 * norm / count


def gaussian_delta(epsilon: float, sensitivity: float, sigma: float, releases: int = 1) -> float:
    """The smallest delta for this epsilon, after `releases` releases."""
    # Imported here: it takes a tenth of a second, and every run imports this file.
    from scipy.special import log_ndtr

    a = sensitivity / sigma * math.sqrt(releases)
    if a == 0:
        return 0.0
    first, second = log_ndtr(a / 2 - epsilon / a), epsilon + log_ndtr(-a / 2 - epsilon / a)
    # exp(first) - exp(second), close to each other if delta is small.
    return math.exp(first) * max(0.0, -math.expm1(float(second - first)))


def gaussian_epsilon(delta: float, sensitivity: float, sigma: float, releases: int = 1) -> float:
    """The smallest epsilon for this delta in (0, 1), after `releases` releases."""
    if gaussian_delta(0.0, sensitivity, sigma, releases) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while gaussian_delta(high, sensitivity, sigma, releases) > delta:
        high *= 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle > 0 and gaussian_delta(middle, sensitivity, sigma, releases) <= delta:
            high = middle
        else:
            low = middle
    return high
