"""Simulated time: speeds and availability of clients, rounds with a deadline, asynchronous arrivals.

Synchronous rounds: the first `cohort_size` clients of a larger draw that finish count, and the last of them
or the deadline ends the round. Asynchronous rounds (`jaxfed.algorithms.fedbuff`): `concurrency` clients train
at a time, and a round ends with the cohort_size-th arrival since the one before. The work of a client that
leaves before it is done is lost. `docs/time.md` has all rules.

A schedule depends only on the settings, the seed and the clients' sizes, not on a model. It is computed
before the first round: a resumed run computes it again, and checkpoints store no time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Generator, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from jaxfed.data.client_rows import sizes_of
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import Arrivals, Course, FederatedAlgorithm
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort, emptied
from jaxfed.federation.rounds import CohortOf, Played
from jaxfed.federation.sampling import Sampling, strata_of
from jaxfed.random_streams import Stream
from jaxfed.settings import Allowed, Ge, NotNegative, check

HEADER = "client,from,to"  # of a table of windows
MOST_DRAWS = 1000  # draws of clients in a round of which nobody finishes, until the run is refused
_TRIES, _MORE = 16, 4  # rounds of further draws, and their number for each client that is missing
ALWAYS = "always"  # availability without a table
_ROUNDING = 1e-3  # seconds; a window that begins in less than this has begun


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Speeds and availability of clients, over-selection and deadline; off if `seconds_per_example` is 0.

    Attributes:
        seconds_per_example: simulated seconds of the median client for an example; 0: no simulated
            time, and no other key of the clock may be set.
        seconds_per_round: simulated seconds of the median client for the communication of a round.
        speed_spread: sigma of the lognormal distribution of both over clients; 0: equal speeds.
        availability: 'always', or a CSV file of client,from,to in seconds (`read_windows`).
        over_selection: clients drawn for a synchronous round, as a multiple of cohort_size; the first
            cohort_size that finish count.
        deadline: simulated seconds after which a client's work of a round is lost; 0: none.
    """

    seconds_per_example: NotNegative = 0.0
    seconds_per_round: NotNegative = 0.0
    speed_spread: NotNegative = 0.0
    availability: Annotated[str, Allowed(bool, "'always' or a CSV file")] = ALWAYS
    over_selection: Annotated[float, Ge(1)] = 1.0
    deadline: NotNegative = 0.0

    def __post_init__(self) -> None:
        """Check the fields; if `seconds_per_example` is 0 the others must have their defaults.

        Raises:
            UsageError: the first invalid field.
        """
        check(self)
        changed = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        if changed and not self.is_on:
            raise UsageError(
                "there is no simulated time with seconds_per_example=0",
                key=changed[0],
                owner="Clock",
                value=getattr(self, changed[0]),
                allowed="set seconds_per_example, such as 0.01",
            )

    @property
    def is_on(self) -> bool:
        """True if time is simulated."""
        return self.seconds_per_example > 0

    @property
    def changes_cohorts(self) -> bool:
        """True if the clients that count may be others than those that are drawn from all clients."""
        return self.availability != ALWAYS or self.over_selection > 1 or self.deadline > 0


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
        return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(
            np.float64
        ) * 2.0**-53 + 2.0**-54

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


class Windows(NamedTuple):
    """Times at which clients are available, by client and start, with time between those of one client.

    Fields:
        client: int64 [n].
        start, end: float64 [n], seconds.
    """

    client: np.ndarray
    start: np.ndarray
    end: np.ndarray


def read_windows(path: str, num_clients: int) -> Windows:
    """Read a table of windows, CSV with the header client,from,to; rows may be in any order.

    Rows of a client are one window where one begins as another ends.

    Raises:
        UsageError: the file is missing or empty, or has an invalid line, whose number is given.
    """

    def refused(wrong: str, line: int = 0) -> UsageError:
        where = f"line {line}: " if line else ""
        return UsageError(f"{where}{wrong}", key="availability", owner="Clock", value=path)

    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, RuntimeError, ValueError) as error:
        wrong = getattr(error, "strerror", None) or "no text in UTF-8"
        raise refused(f"{wrong}; use 'always' or a CSV file of {HEADER}") from None
    header, *lines = text.splitlines() or [""]
    if header != HEADER:
        raise refused(f"the first line of a table is {HEADER}")
    rows = []
    for number, line in enumerate(lines, 2):
        if not line:
            continue
        try:
            name, start, end = line.split(",")
            row = int(name), float(start), float(end), number
        except ValueError:
            raise refused(f"{line!r}; use a client's number and two numbers", number) from None
        if not 0 <= row[0] < num_clients:
            raise refused(f"client {row[0]} is unknown; use 0 to {num_clients - 1}", number)
        if not 0 <= row[1] < row[2] < np.inf:
            raise refused(f"from={start}, to={end}; use 0 or more, and to above from", number)
        rows.append(row)
    if not rows:
        raise refused("no window, so no client is ever available")
    windows: list[tuple[int, float, float]] = []
    for client, first, last, number in sorted(rows):
        if windows and windows[-1][0] == client and first <= windows[-1][2]:
            _, begin, until = windows.pop()
            if first < until:
                raise refused(f"client {client} has a window until {until:g} already", number)
            windows.append((client, begin, last))
        else:
            windows.append((client, first, last))
    return Windows(*map(np.array, zip(*windows, strict=True)))


