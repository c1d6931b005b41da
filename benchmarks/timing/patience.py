"""Leave out peers that would take too long, by their times at fewer points.

A peer that took t_1 and t_2 seconds at the two largest sizes n_1 < n_2 so far is expected to take

    t_2 (n / n_2)^p,    p = log(t_2 / t_1) / log(n_2 / n_1), from 1 to 2

at n; after a single size p is 2, as for all pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchmarks.timing.contest import Contest


class Patience:
    """Times of peers by task, and the longest allowed time."""

    def __init__(self, most_seconds: float) -> None:
        self._most_seconds = most_seconds
        self._taken: dict[tuple[Any, ...], dict[int, float]] = {}

    def without_slow_peers(self, contest: Contest) -> tuple[Contest, dict[str, float]]:
        """The contest with the peers that are fast enough, and the others' expected seconds.

        If a peer solves a part of the task (`Contest.parts`), the limit is for that part.
        """
        expected = {name: self._expected(contest, name) for name in contest.peers}
        slow = {
            name: seconds
            for name, seconds in expected.items()
            if seconds * contest.parts.get(name, 1) > self._most_seconds
        }
        peers = {name: solve for name, solve in contest.peers.items() if name not in slow}
        return replace(contest, peers=peers), slow

    def remember(self, contest: Contest, median_seconds: Mapping[str, float]) -> None:
        """Record the peers' times for the whole task."""
        if n := contest.case.get("n"):
            for name in contest.peers:
                self._taken.setdefault(_key(contest, name), {})[n] = median_seconds[name]

    def _expected(self, contest: Contest, name: str) -> float:
        n = contest.case.get("n", 0)
        taken = self._taken.get(_key(contest, name), {})
        smaller = sorted(size for size in taken if size < n)
        if not smaller:
            return 0.0
        power, last = 2.0, smaller[-1]
        if len(smaller) > 1:
            before = smaller[-2]
            slope = math.log(taken[last] / taken[before]) / math.log(last / before)
            power = min(max(slope, 1.0), 2.0)
        return taken[last] * (n / last) ** power


def _key(contest: Contest, name: str) -> tuple[Any, ...]:
    """Key of a peer in a task, for any number of points."""
    rest = sorted((key, value) for key, value in contest.case.items() if key != "n")
    return (name, contest.task, *rest)
