"""Schedule of checkpoints: every N rounds, or by the clock with bounded overhead.

By the clock, the run waits for the copy of the state but not for its writing
(`jaxfed.host.checkpoint_writer`). With c seconds for the last copy, w for its writing and t since it,

    save after a round  if  t >= max((10 s - w) / 2, c / 3 %)  and nothing is being written

The run thus waits for saves at most 3 % of the time. A killed process loses at most ten seconds of work:
(10 s - w) / 2 before a save is due, the same again for the current round, and w until the save is complete.
If a round takes longer, that round and its save are lost. For copies above 0.15 s the 3 % limit dominates: a
copy of one second is made every 33. For a writing above 10/3 s saves follow each other without a pause, and
up to two of them and a round are lost. The first save's w is unknown; it is assumed to be 10/3 s, the
largest for which the ten seconds hold.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LARGEST_SHARE = 0.03  # of the time spent waiting for saves
_MOST_LOST = 10.0  # seconds of work
_LONGEST_WRITING = _MOST_LOST / 3  # so that one ends when the next is due


class SaveSchedule:
    """Decides after which rounds a run saves, from the duration of its saves."""

    def __init__(self, every: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Save every `every` rounds; 0 is by the clock, with seconds from `clock`."""
        self._every = every
        self._clock = clock
        self._copied_at = clock()
        self._copying, self._writing = 0.0, _LONGEST_WRITING  # seconds of the last save

    def is_due(self, round_number: int, *, is_last: bool) -> bool:
        """True if a save is due after this round; `is_last`: the last of its stage, always saved with N."""
        if self._every:
            return is_last or round_number % self._every == 0
        since = self._clock() - self._copied_at
        return since >= max((_MOST_LOST - self._writing) / 2, self._copying / LARGEST_SHARE)

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Time the copy, for which the run waits; the time since a save starts at its end."""
        started = self._clock()
        yield
        self._copied_at = self._clock()
        self._copying = self._copied_at - started

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Time the writing, in any thread."""
        started = self._clock()
        yield
        self._writing = self._clock() - started
