"""The process that runs one point of a sweep."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from jaxfed.experiment.sweep.sweep_plan import Point
from jaxfed.host.interruption import SIGNALS


class PointProcess:
    """The process of one point, in a session of its own: only this process forwards signals to it."""

    def __init__(
        self, point: Point, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        self.point = point
        self._log = log
        self._started = time.monotonic()
        with log.open("w") as stream:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        """True if the process has ended."""
        return self._process.poll() is not None

    @property
    def seconds(self) -> float:
        """Seconds since the process started."""
        return time.monotonic() - self._started

    def failure(self) -> str:
        """Return the reason in one line why the ended process failed; "" if it succeeded."""
        status = self._process.returncode
        if status == 0:
            return ""
        lines = [
            line for line in self._log.read_text(errors="replace").splitlines() if line.strip()
        ]
        cause = f"signal {-status}" if status < 0 else f"exit status {status}"
        return f"{cause}: {lines[-1].strip() if lines else 'it printed nothing'} ({self._log})"

    def signal(self, signum: int) -> None:
        """Send a signal to the process."""
        self._process.send_signal(signum)

    def wait(self) -> None:
        """Wait until the process has ended."""
        self._process.wait()


def stop(running: Sequence[PointProcess], signum: int) -> None:
    """Forward a signal to all processes and wait for them to end; later signals are forwarded too.

    After the first signal each point saves its round. A second one ends them at once. A printed line says so.
    """

    def pass_on(signum: int, frame: FrameType | None) -> None:
        for process in running:
            process.signal(signum)

    previous = {each: signal.signal(each, pass_on) for each in SIGNALS}
    if any(not process.ended for process in running):
        # os.write, because a progress display may be writing to the same stream.
        with suppress(OSError):
            os.write(
                2, b"\njaxfed: stopping after the rounds that are running; again to stop now\n"
            )
    try:
        pass_on(signum, None)
        for process in running:
            process.wait()
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)
