"""Checkpoints of a run that goes on while they are written.

    the run       round k | copy the state | round k + 1 | round k + 2 | ...
    its writer                             | serialize, checksum, fsync, rename

By the clock (`jaxfed.host.save_schedule`) the run waits for the copy alone, NumPy arrays that nothing it does
later can change: not a round that is given the state's own buffers to write in, nor a method that keeps NumPy
arrays and changes them. A thread writes it, one save at a time and none in a queue: one that falls due
meanwhile waits for a round's end at which the writer is free. What is saved is the run at the moment of the
copy, so a kill at any instant leaves the save before or this one, whole.

The copy takes 0.3 s for a GB, and the host's memory for one more state until it is written. The writer's own
work is not among the 3 %: two to eight times the copy's, on another core where one is free, so that it takes
a quarter of a core at the most that the schedule allows.

Every N rounds, at the end, and where the process has been asked to stop, a save is whole when `save` returns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, Self

from absl import logging

from jaxfed.host.checkpoint import Checkpoints, Leaves, Progress, copied_leaves
from jaxfed.host.save_schedule import SaveSchedule


class CheckpointWriter:
    """Saves a run's states as a schedule says; leaving it waits for the save that is being written.

        with CheckpointWriter(checkpoints, every) as saves:
            for number in rounds:
                state = advance(state)
                if saves.are_due(number, is_last=number == rounds[-1]):
                    saves.save(number, state, {"round": number})

    What a save has failed of is raised as soon as the run asks again: by `are_due`, `save`, `join`, or where
    the run leaves. A run that leaves with an exception of its own leaves with that; then the failure is
    logged, unless the run's own is the disk's, too.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        every: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Into `checkpoints`, which nobody else writes; every `every` rounds, 0 is by the clock."""
        self._checkpoints = checkpoints
        self._is_by_the_clock = every == 0
        self._schedule = SaveSchedule(every, clock)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._in_flight: Future[None] | None = None

    def are_due(self, round_number: int, *, is_last: bool) -> bool:
        """Whether to save after this round (`SaveSchedule.is_due`); not while one is being written.

        Raises:
            OSError: the last save has failed: the disk is full, say.
        """
        if self._in_flight is not None:
            if not self._in_flight.done():
                return False
            self.join()
        return self._schedule.is_due(round_number, is_last=is_last)

    def save(self, step: int, state: Any, progress: Progress, *, at_once: bool = False) -> None:
        """Save a state and a record of progress as they are now (`Checkpoints.save`).

        Waits for the save before, where that is still being written.

        Args:
            step: numbers it.
            state: a pytree, which may be changed or given away as soon as this returns.
            progress: JSON-able, and not to be changed.
            at_once: it is whole when this returns, by the clock, too.

        Raises:
            OSError: this save has failed, or the one before; those before are as they were.
        """
        self.join()
        if at_once or not self._is_by_the_clock:
            self._checkpoints.save(step, state, progress)
            return
        with self._schedule.copying():
            leaves = copied_leaves(state)
        self._in_flight = self._thread.submit(self._write, step, leaves, progress)

    def join(self) -> None:
        """Wait until nothing is being written.

        Raises:
            OSError: what was has failed.
        """
        if self._in_flight is not None:
            wait([self._in_flight])  # where a signal ends this, it is still in flight
            written, self._in_flight = self._in_flight, None
            written.result()

    def _write(self, step: int, leaves: Leaves, progress: Progress) -> None:
        with self._schedule.writing():
            self._checkpoints.write(step, leaves, progress)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.join()
        except Exception as failure:
            if exception is None:
                raise
            if not isinstance(exception, OSError):
                logging.warning("the last save has failed: %s", failure)
        finally:
            self._thread.shutdown()
