"""Draws of available clients at a simulated time, and the end of each one's work.

A client has work in a round if it has examples to train on. In rounds on given labels alone these are its
labeled ones, so clients without labels have none. With labels at the server no client has work there.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import cached_property
from typing import NamedTuple

import numpy as np

from jaxfed.data.client_rows import sizes_of
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.federation.clock.availability import Availability, availability_of
from jaxfed.federation.clock.draws import draw_free, seconds_of
from jaxfed.federation.clock.settings import Clock, Work
from jaxfed.federation.sampling import Sampling, strata_of
from jaxfed.random_streams import Stream

MOST_DRAWS = 1000  # draws of clients in a round of which nobody finishes, until the run is refused


class TrainedOn(NamedTuple):
    """Examples that clients train on in rounds of one kind: on all of them, or on labeled ones alone.

    Fields:
        examples: int64 [M], their number at each client.
        clients: the clients that have some, ascending.
        availability: with the starts of these clients' windows alone.
    """

    examples: np.ndarray
    clients: np.ndarray
    availability: Availability


class Plan:
    """Clients of a run in simulated time."""

    def __init__(
        self,
        clock: Clock,
        sampling: Sampling,
        federation: Federation,
        seed: int,
        needs_labels: Callable[[int], bool],
        work: Work,
    ) -> None:
        """Store the settings; arguments as for `schedule_of`."""
        self.clock, self._sampling, self._federation = clock, sampling, federation
        self._seed, self._needs_labels, self._work = seed, needs_labels, work
        self.availability: Availability = availability_of(clock, federation.num_clients, seed)

    def size(self, number: int) -> int:
        """Return the number of clients to draw in a round."""
        return sum(count for _, count in self._strata(number, self._sampling.cohort_size))

    def draw(
        self, number: int, repeat: int, time: float, count: int, busy: Set[int] | None = None
    ) -> np.ndarray:
        """Draw available clients, ascending; fewer than `count` if not enough are available.

        Args:
            number: number of the round; if every client is free, its first draw is `sample_clients`'s.
            repeat: number of earlier draws of this round.
            time: simulated seconds.
            count: clients wanted, by `sampling`; 0: all.
            busy: in asynchronous rounds, the clients that cannot begin; the others are drawn uniformly from
                those that have work. None: a draw of a synchronous round, in which some may have none.
        """
        again = (Stream.CLOCK_DRAWS, number, repeat) if repeat else (number,)
        rng = np.random.default_rng((self._seed, *again))

        def is_free(clients: np.ndarray) -> np.ndarray:
            is_idle = np.array([client not in (busy or ()) for client in clients.tolist()], bool)
            return is_idle & self._are_available(clients, time)

        strata = self._strata(number, count)
        with_work = self.with_work(number)
        if busy is not None and len(with_work) < self._federation.num_clients:
            strata = [(with_work, min(count, len(with_work)))]
        found = [draw_free(rng, pool, wanted, is_free) for pool, wanted in strata]
        return np.sort(np.concatenate(found))

    def ends(self, clients: np.ndarray, number: int, time: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the times at which clients that begin now finish, and at which their work is lost."""
        finish = time + self.seconds(clients, number)
        lost = self.availability.until(clients, time)
        if self.clock.deadline:
            lost = np.minimum(lost, time + self.clock.deadline)
        return finish, lost

    def seconds(self, clients: np.ndarray, number: int) -> np.ndarray:
        """Return the simulated duration of each client's work in a round, in seconds."""
        held = self._trained_on(number).examples[clients].tolist()
        examples = np.array([self._work.examples(each) for each in held], np.float64)
        return seconds_of(self.clock, self._seed, clients, examples)

    def has_work(self, clients: np.ndarray, number: int) -> np.ndarray:
        """Return the clients that have work in a round, as bool [K]."""
        return self._trained_on(number).examples[clients] > 0

    def with_work(self, number: int) -> np.ndarray:
        """Return the numbers of all clients that have work in a round, ascending."""
        return self._trained_on(number).clients

    def waits(self, number: int, time: float) -> bool:
        """Return True if clients have work in a round, and none of them is available."""
        with_work = self.with_work(number)
        return len(with_work) > 0 and not self._are_available(with_work, time).any()

    def next_start(self, number: int, time: float) -> float:
        """Return the next time at which the window of a client with work in a round begins; inf: never."""
        return self._trained_on(number).availability.next_start(time)

    def too_few(self, number: int, wanted: int = 1) -> UsageError:
        """Return the error for a round that fewer clients finish than `wanted`, the fewest that end it."""
        limits = [
            f"{name}={value!r}"
            for name, value in (
                ("deadline", self.clock.deadline),
                ("availability", self.clock.availability),
            )
            if value not in (0, "always")
        ]
        who = "nobody finishes" if wanted == 1 else f"fewer than {wanted} clients finish"
        return UsageError(
            f"{who} round {number} in {MOST_DRAWS} draws, with {', '.join(limits)}",
            key="seconds_per_example",
            owner="Clock",
            value=self.clock.seconds_per_example,
            allowed="allow more time or fewer seconds"
            + ", or a smaller cohort_size" * (wanted > 1),
        )

    def _trained_on(self, number: int) -> TrainedOn:
        return self._by_needs_labels[self._needs_labels(number)]

    @cached_property
    def _by_needs_labels(self) -> dict[bool, TrainedOn]:
        sizes = [sizes_of(kind) for kind in self._federation.partition]
        labeled = np.zeros_like(sizes[0]) if len(self._federation.server) else sizes[0]
        kinds = {True: labeled, False: np.sum(sizes, axis=0)}
        found = {}
        for needs_labels, examples in kinds.items():
            clients = np.flatnonzero(examples)
            found[needs_labels] = TrainedOn(examples, clients, self.availability.of(clients))
        return found

    def _are_available(self, clients: np.ndarray, time: float) -> np.ndarray:
        return self.availability.until(clients, time) > time

    def _strata(self, number: int, count: int) -> list[tuple[int | np.ndarray, int]]:
        sampling = self._sampling._replace(cohort_size=count)
        return strata_of(sampling, self._federation, needs_labels=self._needs_labels(number))
