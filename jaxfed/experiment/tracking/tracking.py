"""Trackers fed from metrics.jsonl: each round once, also when a run resumes, and no failure that stops a run.

WORKDIR/tracking.jsonl has the experiment's id and a line for each round that trackers have logged. A
resumed run continues each tracked run after the last such round. Rounds that metrics.jsonl has and a
tracker lacks are logged first, so a tracker that is new to an unfinished experiment receives all of it. A
process that is killed between a tracker's call and that line logs this one round again when it resumes.
Numbers that a library has only buffered in memory by then are lost; TensorBoard buffers none.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from jaxfed.errors import UsageError
from jaxfed.experiment.run.summary import Record, accumulated
from jaxfed.experiment.store.records import read_metrics
from jaxfed.experiment.store.workdir import TRACKING, plain
from jaxfed.experiment.tracking.tracker import TrackedRun, Tracker, numbers, settings
from jaxfed.host import safe_files, storage


class Tracking:
    """Context manager that passes the lines of an experiment's metrics.jsonl to trackers.

    Leaving it closes the run that is open: as finished, or as interrupted if there was an exception.
    """

    def __init__(
        self,
        trackers: Mapping[str, Tracker],
        config: Mapping[str, Any],
        workdir: Path,
        tell: Callable[[str], None],
    ) -> None:
        """Take trackers by their names, the resolved config, and a function that prints a line once."""
        self._trackers = dict(trackers)
        self._config, self._workdir, self._tell = config, workdir, tell
        self._run: TrackedRun | None = None
        self._open: list[str] = []
        self._final: dict[str, Any] = {}
        self._past: list[Record] = []  # lines of earlier processes
        self._is_behind = True  # an earlier process may have left rounds that trackers lack

    def __enter__(self) -> Self:
        if self._trackers:
            self._journal = _Journal(self._workdir / TRACKING)
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exception is None and self._trackers and self._is_behind:
            self._catch_up()
        self._close(is_finished=exception is None)

    def log(self, record: Record) -> None:
        """Pass on a line that metrics.jsonl has just received."""
        if not self._trackers:
            return
        if self._is_behind:
            self._catch_up()  # the line is there already
        else:
            self._log(record, time.time() - _seconds([record]))

    def _catch_up(self) -> None:
        """Pass on all lines so far; those that trackers have are skipped one by one."""
        self._is_behind = False
        self._past = read_metrics(self._workdir)
        started = time.time() - _seconds(self._past)
        for record in self._past:
            self._log(record, started)
            started += _seconds([record])

    def _log(self, record: Record, started: float) -> None:
        method, repeat, round_number = record["algorithm"], record["repeat"], record["round"]
        if self._run is None or (method, repeat) != (self._run.method, self._run.repeat):
            self._close(is_finished=True)
            self._start(method, repeat, started)
        assert self._run is not None
        self._final = accumulated(self._final, plain(record))
        for name in tuple(self._open):
            if self._journal.last(name, self._run.name) < round_number:
                self._call(name, "log", round_number, numbers(record))
        self._journal.add(self._run.name, self._open, round_number)

    def _start(self, method: str, repeat: int, started: float) -> None:
        experiment = f"{self._workdir.resolve().name}-{self._journal.id}"
        same = (method, repeat, experiment, self._workdir, settings(self._config, method, repeat))
        self._run = run = TrackedRun(*same, started=started, tell=self._tell)
        self._final = {}
        past = [line for line in self._past if (line["algorithm"], line["repeat"]) == same[:2]]
        for name in tuple(self._trackers):
            last = self._journal.last(name, run.name)
            if last < math.inf:  # not finished
                self._open.append(name)
                logged = _seconds(line for line in past if line["round"] <= last)
                continued = replace(run, last_round=int(last), started=started + logged)
                self._call(name, "start", continued)

    def _close(self, *, is_finished: bool) -> None:
        summary = numbers(self._final)
        for name in tuple(self._open):
            self._call(name, "finish", dict(summary) if is_finished else None)
        if self._run is not None and is_finished:
            self._journal.add(self._run.name, self._open, None)
        self._open = []

    def _call(self, name: str, method: str, *arguments: Any) -> None:
        """Call a tracker; one that fails is left out from now on."""
        try:
            getattr(self._trackers[name], method)(*arguments)
        except Exception as error:
            del self._trackers[name]
            self._open.remove(name)
            why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            self._tell(
                f"tracker {name} failed and is left out from here on; the run goes on: {why}"
            )


def _seconds(records: Iterable[Record]) -> float:
    return float(sum(record.get("seconds", 0.0) for record in records))


class _Journal:
    """tracking.jsonl: `{"id": ...}`, then `{"run": ..., "trackers": [...], "round": N}`; null: finished."""

    def __init__(self, file: Path) -> None:
        self._file, self.id = file, ""
        self._last: dict[tuple[str, str], float] = {}
        try:
            text = safe_files.content_of(file) if file.exists() else b""
            with safe_files.guarded(file):
                for line in safe_files.json_lines(text, file):
                    self._read(line)
        except safe_files.Damaged as error:
            raise UsageError(f"{error}; delete it, and trackers begin new runs") from error
        whole = text[: text.rfind(b"\n") + 1]  # a killed process may have left part of a line
        if whole != text:
            os.truncate(file, len(whole))
        if not self.id:
            self._write({"id": secrets.token_hex(4)})

    def _read(self, entry: Mapping[str, Any]) -> None:
        self.id = entry.get("id", self.id)
        for tracker in entry.get("trackers", ()):
            last = math.inf if entry["round"] is None else entry["round"]
            self._last[tracker, entry["run"]] = last

    def last(self, tracker: str, run: str) -> float:
        """The last round that a tracker has logged of a run: -1 for none, infinite if it is finished."""
        return self._last.get((tracker, run), -1)

    def add(self, run: str, trackers: Iterable[str], round_number: int | None) -> None:
        """Note what trackers have logged."""
        new = [
            name for name in trackers if round_number is None or self.last(name, run) < round_number
        ]
        if new:
            self._write({"run": run, "trackers": new, "round": round_number})

    def _write(self, entry: Mapping[str, Any]) -> None:
        self._read(entry)
        storage.append(self._file, json.dumps(entry) + "\n")
