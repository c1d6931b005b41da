"""Simulated time: speeds of clients, synchronous rounds, asynchronous arrivals.

The slowest client of a cohort ends a synchronous round. Asynchronous rounds (`jaxfed.algorithms.fedbuff`):
`concurrency` clients train at a time; a round ends with the cohort_size-th arrival since the one before.
`docs/time.md` has all rules.

A schedule depends only on the settings, the seed and the clients' sizes, not on a model. It is computed
before the first round: a resumed run computes it again, and checkpoints store no time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np

from jaxfed.data.client_rows import ClientRows
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import FederatedAlgorithm, attribute_of
from jaxfed.federation.clients import Federation
from jaxfed.federation.rounds import CohortOf, Played, Sampling, needs_labels_in, sample_clients
from jaxfed.random_streams import Stream
from jaxfed.settings import Gt, NotNegative, check, when

_ON = when("seconds_per_example", Gt(0))


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Speeds of clients; off if `seconds_per_example` is 0.

    Attributes:
        seconds_per_example: simulated seconds of the median client for an example; 0: no simulated
            time.
        seconds_per_round: simulated seconds of the median client for the communication of a round.
        speed_spread: sigma of the lognormal distribution of both over clients; 0: equal speeds.
    """

    seconds_per_example: NotNegative = 0.0
    seconds_per_round: Annotated[NotNegative, _ON] = 0.0
    speed_spread: Annotated[NotNegative, _ON] = 0.0

    def __post_init__(self) -> None:
        check(self)

    @property
    def is_on(self) -> bool:
        """True if time is simulated."""
        return self.seconds_per_example > 0


