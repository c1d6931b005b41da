"""Write checkpoints on a schedule, in the background while the run continues.

    the run       round k | copy the state | round k + 1 | round k + 2 | ...
    its writer                             | serialize, checksum, fsync, rename

With saves by the clock the run waits only for the copy: NumPy arrays that later rounds cannot change. A
thread writes it, one save at a time and without a queue; a save that falls due meanwhile waits for the end of
a round at which the writer is idle. After a kill at any instant either the previous save or this one is
complete. The copy takes 0.3 s for a GB, and host memory for one more state until it is written. Writing takes
two to eight times as long, on another core if one is free: at most a quarter of a core under the schedule.

Every N rounds, at the end, and after a request to stop, a save is complete when `save` returns.

Schedule
--------
A run saves every N rounds, or by the clock, with c seconds for the last copy and t since it:

    save after a round  if  t >= max(10 s / 3, c / 3 %)  and nothing is being written

The run thus waits for saves at most 3 % of the time. A killed process loses at most ten seconds of work: 10/3
before a save is due, the same again for the current round, and for its writing. If a round takes longer, that
round and its save are lost. For copies above 0.1 s the 3 % limit dominates: a copy of one second is made
every 33. For a writing above 10/3 s up to two of them and a round are lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Self

from absl import logging

from jaxfed.host.checkpoint import Checkpoints, RunRecord, copied_leaves

LARGEST_SHARE = 0.03  # of the time spent waiting for saves
_MOST_LOST = 10.0  # seconds of work


class CheckpointWriter:
    """Saves a run's states on a schedule; exit waits for a save in progress.

        with CheckpointWriter(checkpoints, every) as saves:
            for number in rounds:
                state = advance(state)
                if saves.are_due(number, is_last=number == rounds[-1]):
                    saves.save(number, state, {"round": number})

    A failed save raises its error at the next call of `are_due`, `save` or `join`, or at exit. If the run
    exits with an exception of its own, that one is raised and the failure is logged, unless the run's own
    is also an error of the disk.
    """

    def __init__(
        self, checkpoints: Checkpoints, every: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Write into `checkpoints`, as the only writer, every `every` rounds; 0 is by the clock."""
        self._checkpoints, self._every, self._clock = checkpoints, every, clock
        self._copied_at, self._copying = clock(), 0.0  # the end of the last copy, its seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._in_flight: Future[None] | None = None

    def are_due(self, round_number: int, *, is_last: bool) -> bool:
        """True if a save is due after this round, and none is being written; raises a failed save's error.

        `is_last`: the last round of its stage, always saved with N.
        """
        if self._in_flight is not None:
            if not self._in_flight.done():
                return False
            self.join()
        if self._every:
            return is_last or round_number % self._every == 0
        since = self._clock() - self._copied_at
        return since >= max(_MOST_LOST / 3, self._copying / LARGEST_SHARE)

    def save(self, step: int, state: Any, progress: RunRecord, *, at_once: bool = False) -> None:
        """Save a state and a record of progress as they are now (`Checkpoints.save`).

        Waits for the previous save if it is still being written. The state may be changed or donated as
        soon as this returns. With `at_once` the save is complete then, also by the clock.

        Raises:
            OSError: this save or the previous one has failed; earlier ones are unchanged.
        """
        self.join()
        if at_once or self._every:
            self._checkpoints.save(step, state, progress)
            return
        started = self._clock()
        leaves = copied_leaves(state)
        self._copied_at = self._clock()
        self._copying = self._copied_at - started
        self._in_flight = self._thread.submit(self._checkpoints.write, step, leaves, progress)

    def join(self) -> None:
        """Wait until nothing is being written; raises a failed save's error."""
        if self._in_flight is not None:
            wait([self._in_flight])  # still in flight if a signal ends this
            written, self._in_flight = self._in_flight, None
            written.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, exception: BaseException | None, trace: object) -> None:
        try:
            self.join()
        except Exception as failure:
            if exception is None:
                raise
            if not isinstance(exception, OSError):
                logging.warning("the last save has failed: %s", failure)
        finally:
            self._thread.shutdown()
