"""Privacy of several releases of the same data, each with fresh noise; the sampled Gaussian mechanism.

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
with a = sqrt(sum a_r^2) (Dong, Roth, Su, 2022).

**Sampled.** A contribution is a vector of norm up to C. A release is the sum of the drawn contributions plus
N(0, z^2 C^2) on every number; z is the noise multiplier. R adaptive releases with independent draws are
(epsilon, delta)-private against an observer of all releases that does not know the draws:

    draw                 neighbors                    changes sum by  epsilon
    EVERYTHING           one contribution more, less  C               exact: `gaussian_epsilon`
    Poisson(q)           one contribution more, less  C, if in        privacy loss distribution, or Renyi
    WithoutReplacement   one in place of another      2 C, if in      Renyi (Wang, Balle, K., 2019)

The privacy loss distribution (PLD) of one Poisson release is composed R times by a Fourier
transform (Koskela, Jalko, Honkela, 2020; Doroshenko et al., 2022). Its epsilon is rounded up on a grid of
width 1e-3. In usual settings it is 8 to 20 % below that of Renyi divergences (Mironov, Talwar, Zhang, 2019).
Both are upper bounds, and the smaller one is returned. Renyi's alone is returned in two cases: a draw without
replacement, for which the package has no PLD, and a Renyi epsilon above 200, where the grid needs gigabytes.

If one release has Renyi divergences rho(a), R releases have R rho(a), and

    epsilon = min over a > 1 of  R rho(a) + log(1 - 1 / a) - log(a delta) / (a - 1)

(Canonne, Kamath, Steinke, 2020, Proposition 12). For EVERYTHING rho(a) is a / (2 z^2), for Poisson(q) and
integers a

    rho(a) = 1 / (a - 1) log sum_k binom(a, k) (1 - q)^(a - k) q^k exp(k (k - 1) / (2 z^2))

For draws without replacement rho(a) is a bound, or a / (2 (z / 2)^2), that of a contribution that is always
in, if it is smaller. The bound helps with much noise and few contributions in a sum, not with little noise.
Poisson's epsilon is far better throughout. If an observer knows that a contribution is in, the epsilon of
EVERYTHING applies.

PLD and Renyi are from the package dp-accounting (requirements-privacy.txt).
"""

from __future__ import annotations

import logging
import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from jaxfed.errors import UsageError

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


MOST_NOISE = 1e6  # above, rounding errors dominate the divergences
_LEAST_NOISE = 0.05  # below, divergences overflow
_GRID = 1e-3  # width of the privacy loss distribution's cells
_LARGEST_BY_PLD = 200.0  # above this Renyi epsilon the grid is too large, the guarantee worthless
_PRECISION = 1e-3  # relative, of the noise in a search
# Small orders matter for a large epsilon, large ones for a tiny one; a costs a^2 without replacement.
_ORDERS = np.array([*(1 + x / 10 for x in range(1, 30)), *range(4, 65), 512, 1024])


class Poisson(NamedTuple):
    """Each contribution is in with probability `share`, 0 < share < 1."""

    share: float


class WithoutReplacement(NamedTuple):
    """A uniformly random set of `size` out of `population` is in; 0 < size <= population."""

    size: int
    population: int


Subsampling = Poisson | WithoutReplacement | None
EVERYTHING = None  # all are in


def epsilon_of(delta: float, noise_multiplier: float, releases: int, draw: Subsampling) -> float:
    """epsilon of R releases; 0 for none.

    Args:
        delta: of the guarantee.
        noise_multiplier: z, deviation of the noise over the bound on a contribution's norm; above 0.
        releases: R.
        draw: rule for the contributions in a sum.

    Raises:
        UsageError: a number out of range; a draw that needs a package which is not installed.

    Cost: with a draw, about 0.1 s for the first R of its z; with Poisson's about 0.02 s for each further R.
    """
    if not 0 < delta < 1 or not noise_multiplier > 0 or releases < 0:
        raise UsageError(
            f"delta={delta}, noise_multiplier={noise_multiplier}, releases={releases}: use delta "
            "above 0 and below 1, noise_multiplier above 0, releases from 0 on"
        )
    if not releases:
        return 0.0
    if draw is None:
        return gaussian_epsilon(delta, 1.0, noise_multiplier, releases)
    by_renyi = renyi_epsilon_of(delta, noise_multiplier, releases, draw)
    if not isinstance(draw, Poisson) or by_renyi > _LARGEST_BY_PLD:
        return by_renyi
    return min(by_renyi, _pld_epsilon_of(delta, noise_multiplier, releases, draw))