def standard_normal(clients: np.ndarray, seed: int, number: int) -> np.ndarray:
    """Return draw `number` of each client's speed, float64 [K]: of its number and the seed alone.

    Box-Muller of two uniform draws by SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), with the client's number
    as the counter.
    """

    def uniform(number: int) -> np.ndarray:
        sequence = np.random.SeedSequence((seed, Stream.CLOCK_SPEEDS, number))
        z = sequence.generate_state(1, np.uint64)
        z = z + (clients.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits = (z ^ (z >> np.uint64(31))) >> np.uint64(11)
        return bits.astype(np.float64) * 2.0**-53 + 2.0**-54

    return np.sqrt(-2 * np.log(uniform(2 * number))) * np.cos(2 * np.pi * uniform(2 * number + 1))


def seconds_of(clock: Clock, seed: int, examples: np.ndarray) -> np.ndarray:
    """Return the simulated seconds of each client's round, float64 [M].

        seconds_per_example exp(sigma z_1) examples + seconds_per_round exp(sigma z_2)

    z_1 and z_2 are fixed for each client, in all rounds; `examples` [M] is the number that each processes.
    """
    clients = np.arange(len(examples))
    slowness = [np.exp(clock.speed_spread * standard_normal(clients, seed, i)) for i in range(2)]
    messages = clock.seconds_per_round * slowness[1]
    return clock.seconds_per_example * slowness[0] * examples + messages


class Timed(NamedTuple):
    """One round in simulated time.

    Fields:
        clients: the clients whose updates the server's step takes, ascending.
        seconds: simulated time at which the round ends.
        version: in asynchronous rounds, the number of server steps before each client began; else ().
    """

    clients: tuple[int, ...]
    seconds: float
    version: tuple[int, ...] = ()


class Asynchronous(NamedTuple):
    """The attribute `asynchronous` of a round whose server does not wait for a whole cohort.

    Number of clients that train at a time; schedule of all rounds -> their method; that without a schedule.
    """

    concurrency: int
    of: Callable[[Sequence[Timed]], FederatedAlgorithm]
    plain: FederatedAlgorithm


@dataclass(frozen=True)
class Schedule:
    """All rounds of a run in simulated time; round t is `rounds[t - 1]`."""

    rounds: Sequence[Timed]

    def cohorts(self, federation: Federation) -> CohortOf:
        """Return the function that makes the cohorts of the clients that count."""
        return lambda number: federation.cohort(self.rounds[number - 1].clients)

    def timed(self, played: Generator[Played]) -> Generator[Played]:
        """Add simulated time to the metrics of the rounds."""
        with closing(played):
            for one in played:
                yield one._replace(metrics={**one.metrics, **self.metrics(one.round)})

    def metrics(self, number: int) -> dict[str, float]:
        """Return the simulated time, and the mean staleness of asynchronous rounds."""
        timed = self.rounds[number - 1]
        metrics = {"simulated_seconds": timed.seconds}
        if timed.version:
            metrics["staleness"] = number - 1 - float(np.mean(timed.version))
        return metrics


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

    A method with asynchronous rounds receives their schedule. `processed` maps the numbers of examples that
    clients train on, int [M], to those that they process in a round.

    Raises:
        UsageError: incompatible settings, or asynchronous rounds for which clients are too few.
    """
    asynchronous: Asynchronous | None = attribute_of(algorithm.round, "asynchronous")
    if not clock.is_on:
        if asynchronous is not None:
            raise UsageError(
                f"the rounds of {algorithm.name or 'this method'} are asynchronous, in simulated time",
                key="seconds_per_example",
                owner="Clock",
                value=clock.seconds_per_example,
                allowed="set it, such as to 0.01",
            )
        return algorithm, None
    workers = _Workers(clock, algorithm, federation, seed, processed)
    if asynchronous is None:
        return algorithm, Schedule(_synchronous(workers, sampling, rounds))
    if [*map(_bare, algorithm[:2])] != [*map(_bare, asynchronous.plain[:2])]:
        named = algorithm.name or "this method"
        wrong = f"asynchronous rounds of {named} would leave out what replaces its init or round"
        raise UsageError(f"{wrong}; wrap what `schedule_of` returns")
    timed = _asynchronous(workers, asynchronous.concurrency, sampling, rounds)
    scheduled = asynchronous.of(timed)
    return algorithm._replace(init=scheduled.init, round=scheduled.round), Schedule(timed)


def _bare(function: Any) -> Any:
    """Return a function of a method without what `with_attributes` puts around it."""
    is_outer = isinstance(function, partial) and not (function.args or function.keywords)
    return _bare(function.func) if is_outer else function


class _Workers:
    """Clients with work in a round, and its duration for each: on given labels alone, or on all examples."""

    def __init__(
        self,
        clock: Clock,
        algorithm: FederatedAlgorithm,
        federation: Federation,
        seed: int,
        processed: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        self.federation, self.seed = federation, seed
        self._needs_labels = partial(needs_labels_in, algorithm)
        labeled, *others = (ClientRows.of(kind).sizes for kind in federation.partition)
        at_clients = labeled * (len(federation.server) == 0)
        self._rounds = [
            (examples > 0, seconds_of(clock, seed, processed(examples)))
            for examples in (sum(others, labeled), at_clients)
        ]

    def in_round(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return bool [M], which clients have work, and float64 [M], the seconds that each takes."""
        return self._rounds[self._needs_labels(number)]

    def drawn(self, sampling: Sampling, number: int) -> np.ndarray:
        """Return the clients of a round as without simulated time."""
        needs = self._needs_labels(number)
        drawn = sample_clients(sampling, self.federation, self.seed, number, needs_labels=needs)
        return np.array(drawn)


def draw_free(
    rng: np.random.Generator, pool: int | np.ndarray, count: int, busy: Collection[int]
) -> list[int]:
    """Draw `count` distinct clients that are not `busy` from a pool, uniformly; all free ones if fewer.

    `pool` has the numbers of clients, or is the number of all. Cost: O(count + the number of busy ones).
    """
    size = pool if isinstance(pool, int) else len(pool)
    drawn = rng.choice(pool, min(size, count + len(busy)), replace=False).tolist()
    return [client for client in drawn if client not in busy][:count]


def _synchronous(workers: _Workers, sampling: Sampling, rounds: int) -> list[Timed]:
    """Synchronous rounds of the cohorts that are drawn without simulated time.

    A client without work exchanges messages alone; a round in which no client at all has work takes no time.
    """
    timed, time = list[Timed](), 0.0
    for number in range(1, rounds + 1):
        has_work, seconds = workers.in_round(number)
        clients = workers.drawn(sampling, number)
        if has_work.any():
            time = float(time + seconds[clients].max())
        timed.append(Timed(tuple(clients.tolist()), time))
    return timed


class _Event(NamedTuple):
    """Arrival of one client; `version` is the number of server steps before it began."""

    end: float
    client: int
    version: int


def _asynchronous(
    workers: _Workers, concurrency: int, sampling: Sampling, rounds: int
) -> list[Timed]:
    """Asynchronous rounds: a client that has arrived is replaced immediately by a free one.

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
    num_clients, num_workers = workers.federation.num_clients, int(workers.in_round(1)[0].sum())
    size = len(workers.drawn(sampling, 1))
    if not size <= min(concurrency, num_workers) or concurrency > num_clients:
        raise UsageError(
            f"the server's step takes {size} arrivals, and {num_workers} clients have examples to train on",
            key="concurrency",
            value=concurrency,
            allowed=f"use {size} to {num_clients}, or a smaller cohort_size",
        )
    training: list[_Event] = []
    busy: set[int] = set()  # clients that train, or whose change waits in the buffer
    timed, time = list[Timed](), 0.0
    for number in range(1, rounds + 1):
        has_work, seconds = workers.in_round(number)
        pool: int | np.ndarray = num_clients if has_work.all() else np.flatnonzero(has_work)
        arrived: list[_Event] = []
        draws = 0
        while len(arrived) < size:
            if training and training[0].end <= time:
                arrived.append(heapq.heappop(training))
                continue
            if missing := concurrency - len(training):
                again = (Stream.CLOCK_DRAWS, number, draws) if draws else (number,)
                missing = min(missing, int(has_work.sum()))
                rng = np.random.default_rng((workers.seed, *again))
                draws += 1
                for client in sorted(draw_free(rng, pool, missing, busy)):
                    event = _Event(float(time + seconds[client]), client, number - 1)
                    heapq.heappush(training, event)
                    busy.add(client)
            time = training[0].end
        arrived.sort(key=lambda event: event.client)
        came = tuple(event.client for event in arrived)
        busy.difference_update(came)
        timed.append(Timed(came, time, tuple(event.version for event in arrived)))
    return timed
