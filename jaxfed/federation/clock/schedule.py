"""Rounds in simulated time: the clients that count in each of them, and the second at which it ends.

Synchronous rounds: the first `cohort_size` clients of a larger draw that finish count, and the last of them
or the deadline ends the round. Asynchronous rounds: `concurrency` clients train at a time, and a round ends
with the cohort_size-th arrival since the one before. `docs/time.md` has all rules.

A schedule depends only on the settings, the seed and the clients' sizes, not on a model. It is computed
before the first round: a resumed run computes it again, and checkpoints store no time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Generator, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from jaxfed.data.client_rows import sizes_of
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import Arrivals, FederatedAlgorithm
from jaxfed.federation.clients import Federation
from jaxfed.federation.clock.clients import Availability, availability_of, seconds_of
from jaxfed.federation.clock.settings import Clock
from jaxfed.federation.cohort import Cohort, emptied
from jaxfed.federation.rounds import CohortOf, Played
from jaxfed.federation.sampling import Sampling, strata_of
from jaxfed.random_streams import Stream

MOST_DRAWS = 1000  # draws of clients in a round of which nobody finishes, until the run is refused
_TRIES, _MORE = 16, 4  # rounds of further draws, and their number for each client that is missing


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


@dataclass(frozen=True)
class Schedule:
    """All rounds of a run in simulated time.

    Attributes:
        rounds: round t is `rounds[t - 1]`.
        cohort_size: largest number of clients in a round, to which cohorts are padded.
    """

    rounds: Sequence[Timed]
    cohort_size: int

    def cohorts(self, federation: Federation) -> CohortOf:
        """Return the function that makes cohorts: clients that count, and empty ones up to `cohort_size`."""

        def cohort_of(number: int) -> Cohort:
            clients = self.rounds[number - 1].clients
            counted = set(clients)
            others = (j for j in range(federation.num_clients) if j not in counted)
            filled = [*clients, *islice(others, self.cohort_size - len(clients))]
            return emptied(federation.cohort(filled), np.isin(filled, clients))

        return cohort_of

    def timed(self, played: Generator[Played]) -> Generator[Played]:
        """Add simulated time to the metrics of the rounds."""
        with closing(played):
            for one in played:
                yield one._replace(metrics={**one.metrics, **self.metrics(one.round)})

    def metrics(self, number: int) -> dict[str, float]:
        """Return the simulated time, the share of clients whose work was lost, and the mean staleness."""
        timed = self.rounds[number - 1]
        lost = (timed.ended - len(timed.clients)) / max(1, timed.ended)
        found = {"simulated_seconds": timed.seconds, "lost_share": lost}
        if timed.version:
            found["staleness"] = number - 1 - float(np.mean(timed.version))
        return found


def schedule_of(
    clock: Clock,
    algorithm: FederatedAlgorithm,
    federation: Federation,
    sampling: Sampling,
    seed: int,
    rounds: int,
    *,
    processed: Callable[[np.ndarray], np.ndarray] = lambda held: held,
) -> tuple[FederatedAlgorithm, Schedule | None]:
    """Return a method in simulated time, and the schedule of its rounds; None if the clock is off.

    Args:
        clock: speeds, availability, deadline, over-selection.
        algorithm: the method. One with asynchronous rounds receives their arrivals.
        federation: the clients.
        sampling: not "groups".
        seed: of the repeat.
        rounds: their number.
        processed: number of examples that a client trains on, int [M] -> that it processes in a round.

    Raises:
        UsageError: incompatible settings, an invalid table, a round in which no client
            finishes, or asynchronous rounds for which clients are too few.
    """
    course = algorithm.course
    if not clock.is_on:
        if course.asynchronous is not None:
            raise UsageError(
                f"the rounds of {algorithm.name or 'this method'} are asynchronous, in simulated time",
                key="seconds_per_example",
                owner="Clock",
                value=clock.seconds_per_example,
                allowed="set it, such as to 0.01",
            )
        return algorithm, None
    if course.check_participation is not None and clock.changes_cohorts:
        raise UsageError(
            f"the privacy guarantee of {algorithm.name or 'this method'} counts on cohorts that are drawn "
            "from all clients",
            key="clock",
            allowed="use availability='always', over_selection=1 and deadline=0",
        )
    if sampling.sampling == "groups":
        raise UsageError(
            "clients of a fixed turn may be away",
            key="sampling",
            value="groups",
            allowed="use 'uniform'",
        )
    if clock.over_selection > 1 and sampling.cohort_size in (0, federation.num_clients):
        raise UsageError(
            "all clients take part already",
            key="over_selection",
            owner="Clock",
            value=clock.over_selection,
            allowed="set a smaller cohort_size",
        )
    plan = _Plan(clock, algorithm, federation, sampling, seed, processed)
    if course.asynchronous is None:
        return algorithm, _synchronous(plan, rounds)
    schedule = _asynchronous(plan, course.asynchronous.concurrency, sampling, rounds)
    arrivals = [Arrivals(one.clients, one.version) for one in schedule.rounds]
    return course.asynchronous.of(arrivals)._replace(name=algorithm.name), schedule


class _Workers(NamedTuple):
    """Clients in rounds of one kind: training on given labels alone, or on all that they have.

    Fields:
        has_work: bool [M], True for those that have examples to train on.
        numbers: these clients, ascending.
        seconds: float64 [M], duration of each client's round.
        availability: with the starts of the windows of clients with work alone.
    """

    has_work: np.ndarray
    numbers: np.ndarray
    seconds: np.ndarray
    availability: Availability


class _Plan:
    """Draws of available clients at a simulated time, and the end of each one's work."""

    def __init__(
        self,
        clock: Clock,
        algorithm: FederatedAlgorithm,
        federation: Federation,
        sampling: Sampling,
        seed: int,
        processed: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        """Store the settings; arguments as for `schedule_of`."""
        self.clock, self.num_clients = clock, federation.num_clients
        self._sampling, self._federation, self._seed = sampling, federation, seed
        self._needs_labels = algorithm.course.needs_labels_in
        sizes = [sizes_of(kind) for kind in federation.partition]
        labeled = np.zeros_like(sizes[0]) if len(federation.server) else sizes[0]
        windows, everybody = availability_of(clock, self.num_clients, seed), range(self.num_clients)
        self._workers = {}
        for needs_labels, examples in ((True, labeled), (False, np.sum(sizes, axis=0))):
            numbers = np.flatnonzero(examples)
            seconds = seconds_of(clock, seed, np.array(everybody), processed(examples))
            self._workers[needs_labels] = _Workers(examples > 0, numbers, seconds, windows(numbers))

    def workers(self, number: int) -> _Workers:
        """Return the clients of a round, and which of them have work."""
        return self._workers[self._needs_labels(number)]

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
        rng, workers = np.random.default_rng((self._seed, *again)), self.workers(number)

        def is_free(clients: np.ndarray) -> np.ndarray:
            is_idle = np.array([client not in (busy or ()) for client in clients.tolist()], bool)
            return is_idle & (workers.availability.until(clients, time) > time)

        strata = self._strata(number, count)
        if busy is not None and len(workers.numbers) < self.num_clients:
            strata = [(workers.numbers, min(count, len(workers.numbers)))]
        found = [draw_free(rng, pool, wanted, is_free) for pool, wanted in strata]
        return np.sort(np.concatenate(found))

    def ends(self, clients: np.ndarray, number: int, time: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the times at which clients that begin now finish, and at which their work is lost."""
        workers = self.workers(number)
        lost = workers.availability.until(clients, time)
        if self.clock.deadline:
            lost = np.minimum(lost, time + self.clock.deadline)
        return time + workers.seconds[clients], lost

    def too_few(self, number: int, wanted: int = 1) -> UsageError:
        """Return the error for a round that fewer clients finish than `wanted`, the fewest that end it."""
        given = {"deadline": self.clock.deadline, "availability": self.clock.availability}
        limits = [f"{key}={value!r}" for key, value in given.items() if value not in (0, "always")]
        who = "nobody finishes" if wanted == 1 else f"fewer than {wanted} clients finish"
        workers = self.workers(number)
        return UsageError(
            f"{who} round {number} in {MOST_DRAWS} draws, with {', '.join(limits)}; the fastest takes "
            f"{workers.seconds[workers.numbers].min():.3g} s",
            key="seconds_per_example",
            owner="Clock",
            value=self.clock.seconds_per_example,
            allowed="allow more time or fewer seconds"
            + ", or a smaller cohort_size" * (wanted > 1),
        )

    def _strata(self, number: int, count: int) -> list[tuple[int | np.ndarray, int]]:
        sampling = self._sampling._replace(cohort_size=count)
        return strata_of(sampling, self._federation, needs_labels=self._needs_labels(number))


def draw_free(
    rng: np.random.Generator,
    pool: int | np.ndarray,
    count: int,
    is_free: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Draw `count` distinct free clients from a pool, uniformly; all free clients if there are fewer.

    Args:
        rng: the generator; if every client is free, the draw is `rng.choice(pool, count, replace=False)`.
        pool: numbers of clients, or the number of all clients.
        count: clients wanted.
        is_free: clients int [K] -> bool [K].

    Cost: O(count) if many are free, else one call of `is_free` for the whole pool.
    """
    first = rng.choice(pool, count, replace=False)
    chosen = first[is_free(first)].tolist()
    looked_at = set(first.tolist())
    size = pool if isinstance(pool, int) else len(pool)
    for _ in range(_TRIES):
        if len(chosen) == count or len(looked_at) == size:
            return np.array(chosen, np.int64)
        places = rng.integers(size, size=_MORE * (count - len(chosen)))
        more = places if isinstance(pool, int) else pool[places]
        fresh = np.array([c for c in dict.fromkeys(more.tolist()) if c not in looked_at], np.int64)
        looked_at.update(fresh.tolist())
        chosen += fresh[is_free(fresh)].tolist()[: count - len(chosen)]
    everybody = np.arange(size) if isinstance(pool, int) else pool
    left = everybody[is_free(everybody) & ~np.isin(everybody, chosen)]
    missing = min(count - len(chosen), len(left))
    others = rng.choice(left, missing, replace=False)
    return np.concatenate([np.array(chosen, np.int64), others.astype(np.int64)])


def _synchronous(plan: _Plan, rounds: int) -> Schedule:
    """Synchronous rounds, with over-selection and a deadline.

    A client has work in a round if it has examples to train on. Others may be drawn, as without simulated
    time: they exchange messages, never take the place of a client with work, and are never lost. A round
    without any client with work takes no time.
    """
    timed, time, most = [], 0.0, 1
    for number in range(1, rounds + 1):
        workers, wanted, lost = plan.workers(number), plan.size(number), 0
        most = max(most, wanted)
        if not len(workers.numbers):
            timed.append(Timed((), time, 0))
            continue
        drawn = min(plan.num_clients, math.ceil(wanted * plan.clock.over_selection))
        for repeat in range(MOST_DRAWS):
            clients = plan.draw(number, repeat, time, drawn)
            has_work = workers.has_work[clients]
            is_idle = len(clients) and not has_work.any()
            if is_idle:  # unless a client with work is available, and was not drawn
                is_idle = not (workers.availability.until(workers.numbers, time) > time).any()
            if not len(clients) or is_idle:
                time = workers.availability.next_start(time)
                continue
            counting, time = _finishers(plan, clients, number, time, wanted)
            lost += has_work.sum() - has_work[counting].sum()
            if has_work[counting].any() or not lost:
                break
        else:
            raise plan.too_few(number)
        counted = tuple(sorted(clients[counting].tolist()))
        timed.append(Timed(counted, time, len(counted) + int(lost)))
    return Schedule(timed, most)


def _finishers(
    plan: _Plan, clients: np.ndarray, number: int, time: float, wanted: int
) -> tuple[np.ndarray, float]:
    """Return the places of the drawn clients that count, and the end of the round."""
    finish, lost = plan.ends(clients, number, time)
    has_work = plan.workers(number).has_work[clients]
    wanted = min(wanted, len(clients))
    share = math.ceil(wanted * int(has_work.sum()) / len(clients))
    order = np.lexsort((clients, finish))
    in_time = order[finish[order] <= lost[order]]
    is_first = has_work[in_time]
    counting = np.append(in_time[is_first][:share], in_time[~is_first][: wanted - share])
    if len(counting) == wanted:
        return counting, float(finish[counting].max())
    if plan.clock.deadline:
        return counting, time + plan.clock.deadline
    return counting, float(np.minimum(finish, lost).max())


class _Event(NamedTuple):
    """End of one client's work; `version` is the number of server steps before it began."""

    end: float
    client: int
    version: int
    is_arrival: bool


def _asynchronous(plan: _Plan, concurrency: int, sampling: Sampling, rounds: int) -> Schedule:
    """Asynchronous rounds: a client that has arrived or is lost is replaced immediately by a free one.

    Arrivals of one instant come before their replacements. A client whose change waits in the buffer cannot
    begin again before the server's step. If fewer than `concurrency` clients have work, all of them train.
    """
    if sampling.sampling != "uniform":
        raise UsageError(
            f"concurrency={concurrency} replaces clients one by one",
            key="sampling",
            value=sampling.sampling,
            allowed="use 'uniform'",
        )
    size, time, num_workers = plan.size(1), 0.0, len(plan.workers(1).numbers)
    if not size <= min(concurrency, num_workers) or concurrency > plan.num_clients:
        raise UsageError(
            f"the server's step takes {size} arrivals, and {num_workers} clients have examples to train on",
            key="concurrency",
            value=concurrency,
            allowed=f"use {size} to {plan.num_clients}, or a smaller cohort_size",
        )
    training: list[_Event] = []
    busy: set[int] = set()  # clients that train, or whose change waits in the buffer
    timed = []
    for number in range(1, rounds + 1):
        arrived: list[_Event] = []
        lost = draws = 0
        while len(arrived) < size:
            if training and training[0].end <= time:
                event = heapq.heappop(training)
                if event.is_arrival:
                    arrived.append(event)
                else:
                    lost += 1
                    busy.remove(event.client)
                continue
            if lost + draws > MOST_DRAWS * concurrency:
                raise plan.too_few(number, size)
            missing = concurrency - len(training)
            if missing:
                clients = plan.draw(number, draws, time, missing, busy)
                draws += 1
                missing -= len(clients)
                finish, until = plan.ends(clients, number, time)
                for client, end, last in zip(clients, finish, until, strict=True):
                    event = _Event(
                        float(min(end, last)), int(client), number - 1, bool(end <= last)
                    )
                    heapq.heappush(training, event)
                    busy.add(event.client)
            ends = [training[0].end] if training else []
            starts = [plan.workers(number).availability.next_start(time)] if missing else []
            time = min([*ends, *starts])
        arrived.sort(key=lambda event: event.client)
        came = tuple(event.client for event in arrived)
        busy.difference_update(came)
        versions = tuple(event.version for event in arrived)
        timed.append(Timed(came, time, size + lost, versions))
    return Schedule(timed, size)
