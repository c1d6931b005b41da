"""When consensus labels stop changing (FedCT, Proposition 1 and Figure 1).

If in every round t > t_0 each of m clients reproduces each consensus label with probability a_t >= 1 - c / t,
at least 1/2, independently of the others, then a majority's labels change after round t_0 with a probability
of at most

    delta = |U| sum_{t > t_0} (4 a_t (1 - a_t))^(m/2)  <=  |U| (4 c)^(m/2) zeta(m/2, t_0 + 1),     m >= 3

zeta(x, q) = sum_{k >= 0} (q + k)^-x is Hurwitz's. The summand of a round is Chernoff's bound on the
probability that m/2 or fewer of m clients reproduce a label, with a union bound over U.

Differences from the paper:

  * Its printed figures (1 - delta = 0.9993, 0.9962, 0.7868 at t_0 = 1000, m = 5, c = 1, 2, 10, "for |U| =
    10000") are those of |U| = 1. With |U| = 10^4 the bound is above 1 there, hence vacuous: it needs
    t_0 = 26,306 for c = 1 and delta = 0.05.
  * Clients are assumed independent given the label, and a_t is assumed for every single example. But training
    accuracy is a mean, and clients that are taught the same labels err on the same examples.
  * 1 - c / t must be 1/2 or more from t_0 + 1 on: t_0 + 1 >= 2 c.
"""

from __future__ import annotations

import math

from scipy.special import zeta

from jaxfed.errors import UsageError


def change_probability(num_clients: int, num_public: int, rounds: int, rate: float) -> float:
    """delta: the bound on the probability that a consensus label changes after round t_0.

    Args:
        num_clients: m, 3 or more.
        num_public: |U|.
        rounds: t_0.
        rate: c.

    Returns:
        A number of 0 or more; from 1 on the bound is vacuous.

    Raises:
        UsageError: a number out of its range.
    """
    _check(num_clients, num_public, rate)
    if rounds < 0 or rounds + 1 < 2 * rate:
        raise UsageError(f"rounds={rounds}: use integers from 2 c - 1 on, with c={rate}")
    half, first = num_clients / 2, rounds + 1
    tail = float(zeta(half, first))
    # Below the smallest float: the bound by an integral, which is larger.
    by_integral = -half * math.log(first) + math.log1p(first / (half - 1))
    log_tail = math.log(tail) if tail > 0 else by_integral
    log_delta = math.log(num_public) + half * math.log(4 * rate) + log_tail
    return math.exp(min(log_delta, 700.0))


def rounds_needed(num_clients: int, num_public: int, rate: float, delta: float) -> int:
    """The smallest t_0 after which labels change with a probability of at most `delta`.

    Raises:
        UsageError: delta outside of (0, 1), and as `change_probability`.
    """
    _check(num_clients, num_public, rate)
    if not 0 < delta < 1:
        raise UsageError(f"delta={delta}: use numbers above 0 and below 1")
    low = max(0, math.ceil(2 * rate) - 1)
    if change_probability(num_clients, num_public, low, rate) <= delta:
        return low
    high = 2 * low + 2
    while change_probability(num_clients, num_public, high, rate) > delta:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if change_probability(num_clients, num_public, middle, rate) <= delta:
            high = middle
        else:
            low = middle
    return high


def _check(num_clients: int, num_public: int, rate: float) -> None:
    if num_clients < 3 or num_public < 1 or not (rate > 0 and math.isfinite(rate)):
        raise UsageError(
            f"num_clients={num_clients}, num_public={num_public}, rate={rate}: use m >= 3, |U| >= 1, "
            "c > 0"
        )
