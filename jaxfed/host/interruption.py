"""SIGINT, SIGTERM and SIGHUP as a request to stop between rounds.

    with Interruption() as interruption:
        prepare()                        # a signal stops this at once: nothing is lost
        with interruption.deferred():
            advance_and_save_a_round()   # a signal waits for the end of this block

The first signal raises `Interrupted` in the main thread, at the end of the deferred block if one is running.
The second reaches the system's handler and ends the process at once. (A second SIGHUP is always ignored:
shell and system may send one each.) With several processes a signal waits until all have received it, after a
round (`settle`). Python runs its handlers between bytecodes: one long computation ends first.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_POLL_SECONDS = 0.5
_STOPPING = b"\njaxfed: stopping after this round; again to stop now\n"


class Interrupted(BaseException):
    """The user or the system asked the process to stop.

    Attributes:
        exit_status: 128 + the signal's number, as shells report it: 130 for SIGINT, 143 for
            SIGTERM, 129 for SIGHUP.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_status = 128 + signum


class Interruption:
    """Takes over these signals while it is entered; main thread only.

    SIGHUP stays ignored if the process was started that way (`nohup`). After a hang-up, output to the
    terminal is discarded.

    Attributes:
        continues: the command that resumes from the saved state; set by an entry.
        pending: the signal that has arrived and waits, or None.
    """

    def __init__(self) -> None:
        self.continues = "the same command"
        self._is_deferred = self._settles = self._is_settled = False
        self.pending: int | None = None

    def __enter__(self) -> Self:
        self._terminals = [stream for stream in (1, 2) if os.isatty(stream)]
        self._previous = {
            signum: signal.signal(signum, self._receive)
            for signum in SIGNALS
            if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN
        }
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._previous.items():
            if signal.getsignal(signum) != signal.SIG_IGN:  # as a hang-up is after the first
                signal.signal(signum, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defer signals that arrive in this block until it ends."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = self._settles
        if self.is_pending:
            assert self.pending is not None
            raise Interrupted(self.pending)

    @property
    def is_pending(self) -> bool:
        """True if a signal waits for the end of the block, and all processes have received it."""
        return self.pending is not None and self._settles == self._is_settled

    def settle(self, signum: int) -> None:
        """Set the signal that all processes of a run act on; 0: none has arrived.

        After the first call, a signal waits for the next call.
        """
        self._settles = True
        if signum:
            self.pending, self._is_settled = signum, True

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        for each in self._previous:
            is_again = each == signum == signal.SIGHUP
            signal.signal(each, signal.SIG_IGN if is_again else signal.SIG_DFL)
        if signum == signal.SIGHUP:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in self._terminals:
                os.dup2(nowhere, stream)
            os.close(nowhere)
        if not self._is_deferred:
            raise Interrupted(signum)
        self.pending = signum
        # os.write, because the main thread may be writing to the same stream.
        with suppress(OSError):
            os.write(2, _STOPPING)


def end_with(parent: int) -> None:
    """End this process, a worker, within a second after its parent has ended.

    `parent` is a process id, passed by the parent itself, as it may have ended already.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
