"""When a run saves: every so many rounds, or by the clock at a bounded price.

By the clock a save is a copy of the state, for which the run waits, and its writing, for which it does not
(`jaxfed.host.checkpoint_writer`). With c seconds for the last copy, w for its writing and t since it,

    save after a round  if  t >= max((10 s - w) / 2, c / 3 %)  and nothing is being written

so that the run waits for saves 3 % of the time at most, and a process that is killed does at most ten
seconds of work again: (10 s - w) / 2 before a save is due, as much again for the round that then runs, and
w until the save counts. Where a round takes longer it is that round and its save. Beyond copies of 0.15 s
the 3 % win: one of a second comes every 33. Beyond a writing of 10/3 s one save follows the other, and up to
two of them and a round are lost. Nobody knows the first save's w: it is due as if its writing took 10/3 s,
the longest for which the ten seconds hold.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LARGEST_SHARE = 0.03  # of the time, that a run waits for saves
_MOST_LOST = 10.0  # seconds of work
_LONGEST_WRITING = _MOST_LOST / 3  # for which one is done when the next is due


class SaveSchedule:
    """Says after which rounds a run saves, from how long its saves take."""

    def __init__(self, every: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Every `every` rounds; 0 is by the clock, whose seconds `clock` tells."""
        self._every = every
        self._clock = clock
        self._copied_at = clock()
        self._copying, self._writing = 0.0, _LONGEST_WRITING  # seconds of the last save

    def is_due(self, round_number: int, *, is_last: bool) -> bool:
        """Whether to save after this round; `is_last` of its stage, where counting ends with a save."""
        if self._every:
            return is_last or round_number % self._every == 0
        since = self._clock() - self._copied_at
        return since >= max((_MOST_LOST - self._writing) / 2, self._copying / LARGEST_SHARE)

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Around what the run waits for; a save counts from its end."""
        started = self._clock()
        yield
        self._copied_at = self._clock()
        self._copying = self._copied_at - started

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Around what happens beside the run, in whatever thread."""
        started = self._clock()
        yield
        self._writing = self._clock() - started
