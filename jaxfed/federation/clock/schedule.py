"""Simulated time of a run: the clients that count in each round, and the second at which it ends.

A schedule depends only on the settings, the seed and the clients' sizes, not on a model. It is computed
before the first round: a resumed run computes it again, and checkpoints store no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class Timed(NamedTuple):
    """One round of a schedule.

    Fields:
        clients: the clients that count, ascending.
        seconds: simulated time at which the round ends.
        ended: number of clients that count, or whose work was lost.
        version: in asynchronous rounds, the number of server steps before each client began; else ().
    """

    clients: tuple[int, ...]
    seconds: float
    ended: int
    version: tuple[int, ...] = ()


class Arrivals(NamedTuple):
    """Model changes that arrive in a round, and the stored models that their clients began with.

    Fields:
        client: int32 [K], their clients.
        slot: int32 [K], the stored model that each began with.
        staleness: int32 [K], number of server steps since then.
        store: slot for the model before this round; -1: no client begins with it.
        num_slots: number of stored models.
        exponent: changes are multiplied by (1 + staleness) ** -exponent.
    """

    client: np.ndarray
    slot: np.ndarray
    staleness: np.ndarray
    store: int
    num_slots: int
    exponent: float


@dataclass(frozen=True)
class Schedule:
    """All rounds of a run in simulated time.

    Attributes:
        rounds: round t is `rounds[t - 1]`.
        cohort_size: largest number of clients in a round, to which cohorts are padded.
        exponent: staleness exponent of asynchronous rounds; None: rounds are synchronous.
        slots: for each server step, the slot of its stored model, if some client begins with it.
    """

    rounds: Sequence[Timed]
    cohort_size: int
    exponent: float | None = None
    slots: Sequence[int] = ()

    def clients(self, number: int) -> tuple[int, ...]:
        """Return the clients of a round, ascending; rounds count from 1."""
        return self.rounds[number - 1].clients

    def metrics(self, number: int) -> dict[str, float]:
        """Return the simulated time, the share of clients whose work was lost, and the mean staleness."""
        timed = self.rounds[number - 1]
        lost = (timed.ended - len(timed.clients)) / max(1, timed.ended)
        found = {"simulated_seconds": timed.seconds, "lost_share": lost}
        if self.exponent is not None:
            found["staleness"] = number - 1 - float(np.mean(timed.version))
        return found

    def stored_at_first(self, algorithm: Any, state: Any) -> Any:
        """Return the stored models before the first round, all that of `state`; () if synchronous."""
        if self.exponent is None:
            return ()
        return algorithm.with_arrivals(state, (), self._arrivals(0)).stored

    def started(self, algorithm: Any, state: Any, stored: Any, number: int) -> Any:
        """Return the state that a round begins with, in asynchronous rounds with its arrivals."""
        if self.exponent is None:
            return state
        return algorithm.with_arrivals(state, stored, self._arrivals(number))

    def ended(self, state: Any) -> tuple[Any, Any]:
        """Return the state after a round without its stored models, and the stored models."""
        return (state, ()) if self.exponent is None else (state._replace(stored=()), state.stored)

    def _arrivals(self, number: int) -> Arrivals:
        """Return the arrivals of a round; round 0 has those of round 1."""
        assert self.exponent is not None
        timed = self.rounds[max(number, 1) - 1]
        version = np.array(timed.version, np.int32)
        return Arrivals(
            client=np.array(timed.clients, np.int32),
            slot=np.array([self.slots[v] for v in timed.version], np.int32),
            staleness=np.maximum(number - 1 - version, 0),
            store=self.slots[number - 1] if number else 0,
            num_slots=max(self.slots) + 1,
            exponent=self.exponent,
        )
