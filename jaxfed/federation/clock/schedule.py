"""Simulated time of a run: the clients that count in each round, and the second at which it ends.

A schedule depends on the settings, the seed and the clients' sizes alone, not on a model. It is made before
the first round, so a resumed run has it again and a checkpoint stores no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class Timed(NamedTuple):
    """One round of a schedule.

    Fields:
        clients: those that count, ascending.
        seconds: simulated time at which the round ends.
        ended: number of clients that have finished or been lost in it.
        version: of an asynchronous round, the number of server steps before each client began; else ().
    """

    clients: tuple[int, ...]
    seconds: float
    ended: int
    version: tuple[int, ...] = ()


class Arrivals(NamedTuple):
    """Changes that arrive in a round, and the stored models that they began with.

    Fields:
        client: int32 [K], their clients.
        slot: int32 [K], the stored model that each began with.
        staleness: int32 [K], server steps since then.
        store: slot of the model before this round; -1: nobody begins with it.
        num_slots: number of stored models.
        exponent: a change counts (1 + staleness) ** -exponent times.
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
        exponent: of staleness, in asynchronous rounds; None: rounds are synchronous.
        slots: the stored model of each server step that some client begins with.
    """

    rounds: Sequence[Timed]
    cohort_size: int
    exponent: float | None = None
    slots: Sequence[int] = ()

    def clients(self, number: int) -> tuple[int, ...]:
        """Return the clients of a round, from 1, ascending."""
        return self.rounds[number - 1].clients

    def metrics(self, number: int) -> dict[str, float]:
        """Return simulated time, the share of clients whose work was lost, and the mean staleness."""
        timed = self.rounds[number - 1]
        lost = (timed.ended - len(timed.clients)) / timed.ended
        found = {"simulated_seconds": timed.seconds, "lost_share": lost}
        if self.exponent is not None:
            found["staleness"] = number - 1 - float(np.mean(timed.version))
        return found

    def stored_at_first(self, algorithm: Any, state: Any) -> Any:
        """Return the stored models before the first round, all of them that of `state`; () if synchronous."""
        if self.exponent is None:
            return ()
        return algorithm.with_arrivals(state, (), self._arrivals(0)).stored

    def started(self, algorithm: Any, state: Any, stored: Any, number: int) -> Any:
        """Return the state that a round begins with: in asynchronous ones with its arrivals."""
        if self.exponent is None:
            return state
        return algorithm.with_arrivals(state, stored, self._arrivals(number))

    def ended(self, state: Any) -> tuple[Any, Any]:
        """Return the state after a round without stored models, and these."""
        return (state, ()) if self.exponent is None else (state._replace(stored=()), state.stored)

    def _arrivals(self, number: int) -> Arrivals:
        """Return the arrivals of a round; round 0 has those of the first."""
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
