"""When a run saves: every so many rounds, or by the clock at a bounded price.

By the clock, with s seconds for the last save and t seconds since it,

    save after a round  if  t >= max(5 s, s / 3 %)

so that saving takes 3 % of the time at most, and a process that is killed does at most ten seconds
of work again, or one round where a round takes longer. Where the two conflict, for states whose
saves take longer than 0.15 s, the 3 % win: a save of one second comes every 33. What a method leaves at
its end (its states and predictions) is written once, whatever the schedule, and is not among the 3 %.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LARGEST_SHARE = 0.03  # of the time, for saving
_SECONDS = 5.0  # half of what may be lost: the round that then runs may take as long


class SaveSchedule:
    """Says after which rounds a run saves, from how long its saves take."""

    def __init__(self, every: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Every `every` rounds; 0 is by the clock, whose seconds `clock` tells."""
        self._every = every
        self._clock = clock
        self._saved_at = clock()
        self._seconds = 0.0  # of the last save

    def is_due(self, round_number: int, *, is_last: bool) -> bool:
        """Whether to save after this round; `is_last` of its stage, where counting ends with a save."""
        if self._every:
            return is_last or round_number % self._every == 0
        since = self._clock() - self._saved_at
        return since >= max(_SECONDS, self._seconds / LARGEST_SHARE)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Around a save: it counts from its end, and its length sets when the next is due."""
        started = self._clock()
        yield
        self._saved_at = self._clock()
        self._seconds = self._saved_at - started