def renyi_epsilon_of(
    delta: float, noise_multiplier: float, releases: int, draw: Poisson | WithoutReplacement
) -> float:
    """Bound on epsilon by Renyi divergences; arguments as `epsilon_of`, with one or more releases."""
    divergences = releases * _divergences(noise_multiplier, draw)
    return float(accounting().rdp.compute_epsilon(_ORDERS, divergences, delta)[0])


@lru_cache(maxsize=1024)
def _pld_epsilon_of(delta: float, noise_multiplier: float, releases: int, draw: Poisson) -> float:
    """Pessimistic epsilon by the privacy loss distribution."""
    composed = _loss_distribution(noise_multiplier, draw).self_compose(releases)
    return float(composed.get_epsilon_for_delta(delta))


@lru_cache(maxsize=8)
def _loss_distribution(noise_multiplier: float, draw: Poisson) -> Any:
    """Pessimistic privacy loss distribution of one release."""
    return accounting().pld.privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier,
        sampling_prob=draw.share,
        value_discretization_interval=_GRID,
        pessimistic_estimate=True,
    )


@lru_cache(maxsize=64)
def noise_multiplier_of(epsilon: float, delta: float, releases: int, draw: Subsampling) -> float:
    """The smallest z, to a relative 1e-3 above it, that keeps R releases within epsilon.

    At least 0.05 and at most 1e6.

    Raises:
        UsageError: epsilon that is not positive or too small, no release, and as `epsilon_of`.
    """
    if not epsilon > 0 or releases < 1:
        raise UsageError(
            f"epsilon={epsilon}, releases={releases}: use epsilon above 0, releases from 1 on"
        )
    low = high = _LEAST_NOISE
    while epsilon_of(delta, high, releases, draw) > epsilon:
        low, high = high, 2 * high
        if high > MOST_NOISE:
            raise UsageError(
                f"no noise multiplier up to {MOST_NOISE:g} keeps {releases} releases within it at "
                f"delta={delta}",
                key="target_epsilon",
                value=epsilon,
                allowed="use a larger one",
            )
    while high > (1 + _PRECISION) * low:
        middle = math.sqrt(low * high)
        if epsilon_of(delta, middle, releases, draw) > epsilon:
            low = middle
        else:
            high = middle
    return high


@lru_cache(maxsize=128)
def _divergences(noise_multiplier: float, draw: Poisson | WithoutReplacement) -> np.ndarray:
    """rho(a) of one release, for all orders."""
    library, noise, always_in = accounting(), noise_multiplier, np.full(len(_ORDERS), np.inf)
    if isinstance(draw, Poisson):
        relation = library.NeighboringRelation.ADD_OR_REMOVE_ONE
        event = library.PoissonSampledDpEvent(draw.share, library.GaussianDpEvent(noise))
    else:
        noise /= 2  # relative to the change by a replacement
        relation, always_in = library.NeighboringRelation.REPLACE_ONE, _ORDERS / (2 * noise**2)
        event = library.SampledWithoutReplacementDpEvent(
            draw.population, draw.size, library.GaussianDpEvent(noise)
        )
    accountant, log = library.rdp.RdpAccountant(_ORDERS, relation), logging.getLogger("absl")
    log.addFilter(_is_no_series)
    try:
        accountant.compose(event)
    finally:
        log.removeFilter(_is_no_series)
    return np.minimum(np.maximum(accountant.rdp, 0), always_in)  # rounding may give less than 0


def _is_no_series(record: logging.LogRecord) -> bool:
    """True for log records other than on a series that diverges at an order; that order is left out."""
    return "failed to converge" not in str(record.msg)


def accounting() -> Any:
    """Return the package that accounts for draws. Raises a UsageError if it is not installed."""
    try:
        import dp_accounting
        import dp_accounting.pld.privacy_loss_distribution
        import dp_accounting.rdp
    except ImportError as error:
        raise UsageError(
            "epsilon of what is drawn at random needs dp-accounting, which is not installed: "
            "pip install -r requirements-privacy.txt",
            key="noise_multiplier",
        ) from error
    return dp_accounting
