"""Agreement on labels of public examples: votes and tallies, and sums over a round's clients under masks.

Consensus: one label for each public example from the clients' answers (FedCT, Algorithm 1, line 11).

Client k of K answers example u with a label v_ku, or probabilities p_ku [C]. The rules need only a tally,
the sum over clients of one row each. A secure sum reveals nothing else:

    majority              t_uc = #{k : v_ku = c}                         label = argmax_c t_uc
    qualified majority    the same; abstains unless t_uc / sum_c' t_uc' >= threshold for the label
    mean                  t_uc = sum_k p_kuc                             label = argmax_c t_uc

The paper's consensus is the plain majority, every label with weight 1. Ties go to the smallest class, as in
the authors' code. A qualified majority is commented out there, at 0.8 and 0.9.

    agreed = largest_share(vote_histogram(votes, client_id, num_classes), threshold=0.8)

A client with id -1, a label -1, and a row of zeros as probabilities count as no answer. An example without
any answer has label -1 and weight 0.

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
    accuracy is a mean, and clients that learn from the same labels err on the same examples.
  * 1 - c / t must be 1/2 or more from t_0 + 1 on: t_0 + 1 >= 2 c.

Sums over the clients of one round, in the clear or under masks:

    total = in_fresh_session(vote_histogram, own, communication, is_resilient=True)
    total = summed_answers(answers, voters, "masked", communication)

A sum in the clear shows the server each client's part. Under masks it learns the sum alone; that needs at
least two clients, since one client's sum is its answers.

Dropout during a masked sum is planned by

    fedct.presence = ("3@upload", "4@survivors")

in every round: client 3, if it takes part, leaves before its upload, and client 4 after its own. The stages,
and the effect of leaving at each:

    setup        before it has keys: the sum is over the others
    upload       before its upload: likewise; `masked` starts another round without it
    survivors    after its upload, `masked_resilient` alone: its answers are in the sum if enough clients
                 stay to remove its masks, else another round starts without it (with `mask_partners`
                 there is no sum then)
    sums         after the sum is complete: its answers are in the sum

If fewer than two clients stay there is no sum. A client that left is back in the next round, and has the
consensus by then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import zeta

from jaxfed.errors import UsageError
from jaxfed.federation.communication import Communication
from jaxfed.secure.session import channel
from jaxfed.secure.session.channel import Departure, Presence, Stage, presence_of
from jaxfed.settings import Share

ABSTAINED = -1
_ROUNDING = 1e-6  # relative tolerance of shares: 4 of 5 reach 0.8 on every backend


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


ConsensusSums = Literal["plaintext", "masked", "masked_resilient"]
R = TypeVar("R")

STAGES: dict[str, Stage] = {
    "setup": ("receive", "invite", "sums under masks"),
    "survivors": ("receive", "survivors", "sums='masked_resilient'"),
    "sums": ("receive", "sums", "sums under masks"),
    "upload": ("send", "upload", "sums under masks"),
}


def fewest_clients(sums: ConsensusSums) -> int:
    """Least number of clients in a sum: 2 under masks, so that it reveals no single client's answers."""
    return 1 if sums == "plaintext" else 2


def in_fresh_session(
    protocol: Callable[..., R], inputs: Sequence[Any], communication: Communication, **settings: Any
) -> R:
    """Run a secure protocol, (session, {address: input}, **settings), among simulated clients.

    The session is new, with keys from the system; all its bytes are counted, its setup included.
    """
    from jaxfed.secure.session.parties import Session

    session = Session(len(inputs))
    result = protocol(session, dict(enumerate(inputs)), **settings)
    communication.add(session.communication())
    return result


def summed_answers(
    answers: np.ndarray, client_id: np.ndarray, sums: ConsensusSums, communication: Communication
) -> np.ndarray:
    """Sum the clients' probabilities or scores, float32 [n, C] of [K, n, C]; `client_id` -1: no client.

    All protocols give the same up to 2^-41 per client and float32 rounding. Zeros if a masked sum has fewer
    than two clients; nothing is sent then.
    """
    rows = np.flatnonzero(np.asarray(client_id) >= 0)
    if sums == "plaintext":
        communication.up("votes", answers[rows].nbytes)
        return np.asarray(summed_probabilities(jnp.asarray(answers), jnp.asarray(client_id)))
    from jaxfed.secure.row_sums.server_sums import server_sums

    nothing = np.zeros(answers.shape[1:], np.float32)
    if len(rows) < fewest_clients(sums):
        return nothing
    is_resilient = sums == "masked_resilient"
    total = in_fresh_session(
        server_sums, list(answers[rows]), communication, is_resilient=is_resilient
    )
    return nothing if total is None else total.astype(np.float32)


class Attendance:
    """Planned departures and final outcome among the clients of one masked sum.

    Clients go by `client_id`, int32 [K], the federation's ids; -1 in rows without one.
    `summed` and `left` are the ids of the clients in the sum, and of those that left, once `note` is called.
    """

    def __init__(self, client_id: np.ndarray, departures: Sequence[Departure]) -> None:
        ids = np.asarray(client_id, np.int32)
        self._ids, self._departures = ids[ids >= 0], departures
        self.summed, self.left = self._ids, self._ids[:0]

    def presence(self) -> Presence:
        """Return the presence for a session whose addresses 0, 1, ... are the participants, in order."""
        return presence_of(self._departures, self._ids.tolist(), STAGES)

    def note(self, summed: Collection[int], left: Collection[int]) -> None:
        """Record the outcome: addresses of the clients in the sum, and of those that left."""
        self.summed, self.left = self._ids[list(summed)], self._ids[list(left)]


def departures_of(entries: Sequence[str], sums: str, key: str, owner: str = "") -> list[Departure]:
    """Parse the departures listed in setting `key`, and check that `sums` has their stages."""
    departures = channel.departures_of(entries, STAGES, key, owner)
    for departure in departures:
        exists = sums == "masked_resilient" or (sums == "masked" and departure.stage != "survivors")
        if not exists:
            raise UsageError(
                f"stage {departure.stage!r} needs {STAGES[departure.stage][2]}; sums={sums!r}",
                key=key,
                owner=owner,
                value=tuple(entries),
            )
    return departures


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
    high = max(0, math.ceil(2 * rate) - 1)
    low = high - 1
    while change_probability(num_clients, num_public, high, rate) > delta:
        low, high = high, 2 * high + 2
    while high - low > 1:
        middle = (low + high) // 2
        is_enough = change_probability(num_clients, num_public, middle, rate) <= delta
        low, high = (low, middle) if is_enough else (middle, high)
    return high


def _check(num_clients: int, num_public: int, rate: float) -> None:
    if num_clients < 3 or num_public < 1 or not (rate > 0 and math.isfinite(rate)):
        raise UsageError(
            f"num_clients={num_clients}, num_public={num_public}, rate={rate}: use m >= 3, |U| >= 1, "
            "c > 0"
        )
