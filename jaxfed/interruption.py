"""SIGINT and SIGTERM as a request to stop between rounds.

    with Interruption() as interruption:
        prepare()                        # a signal stops this at once: nothing is lost
        with interruption.deferred():
            advance_and_save_a_round()   # a signal waits for the end of this block

The first signal raises `Interrupted` in the main thread, at the end of the deferred block if one is
running. The second meets the system's own handler and ends the process at once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """The user or the system asked the process to stop.

    Attributes:
        exit_status: 128 + the signal's number, as shells report it: 130 for SIGINT, 143 for
        SIGTERM.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_status = 128 + signum


class Interruption:
    """Takes over both signals while it is entered; main thread only."""

    def __init__(self) -> None:
        self._is_deferred = False
        self._pending: int | None = None

    def __enter__(self) -> Self:
        self._previous = [signal.signal(signum, self._receive) for signum in _SIGNALS]
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for signum, handler in zip(_SIGNALS, self._previous, strict=True):
            signal.signal(signum, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let a signal that arrives in this block wait until the block has ended."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
        if self._pending is not None:
            raise Interrupted(self._pending)

    @property
    def is_pending(self) -> bool:
        """Whether a signal has arrived that waits for the end of the block."""
        return self._pending is not None

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        if not self._is_deferred:
            raise Interrupted(signum)
        self._pending = signum
        # os.write, because a handler may run inside another write to the same stream.
        os.write(2, b"\njaxfed: stopping after this round; once more stops at once\n")