class Availability:
    """Windows that repeat after the last end; a client without a window is never available."""

    def __init__(self, windows: Windows, clients: np.ndarray) -> None:
        """Store the windows; `clients` are those whose windows `next_start` considers.

        A window at the end of the table continues in the client's window at second 0, if it has one.
        """
        client, start, end = windows
        self._client, self._period = client, float(end.max())
        first = np.searchsorted(client, client)  # each client's first row
        goes_on = (end == self._period) & (start[first] == 0)
        is_always = goes_on & (first == np.arange(len(client)))
        self._end = np.where(is_always, np.inf, np.where(goes_on, end + end[first], end))
        self._starts = np.unique(start)
        # Client and start as one ascending number.
        self._rows = client * len(self._starts) + np.searchsorted(self._starts, start)
        self._begins = np.unique(start[~is_always & np.isin(client, clients)])

    def until(self, clients: np.ndarray, time: float) -> np.ndarray:
        """Return the end of each client's window at a time, float64 [K]; -inf for an unavailable client.

        Cost: O(K log n).
        """
        now = time % self._period
        now = 0.0 if self._period - now < _ROUNDING else now
        begun = np.searchsorted(self._starts, now + _ROUNDING, side="right")
        row = np.searchsorted(self._rows, clients * len(self._starts) + begun) - 1
        is_there = (row >= 0) & (self._client[row] == clients) & (self._end[row] - _ROUNDING > now)
        return np.where(is_there, time + self._end[row] - now, -np.inf)

    def next_start(self, time: float) -> float:
        """Return a later time at which some client's window begins; inf if there is none."""
        if not len(self._begins):
            return np.inf
        now = time % self._period
        place = np.searchsorted(self._begins, now + _ROUNDING, side="right")
        is_over = place == len(self._begins)
        start = self._period + self._begins[0] if is_over else self._begins[place]
        return float(time - now + start)


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
    plan = _Plan(clock, course, federation, sampling, seed, processed)
    if course.asynchronous is None:
        return algorithm, _synchronous(plan, rounds)
    schedule = _asynchronous(plan, course.asynchronous.concurrency, sampling, rounds)
    arrivals = [Arrivals(one.clients, one.version) for one in schedule.rounds]
    return course.asynchronous.of(arrivals)._replace(name=algorithm.name), schedule


class _Workers(NamedTuple):
    """Clients in rounds of one kind: training on given labels alone, or on all that they have."""

    has_work: np.ndarray  # bool [M]
    numbers: np.ndarray  # of clients with work, ascending
    seconds: np.ndarray  # float64 [M], duration of each client's round
    availability: Availability


@dataclass(frozen=True)
class _Plan:
    """Draws of available clients at a simulated time, and the end of each one's work.

    Fields as the arguments of `schedule_of`.
    """

    clock: Clock
    course: Course
    federation: Federation
    sampling: Sampling
    seed: int
    processed: Callable[[np.ndarray], np.ndarray]

    @cached_property
    def _workers(self) -> dict[bool, _Workers]:
        everybody = np.arange(self.federation.num_clients)
        windows = Windows(everybody, 0.0 * everybody, 0.0 * everybody + 1)
        if self.clock.availability != ALWAYS:
            windows = read_windows(self.clock.availability, len(everybody))
        labeled, *others = (sizes_of(kind) for kind in self.federation.partition)
        at_clients = labeled * (len(self.federation.server) == 0)
        found = {}
        for needs_labels, examples in ((True, at_clients), (False, sum(others, labeled))):
            numbers = np.flatnonzero(examples)
            seconds = seconds_of(self.clock, self.seed, self.processed(examples))
            there = Availability(windows, numbers)
            found[needs_labels] = _Workers(examples > 0, numbers, seconds, there)
        return found

    def workers(self, number: int) -> _Workers:
        return self._workers[self.course.needs_labels_in(number)]

    def size(self, number: int) -> int:
        """Return the number of clients to draw in a round."""
        return sum(count for _, count in self._strata(number, self.sampling.cohort_size))

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
        rng, workers = np.random.default_rng((self.seed, *again)), self.workers(number)

        def is_free(clients: np.ndarray) -> np.ndarray:
            is_idle = np.array([client not in (busy or ()) for client in clients.tolist()], bool)
            return is_idle & (workers.availability.until(clients, time) > time)

        strata = self._strata(number, count)
        if busy is not None and len(workers.numbers) < self.federation.num_clients:
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
        limits = [f"{key}={value!r}" for key, value in given.items() if value not in (0, ALWAYS)]
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
        sampling = self.sampling._replace(cohort_size=count)
        return strata_of(
            sampling, self.federation, needs_labels=self.course.needs_labels_in(number)
        )


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
        drawn = min(plan.federation.num_clients, math.ceil(wanted * plan.clock.over_selection))
        for repeat in range(MOST_DRAWS):
            clients = plan.draw(number, repeat, time, drawn)
            has_work = workers.has_work[clients]
            until = workers.availability.until
            if not (has_work.any() or (until(workers.numbers, time) > time).any()):
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
    if not size <= min(concurrency, num_workers) or concurrency > plan.federation.num_clients:
        raise UsageError(
            f"the server's step takes {size} arrivals, and {num_workers} clients have examples to train on",
            key="concurrency",
            value=concurrency,
            allowed=f"use {size} to {plan.federation.num_clients}, or a smaller cohort_size",
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
