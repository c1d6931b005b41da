"""Processes started in a folder, all of which end with the block that started them.

    with Processes(folder) as processes:
        processes.start("link", command)

They end on return, on an exception and on a signal. What is left after a kill -9 of this process is found by
the next one that uses the folder: processes.json has a random mark, which all of them and their children have
in their environment, and the numbers and start times of those started here. A process with such a number that
started at another time is a stranger's and is left alone.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from jaxfed.errors import UsageError
from jaxfed.flower.client.client_data import PRIVATE_FILE, PRIVATE_FOLDER, write_private
from jaxfed.flower.deployment.guarded import PARENT
from jaxfed.flower.deployment.output import uncolored
from jaxfed.host import storage

MARK = "JAXFED_FLOWER"
_RECORD, _LOCK = "processes.json", ".lock"
_PROC = Path("/proc")
_POLL_SECONDS = 0.05
_EXIT = re.compile(r"Exit Code: [1-9]\d*\n(.*?)(?:\nFor more information|\Z)", re.DOTALL)
_PATIENCE_SECONDS = 4.0  # for a process that ends by itself after SIGTERM


class DeploymentError(RuntimeError):
    """A failure of a running federation, in one line; the input may be right."""


class Started(NamedTuple):
    """A process, its name, and the file of its output."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def reason(self) -> str:
        """Return why it ended: the text of Flower's exit code, else the last error, else the last line."""
        text = uncolored(self.log.read_text(encoding="utf-8", errors="replace"))
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if found := _EXIT.search("\n".join(lines)):
            return " ".join(found[1].split())
        errors = [line for line in lines if re.search(r"\bERROR\b", line)]
        return next(reversed(errors or lines), "(no output)")


class Processes:
    """Processes of one folder; one holder at a time.

    Attributes:
        folder: has processes.json and the folder `logs`.
        left_behind: number of processes of an earlier holder that were ended.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.left_behind = 0
        self._mark = secrets.token_hex(16)
        self._started: dict[str, Started] = {}
        self._reported: set[str] = set()

    def __enter__(self) -> Self:
        """Take the folder.

        Raises:
            UsageError: another process uses it, or it cannot be written.
        """
        try:
            self.folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            (self.folder / "logs").mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{self.folder}: cannot be written ({error.strerror})") from error
        with ExitStack() as stack:
            try:
                stack.enter_context(storage.lock(self.folder / _LOCK))
            except BlockingIOError:
                raise UsageError(f"{self.folder}: another process is running here") from None
            self.left_behind = end_left_behind(self.folder)
            self._record()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End all processes and release the folder."""
        with self._stack:
            self.end()

    def start(
        self, name: str, command: Sequence[str], *, environment: Mapping[str, str] | None = None
    ) -> Started:
        """Start a command in a session of its own; its output goes to logs/NAME.log, mode 0600.

        Raises:
            DeploymentError: the program cannot be started.
        """
        log = self.folder / "logs" / f"{name}.log"
        own = {**(environment or os.environ), MARK: self._mark, PARENT: str(os.getpid())}
        # Appended: processes of an earlier start may still write there.
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, PRIVATE_FILE)
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=own,
                start_new_session=True,
                umask=0o077,
            )
        except OSError as error:
            raise DeploymentError(f"{command[0]}: {error.strerror}") from error
        finally:
            os.close(output)
        self._started[name] = started = Started(name, process, log)
        self._reported.discard(name)
        self._record()
        return started

    def check(self, name: str) -> None:
        """Raise an error if a process has ended.

        Raises:
            DeploymentError: with its status and the last line of its output.
        """
        started = self._started[name]
        if started.process.poll() is not None:
            raise DeploymentError(_ended(started))

    def newly_ended(self) -> list[str]:
        """Return a line for each process that has ended since the last call."""
        found = [
            name
            for name, started in self._started.items()
            if name not in self._reported and started.process.poll() is not None
        ]
        self._reported.update(found)
        return [_ended(self._started[name]) for name in found]

    def end(self) -> None:
        """End all processes, the last one started first, and what they have started."""
        by_age = list(self._started.values())
        for group in (by_age[1:], by_age[:1]):  # nodes, then the link that they talk to
            for started in group:
                if started.process.poll() is None:
                    _signal_group(started.process.pid, signal.SIGTERM)
            _wait(group)
            for started in group:
                if started.process.poll() is None:
                    _signal_group(started.process.pid, signal.SIGKILL)
                    started.process.wait()
        _kill_marked(self._mark)
        self._started.clear()
        (self.folder / _RECORD).unlink(missing_ok=True)

    def _record(self) -> None:
        processes = [
            {"pid": each.process.pid, "started": start_time(each.process.pid)}
            for each in self._started.values()
        ]
        content = json.dumps({"mark": self._mark, "processes": processes})
        write_private(self.folder / _RECORD, content.encode())


def end_left_behind(folder: Path) -> int:
    """Kill what an earlier holder of a folder has started and not ended; return the number of processes."""
    file = folder / _RECORD
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        mark, listed = str(record["mark"]), record["processes"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    ours = list(_of_same_start(listed))
    for pid in ours:
        _signal_group(pid, signal.SIGKILL)
    others = _kill_marked(mark, but=ours)
    file.unlink(missing_ok=True)
    return len(ours) + others


def start_time(pid: int) -> str:
    """Return a text that tells a process from a later one of the same number; "" if it has ended."""
    stat = _PROC / str(pid) / "stat"
    if _PROC.joinpath("self").exists():
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:
            return ""
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return "" if words[0] == "Z" else f"{boot} {words[19]}"
    done = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def _of_same_start(listed: Iterable[Mapping[str, Any]]) -> Iterator[int]:
    for entry in listed:
        pid, started = entry.get("pid"), entry.get("started")
        if isinstance(pid, int) and started and start_time(pid) == started:
            yield pid


def _kill_marked(mark: str, but: Sequence[int] = ()) -> int:
    """Kill all processes with the mark in their environment until none is left; return their number."""
    killed: set[int] = set()
    for _ in range(100):
        found = set(_marked(mark))
        if not found:
            break
        killed |= found
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
    return len(killed - set(but))


def _marked(mark: str) -> Iterator[int]:
    """Yield living processes of this user that inherited the mark; none where the system has no /proc."""
    wanted = f"{MARK}={mark}".encode()
    for place in _PROC.glob("[0-9]*"):
        pid = int(place.name)
        with suppress(OSError):
            entries = (place / "environ").read_bytes().split(b"\0")
            if wanted in entries and pid != os.getpid() and start_time(pid):
                yield pid


def _signal_group(pid: int, number: int) -> None:
    """Signal a process that leads its session, and all of its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _wait(group: Sequence[Started]) -> None:
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < until and any(each.process.poll() is None for each in group):
        time.sleep(_POLL_SECONDS)


def _ended(started: Started) -> str:
    status = started.process.returncode
    how = f"signal {-status}" if status < 0 else f"status {status}"
    return f"{started.name} ended with {how}: {started.reason()} ({started.log})"
