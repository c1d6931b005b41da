"""Sparse graphs of clients: k neighbors each and a threshold t, for a stated probability of failure.

After Bell, Bonawitz, Gascon, Lepoint, Raykova (CCS 2020). Masks and shares between all pairs of n clients
cost each of them O(n). Between the k = O(log n) neighbors in a random graph they hide as much, as long as

    (a) no client has t or more colluders among its neighbors; they could open its secrets;
    (b) the honest clients that stay are connected; otherwise the server could open a sum over some of them;
    (c) every client keeps at least t neighbors that stay; otherwise its masks could not be removed.

The graph is Harary's on a random permutation of the clients: on a ring, each is joined to the k/2 next ones
on both sides. The neighbors of a client are then a uniform draw of k from the n - 1 others. Any c of the n
clients collude with the server and any d leave, chosen before the graph is drawn. Sufficient conditions are

    (a)  n P[X >= t] <= 2^-(sigma + 1),         X ~ Hypergeometric(n - 1, c, k)
    (b)  n (n - k - 1) / 2 C(n - k, c + d - k) / C(n, c + d) <= 2^-(sigma + 1)
    (c)  n P[Y < t] <= 2^-eta,                  Y ~ Hypergeometric(n - 1, n - 1 - d, k)

(b): clients that left or collude cut the ring in two only if they include two runs of k/2 adjacent ones.
`neighborhood` finds the smallest even k for which such a t exists, and the smallest t. The tails are exact up
to float64's rounding. For 30 % that leave and 5 % that collude, sigma = 40 and eta = 30:

    n         100   1,000   10,000   10^5   10^6   10^8
    k          28      76       92    100    108    120
    t           6      25       30     33     35     39

Cost: 10 ms, then cached.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np

from jaxfed.errors import UsageError
from jaxfed.secure.session.key_agreement import RandomBytes

_ROUNDING = 1e-9  # of a share times n
_LEAST_THRESHOLD = 2  # one share alone would be the secret
LEAST_CLIENTS = 3  # each with two neighbors


class Promise(NamedTuple):
    """Shares of colluding and leaving clients that a graph must withstand, and probabilities of failure.

    Fields:
        colluding: share of the clients that collude with the server, rounded up to whole clients.
        leaving: share of the clients that leave, at any stage, rounded down to whole clients.
        security_bits: sigma; with probability 2^-sigma, more than the sum over all that stay can be opened.
        correctness_bits: eta; with probability 2^-eta there is no sum.
    """

    colluding: float = 0.05
    leaving: float = 0.30
    security_bits: int = 40
    correctness_bits: int = 30

    def __str__(self) -> str:
        return (
            f"{self.colluding:.0%} colluding and {self.leaving:.0%} leaving at "
            f"2^-{self.security_bits} and 2^-{self.correctness_bits}"
        )


class Neighborhood(NamedTuple):
    """Number k of neighbors of a client, and number t of shares that open its secrets."""

    size: int
    threshold: int


class Graph(NamedTuple):
    """Neighbors by client, ascending, and the promise for which the graph was drawn."""

    neighbors: Mapping[int, Sequence[int]]
    threshold: int
    promise: Promise


PROMISE = Promise()


@lru_cache(maxsize=64)
def neighborhood(num_clients: int, size: int = 0, promise: Promise = PROMISE) -> Neighborhood:
    """The smallest k and t that keep the promise among n clients, or the smallest t for a given k.

    Args:
        num_clients: n.
        size: k; 0: the smallest. From n - 1 on the graph is complete.
        promise: what the graph must withstand.

    Raises:
        UsageError: shares outside [0, 1), or a k that is odd or too small for the promise.
    """
    for key, share in (("colluding", promise.colluding), ("leaving", promise.leaving)):
        if not 0 <= share < 1:
            raise UsageError(key=key, value=share, allowed="use shares from 0 to below 1")
    complete = num_clients - 1
    if size:
        size = min(size, complete)
        is_even = size % 2 == 0 or size == complete
        if is_even and (threshold := _threshold(num_clients, size, promise)):
            return Neighborhood(size, threshold)
        raise UsageError(
            f"too few, or odd, for {num_clients} clients, {promise}",
            key="mask_partners",
            value=size,
            allowed=f"use {neighborhood(num_clients, 0, promise).size} or more, even",
        )
    for size in chain(range(2, complete, 2), [complete]):
        if threshold := _threshold(num_clients, size, promise):
            return Neighborhood(size, threshold)
    raise UsageError(f"no graph of {num_clients} clients withstands {promise}")


def check_partners(
    num_clients: int, size: int, promise: Promise = PROMISE, *, owner: str = ""
) -> None:
    """Refuse a k too small for n clients; 0, or n - 1 and more, is the complete graph.

    Raises:
        UsageError: as for `neighborhood`, with the key `mask_partners` and its section.
    """
    if 0 < size < num_clients - 1:
        try:
            neighborhood(num_clients, size, promise)
        except UsageError as error:
            error.owner = owner
            raise


def enough_partners(num_clients: int, size: int, promise: Promise = PROMISE) -> int:
    """The k that was checked for more clients, or the smallest one if fewer clients need a larger k.

    The shares of n are rounded to whole clients, so the smallest k sometimes falls by two as n grows.
    """
    if 0 < size < num_clients - 1 and num_clients >= LEAST_CLIENTS:
        return max(size, neighborhood(num_clients, 0, promise).size)
    return size


def drawn_graph(
    clients: Iterable[int], size: int, random_bytes: RandomBytes, promise: Promise = PROMISE
) -> Graph:
    """Harary's graph on a random permutation of the clients; fewer than three have no neighbors."""
    ring = sorted(sorted(clients), key=lambda _: random_bytes(16))
    if len(ring) < LEAST_CLIENTS:
        return Graph(dict.fromkeys(ring, ()), _LEAST_THRESHOLD, promise)
    size, threshold = neighborhood(len(ring), size, promise)
    if size == len(ring) - 1:
        neighbors = {client: sorted(set(ring) - {client}) for client in ring}
    else:
        steps = [step for step in range(-(size // 2), size // 2 + 1) if step]
        neighbors = {
            client: sorted(ring[(position + step) % len(ring)] for step in steps)
            for position, client in enumerate(ring)
        }
    return Graph(neighbors, threshold, promise)


def is_connected(neighbors: Mapping[int, Sequence[int]], clients: Iterable[int]) -> bool:
    """True if the graph restricted to these clients is connected."""
    unseen = set(clients)
    waiting = [unseen.pop()] if unseen else []
    while waiting:
        reached = unseen.intersection(neighbors[waiting.pop()])
        unseen -= reached
        waiting.extend(reached)
    return not unseen


def _threshold(n: int, k: int, promise: Promise) -> int:
    """The smallest t that keeps the promise with this k; 0 if there is none."""
    colluders = math.ceil(promise.colluding * n - _ROUNDING)
    leaving = math.floor(promise.leaving * n + _ROUNDING)
    security = -(promise.security_bits + 1) - math.log2(n)
    if k < n - 1 and k <= colluders + leaving:
        cut = np.arange(k)  # log2 of P[k given positions on the ring are all cut]
        log_cut = np.sum(np.log2((colluders + leaving - cut) / (n - cut)))
        if log_cut + math.log2((n - k - 1) / 2) > security:
            return 0
    at_most = _log_tails(n - 1, n - 1 - colluders, k)  # t colluders or more: at most k - t others
    threshold = int(k - np.searchsorted(at_most, security, side="right")) + 1
    threshold = max(threshold, _LEAST_THRESHOLD)
    few = _log_tails(n - 1, n - 1 - leaving, k)
    correctness = -promise.correctness_bits - math.log2(n)
    return threshold if threshold <= k and few[threshold - 1] <= correctness else 0


def _log_tails(total: int, marked: int, draws: int) -> np.ndarray:
    """log2 of P[X <= x], X ~ Hypergeometric(total, marked, draws), x = 0 ... draws; -inf where it is 0.

    Computed from ratios of successive probabilities, normalized by their sum: no factorial of `total`.
    """
    first, last = max(0, draws - (total - marked)), min(draws, marked)
    x = np.arange(first, last, dtype=float)
    ratios = (marked - x) * (draws - x) / ((x + 1) * (total - marked - draws + x + 1))
    weights = np.concatenate([[0.0], np.cumsum(np.log2(ratios))])
    sums = np.logaddexp2.accumulate(weights)
    tails = np.full(draws + 1, -np.inf)
    tails[first : last + 1] = sums - sums[-1]
    tails[last + 1 :] = 0.0
    return tails
