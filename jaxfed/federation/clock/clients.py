"""Clients in simulated time: how long each takes, and when it is available.

Draws of a client depend only on its number and the seed, so draws for K clients cost O(K), however many there
are in all. Clients are available always, in a window of each day, or in the windows of a table. The work of a
client that leaves before it is done is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.clock.settings import BUILT_IN, Clock
from jaxfed.random_streams import Stream

DAY = 86400.0
HEADER = "client,from,to"
_ROUNDING = 1e-3  # seconds; a window that begins in less than this has begun
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def uniform(clients: np.ndarray, seed: int, stream: Stream, number: int) -> np.ndarray:
    """Return draw `number` from (0, 1) for each client, float64 [K].

    SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) with the client's number as the counter.
    """
    z = _key(seed, stream, number) + (np.asarray(clients).astype(np.uint64) + np.uint64(1)) * _STEP
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54


@cache
def _key(seed: int, stream: Stream, number: int) -> np.ndarray:
    return np.random.SeedSequence((seed, stream, number)).generate_state(1, np.uint64)


def normal(clients: np.ndarray, seed: int, stream: Stream, number: int) -> np.ndarray:
    """Return a standard normal draw for each client, float64 [K]; arguments as for `uniform`."""
    radius, angle = (uniform(clients, seed, stream, 2 * number + i) for i in range(2))
    return np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle)


def seconds_of(clock: Clock, seed: int, clients: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """Return the simulated seconds of each client's round, float64 [K].

        seconds_per_example exp(sigma z_1) examples + seconds_per_round exp(sigma z_2)

    z_1 and z_2 are fixed for each client, in all rounds; `examples` [K] is the number that each processes.
    """
    slowness = [
        np.exp(clock.speed_spread * normal(clients, seed, Stream.CLOCK_SPEEDS, i)) for i in range(2)
    ]
    messages = clock.seconds_per_round * slowness[1]
    return clock.seconds_per_example * slowness[0] * examples + messages


class Diurnal:
    """A window in every day, of the length `share`, around an hour of the client's own; with 1 all the time.

    Second 0 is midnight. The hour is the mean of two uniform draws from noon to noon: most clients are
    available at midnight, when devices idle and charge, and fewest at noon.
    """

    def __init__(self, share: float, seed: int, clients: np.ndarray) -> None:
        """Store the settings; `clients` are those whose windows `next_start` considers."""
        self._half, self._is_always = share * DAY / 2, share >= 1
        self._seed, self._clients = seed, clients

    def until(self, clients: np.ndarray, time: float) -> np.ndarray:
        """Return the end of each client's window at a time, float64 [K]; -inf for an unavailable client."""
        if self._is_always:
            return np.full(len(clients), np.inf)
        since = (time - self._centers(clients) + DAY / 2) % DAY - DAY / 2
        is_there = (since >= -self._half - _ROUNDING) & (since < self._half - _ROUNDING)
        return np.where(is_there, time + self._half - since, -np.inf)

    def next_start(self, time: float) -> float:
        """Return a later time at which some client's window begins; inf if there is none."""
        if self._is_always:
            return np.inf
        starts = self._centers(self._clients) - self._half
        return float(time + np.maximum((starts - time) % DAY, _ROUNDING).min(initial=np.inf))

    def _centers(self, clients: np.ndarray) -> np.ndarray:
        draws = [uniform(clients, self._seed, Stream.CLOCK_WINDOWS, i) for i in range(2)]
        return DAY * ((draws[0] + draws[1] + 1) / 2 % 1)


class Windows(NamedTuple):
    """Windows of a table, sorted by client and start, with time between those of one client.

    Fields:
        client: int64 [n].
        start, end: float64 [n], seconds.
    """

    client: np.ndarray
    start: np.ndarray
    end: np.ndarray


class Trace:
    """Windows from a table, which repeats after its last end. A client without a row is never available."""

    def __init__(self, windows: Windows, clients: np.ndarray) -> None:
        """Store the windows; `clients` are those whose windows `next_start` considers.

        A window at the end of the table continues in the client's window at second 0, if it has one.
        """
        client, start, end = windows
        self._client, self._period = client, float(end.max())
        first = np.searchsorted(client, client)  # each client's first row
        goes_on = (end == self._period) & (start[first] == 0)
        is_always = goes_on & (first == np.arange(len(client)))
        whole = np.where(goes_on, self._period + end[first], end)
        self._end = np.where(is_always, np.inf, whole)
        self._starts = np.unique(start)
        # Client and start as one ascending number.
        self._rows = client * len(self._starts) + np.searchsorted(self._starts, start)
        self._begins = np.unique(start[np.isin(client, clients)])

    def until(self, clients: np.ndarray, time: float) -> np.ndarray:
        """See `Diurnal`; O(K log n)."""
        now = time % self._period
        now = 0.0 if self._period - now < _ROUNDING else now
        begun = np.searchsorted(self._starts, now + _ROUNDING, side="right")
        row = np.searchsorted(self._rows, clients * len(self._starts) + begun) - 1
        is_there = (row >= 0) & (self._client[row] == clients) & (self._end[row] - _ROUNDING > now)
        return np.where(is_there, time + self._end[row] - now, -np.inf)

    def next_start(self, time: float) -> float:
        """See `Diurnal`; O(log n)."""
        if not len(self._begins):
            return np.inf
        now = time % self._period
        place = np.searchsorted(self._begins, now + _ROUNDING, side="right")
        is_over = place == len(self._begins)
        start = self._period + self._begins[0] if is_over else self._begins[place]
        return float(time - now + start)


Availability = Diurnal | Trace


def availability_of(
    clock: Clock, num_clients: int, seed: int
) -> Callable[[np.ndarray], Availability]:
    """Return the availability that a clock specifies: clients whose next window counts -> their windows.

    Raises:
        UsageError: the table is missing, or has an invalid line.
    """
    if clock.availability not in BUILT_IN:
        return partial(Trace, read_windows(clock.availability, num_clients))
    share = clock.online_share if clock.availability == "diurnal" else 1.0
    return partial(Diurnal, share, seed)


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
        raise refused(f"{wrong}; use 'always', 'diurnal' or a CSV file of {HEADER}") from None
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
    rows.sort()
    for (client, _, last, _), (other, first, _, number) in pairwise(rows):
        if client == other and first < last:
            raise refused(f"client {client} has a window until {last:g} already", number)
    clients, starts, ends, _ = (np.array(column) for column in zip(*rows, strict=True))
    goes_on = (clients[1:] == clients[:-1]) & (starts[1:] == ends[:-1])
    begins, is_last = np.append(True, ~goes_on), np.append(~goes_on, True)
    return Windows(clients[begins], starts[begins], ends[is_last])
