"""SIGINT, SIGTERM and SIGHUP as a request to stop between rounds.

    with Interruption() as interruption:
        prepare()                        # a signal stops this at once: nothing is lost
        with interruption.deferred():
            advance_and_save_a_round()   # a signal waits for the end of this block

With several processes a signal waits until all have heard of it, after a round (`settle`).

The first signal raises `Interrupted` in the main thread, at the end of the deferred block if one is
running. The second meets the system's own handler and ends the process at once. (A second SIGHUP does
nothing, however late it comes: shell and system may send one each.)

Python runs its handlers between two of its own steps, and a round may be one long computation. So a thread
is told of signals by the operating system at once (`signal.set_wakeup_fd`): it prints the answer, and ends
the process at the second signal if the first has not been handled yet.

A process that others started for their own work ends with them: `end_with`.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TERMINAL_STREAMS = (1, 2)
_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = (
    1.0  # until a signal that should have stopped the process at once gets an answer
)
_AFTER_THIS_ROUND = b"\njaxfed: stopping after this round; again to stop now\n"
_AFTER_THIS_STEP = b"\njaxfed: stopping as soon as this step ends; again to stop now\n"


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

    SIGHUP stays ignored where the process was started so (`nohup`). A terminal that hangs up can no
    longer be written to: what still goes there goes nowhere.

    Attributes:
        continues: which command goes on from what is saved; an entry's to change.
        pending: the signal that has arrived and waits; None where none has.
    """

    def __init__(self) -> None:
        self.continues = "the same command"
        self._is_deferred = False
        self._settles = False
        self._is_settled = False
        self._is_received = False
        self.pending: int | None = None

    def __enter__(self) -> Self:
        self._terminals = [stream for stream in _TERMINAL_STREAMS if os.isatty(stream)]
        self._previous = {
            signum: signal.signal(signum, self._receive)
            for signum in SIGNALS
            if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN
        }
        self._heard, arrivals = socket.socketpair()
        arrivals.setblocking(False)
        self._arrivals = arrivals
        self._earlier_fd = signal.set_wakeup_fd(arrivals.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._answer, args=(self._heard,), daemon=True).start()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for signum, handler in self._previous.items():
            if signal.getsignal(signum) != signal.SIG_IGN:  # as a hang-up is after the first
                signal.signal(signum, handler)
        signal.set_wakeup_fd(self._earlier_fd)
        self._arrivals.close()  # which ends the thread

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let a signal that arrives in this block wait until the block has ended."""
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
        """Whether a signal has arrived that waits for the end of the block, and all have heard of it."""
        return self.pending is not None and self._settles == self._is_settled

    def settle(self, signum: int) -> None:
        """Of several processes' signals this one counts at all of them; 0: none has arrived.

        From the first call on, a signal waits for the next.
        """
        self._settles = True
        if signum:
            self.pending, self._is_settled = signum, True

    def _answer(self, heard: socket.socket) -> None:
        """Answer the first signal on standard error, and obey a second one that finds it unhandled."""
        with heard:
            first = self._next_signal(heard)
            if not first:
                return
            answer = _AFTER_THIS_ROUND
            if not self._is_deferred:
                answer = _AFTER_THIS_STEP
                select.select([heard], [], [], _PATIENCE_SECONDS)
                if self._is_received:  # the process is stopping, or has stopped
                    return
            # os.write, because the main thread may be writing to the same stream.
            with suppress(OSError):
                os.write(2, answer)
            while again := self._next_signal(heard):
                if again != signal.SIGHUP and not self._is_received:
                    os._exit(128 + again)

    def _next_signal(self, heard: socket.socket) -> int:
        """The next signal that Python has a handler for and is ours; 0 once there will be none."""
        while number := heard.recv(1):
            if number[0] in self._previous:
                return number[0]
        return 0

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        self._is_received = True
        for each in self._previous:
            is_again = each == signum == signal.SIGHUP
            signal.signal(each, signal.SIG_IGN if is_again else signal.SIG_DFL)
        if signum == signal.SIGHUP:
            self._leave_terminal()
        if not self._is_deferred:
            raise Interrupted(signum)
        self.pending = signum

    def _leave_terminal(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in self._terminals:
            os.dup2(nowhere, stream)
        os.close(nowhere)


def end_with(parent: int) -> None:
    """From now on this process ends, within a second, when the process that started it has ended.

    Args:
        parent: that one's number, which only it can tell for sure: it may have ended already.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
