"""Consensus: one label for each public example from the clients' answers (FedCT, Algorithm 1, line 11).

Client k of K answers example u with a label v_ku, or probabilities p_ku [C]. Most rules need only a tally,
the sum over clients of one row each. A secure sum reveals nothing else:

    majority              t_uc = #{k : v_ku = c}                         label = argmax_c t_uc
    qualified majority    the same; abstains unless t_uc / sum_c' t_uc' >= threshold for the label
    mean                  t_uc = sum_k p_kuc                             label = argmax_c t_uc

`staple` weighs clients by their agreement with the others. It needs every client's labels, so no secure sum
can serve it.

The paper's consensus is the plain majority, every label with weight 1. Ties go to the smallest class, as in
the authors' code. A qualified majority is commented out there, at 0.8 and 0.9.

    agreed = largest_share(vote_histogram(votes, client_id, num_classes), threshold=0.8)

A client with id -1, a label -1, and a row of zeros as probabilities count as no answer. An example without
any answer has label -1 and weight 0.

STAPLE estimates true classes and each voter's confusion matrix from votes alone, in turns.

    prior_s = share of s among all votes
    E:  W_us ~ prior_s prod_{k votes on u} theta_k[s, v_ku],    sum_s W_us = 1
    M:  theta_k[s, v] = sum_{u: v_ku = v} W_us / sum_{u: k votes on u} W_us

(S. K. Warfield, K. H. Zou, W. M. Wells, IEEE Transactions on Medical Imaging 23(7), 2004; for several classes
a confusion matrix theta_k [C, C] for each client, rows of which sum to 1: the model of Dawid and Skene,
Applied Statistics 28, 1979, with a fixed prior.) v_ku is client k's vote on example u, W_us the
posterior probability that its class is s. Expectation maximization: the likelihood

    sum_u log sum_s prior_s prod_k theta_k[s, v_ku]

never falls. The start is theta_k = a on the diagonal and (1 - a) / (C - 1) off it, the same for all clients:
the first W is a majority vote with the prior. If votes hardly agree it may end in a local maximum.

A client's votes are assumed independent of the others' given the class. A client without votes changes
nothing.

When consensus labels stop changing (FedCT, Proposition 1 and Figure 1).

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
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from scipy.special import zeta

from jaxfed.errors import UsageError
from jaxfed.settings import Share

ABSTAINED = -1
_ROUNDING = 1e-6  # relative tolerance of shares: 4 of 5 reach 0.8 on every backend
_INITIAL = 0.9  # a
_TINY = 1e-30  # floor under logarithms in float32, for pairs that never occurred


class Agreed(NamedTuple):
    """Result of a consensus: labels, their weights, and the shares of all classes.

    Fields:
        label: int32 [U], -1 without agreement.
        weight: float32 [U], 1 with agreement and 0 without.
        soft: float32 [U, C], the classes' shares; zeros where nobody answers.
    """

    label: jax.Array
    weight: jax.Array
    soft: jax.Array


@partial(jax.jit, static_argnames="num_classes")
def vote_histogram(votes: jax.Array, client_id: jax.Array, num_classes: int) -> jax.Array:
    """Count the votes for each class, int32 [U, C] of votes int32 [K, U].

    Votes outside of 0 ... C - 1 are ignored. Cost: K U C comparisons, fused: no array of that size.
    """
    is_vote = jnp.where(client_id[:, None] >= 0, votes, ABSTAINED)
    return jnp.sum(jax.nn.one_hot(is_vote, num_classes, dtype=jnp.int32), axis=0)


@jax.jit
def summed_probabilities(probabilities: jax.Array, client_id: jax.Array) -> jax.Array:
    """sum_k p_kuc, float32 [U, C] of [K, U, C]."""
    return jnp.sum(jnp.where(client_id[:, None, None] >= 0, probabilities, 0), axis=0)


@jax.jit
def largest_share(tally: jax.Array, *, threshold: Share = 0.0) -> Agreed:
    """Return the class with the largest share, the smallest of equals, if that share reaches the threshold.

    Args:
        tally: real [U, C]; negative entries, as estimates may have, count as 0.
        threshold: the least share t_uc / sum_c' t_uc' of the label, up to 10^-6 of it.
    """
    tally = jnp.maximum(tally.astype(jnp.float32), 0)
    total = jnp.sum(tally, axis=1)
    soft = tally / jnp.where(total > 0, total, 1)[:, None]
    share = jnp.max(soft, axis=1)
    is_agreed = (total > 0) & (share >= threshold * (1 - _ROUNDING))
    label = jnp.where(is_agreed, jnp.argmax(tally, axis=1).astype(jnp.int32), ABSTAINED)
    return Agreed(label, is_agreed.astype(jnp.float32), soft)


def staple(votes: jax.Array, num_classes: int, *, threshold: Share = 0.0) -> Agreed:
    """The most likely class under a separate error model for each client, of votes int32 [K, U], -1 for none.

    `threshold` is the least posterior probability of the label.
    """
    if num_classes < 2:
        raise UsageError(
            key="num_classes", owner="staple", value=num_classes, allowed="use 2 or more"
        )
    anyone = jnp.any(votes >= 0, axis=0)[:, None]
    posterior, _ = staple_performance(votes, num_classes)
    posterior = jnp.where(anyone, posterior, 0)
    return largest_share(posterior, threshold=threshold)


@partial(jax.jit, static_argnames="num_classes")
def staple_performance(
    votes: jax.Array,
    num_classes: int,
    *,
    tolerance: float = 1e-5,
    max_steps: int = 100,
) -> tuple[jax.Array, jax.Array]:
    """Estimate W, float32 [U, C], and theta, [K, C, C], until no entry of W moves by more than the tolerance.

    Votes are int32 [K, U], classes 0 to C - 1, C >= 2; -1 of a client that has no vote. W is the prior where
    nobody votes.

    Cost: a step is 2 K U C operations, one client after another; 8 U C + 4 K C^2 bytes beside the votes.
    """
    num_clients = votes.shape[0]
    other = (1 - _INITIAL) / (num_classes - 1)
    own = jnp.where(jnp.eye(num_classes, dtype=bool), _INITIAL, other).astype(jnp.float32)
    start = jnp.broadcast_to(own, (num_clients, num_classes, num_classes))
    is_of_class = jax.nn.one_hot(votes, num_classes, dtype=jnp.int32)
    counts = jnp.sum(is_of_class, axis=(0, 1)).astype(jnp.float32)
    prior = counts / jnp.maximum(jnp.sum(counts), 1)
    log_prior = jnp.log(jnp.maximum(prior, _TINY))

    def expected(confusion: jax.Array) -> jax.Array:
        def with_votes_of(
            log_joint: jax.Array, client: tuple[jax.Array, ...]
        ) -> tuple[jax.Array, None]:
            vote, theta = client
            by_vote = jnp.log(jnp.maximum(theta, _TINY)).T  # [vote, class]
            likely = by_vote[jnp.maximum(vote, 0)]
            return log_joint + jnp.where((vote >= 0)[:, None], likely, 0), None

        nobody = jnp.broadcast_to(log_prior, (votes.shape[1], num_classes))
        log_joint, _ = jax.lax.scan(with_votes_of, nobody, (votes, confusion))
        log_evidence = jax.nn.logsumexp(log_joint, axis=1)
        return jnp.exp(log_joint - log_evidence[:, None])

    def maximized(posterior: jax.Array, confusion: jax.Array) -> jax.Array:
        def of_client(client: tuple[jax.Array, ...]) -> jax.Array:
            vote, theta = client
            seen = jnp.where((vote >= 0)[:, None], posterior, 0)
            by_class = jax.ops.segment_sum(seen, jnp.maximum(vote, 0), num_classes).T
            mass = jnp.sum(by_class, axis=1, keepdims=True)
            # A class with almost no mass keeps its row: there is nothing to estimate it from.
            return jnp.where(mass > _TINY, by_class / jnp.where(mass > _TINY, mass, 1), theta)

        return jax.lax.map(of_client, (votes, confusion))

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        confusion, posterior, steps, _ = carry
        confusion = maximized(posterior, confusion)
        updated = expected(confusion)
        change = jnp.max(jnp.abs(updated - posterior), initial=0)
        return confusion, updated, steps + 1, change

    def goes_on(carry: tuple[Any, ...]) -> jax.Array:
        *_, steps, change = carry
        return (steps < max_steps) & (change > tolerance)

    first = start, expected(start), jnp.int32(0), jnp.float32(jnp.inf)
    confusion, posterior, *_ = jax.lax.while_loop(goes_on, step, first)
    return posterior, confusion


def change_probability(num_clients: int, num_public: int, rounds: int, rate: float) -> float:
    """delta: the bound on the probability that a consensus label changes after round t_0 = `rounds`.

    m = `num_clients` is 3 or more, |U| = `num_public`, c = `rate`. From 1 on the bound is vacuous.
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
    """The smallest t_0 after which labels change with a probability of at most `delta`."""
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
