"""A tracker's three methods, the run that it tracks, trackers by their names, and `Tracking` of them.

One method in one repeat is one tracked run, with the name of its folder under states/, such as `fedavg-0`.
The methods and repeats of an experiment thus lie over each other in one chart of a metric, and libraries
average over repeats by grouping. A single tracked run for the whole experiment would need METHOD/METRIC in
names and would count rounds several times over.

    class Printer:
        def start(self, run):
            self.name = run.name

        def log(self, round_number, metrics):
            print(self.name, round_number, metrics.get("train_loss"))

        def finish(self, summary):
            print(self.name, "is interrupted" if summary is None else summary)

    jaxfed.run("fedavg_xclp:smoke", trackers=[Printer()])
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from jaxfed.config.keys import flatten
from jaxfed.errors import UsageError, suggestion
from jaxfed.experiment.run.summary import Record, accumulated
from jaxfed.experiment.store.records import read_metrics
from jaxfed.experiment.store.workdir import TRACKING, plain
from jaxfed.host import safe_files, storage

_PACKAGE = __package__
# Name, which is also that of the library's package and of the file here -> class.
TRACKERS = {"tensorboard": "TensorBoard", "wandb": "WeightsAndBiases"}
_METHODS = ("start", "log", "finish")


@dataclass(frozen=True)
class TrackedRun:
    """One method in one repeat of an experiment.

    Attributes:
        method: its name in the config.
        repeat: from 0 on.
        experiment: name of the experiment, unique: the workdir's name and eight hex digits. It stays the same
            when a run resumes, and is new after `overwrite`.
        workdir: of the experiment.
        config: as resolved, flat (`xclp.num_bits` -> 4096), with `method` and `repeat`.
        last_round: the last round of an earlier process that metrics.jsonl has; -1: none.
        started: start of the first round after `last_round`, in seconds since 1970.
        tell: prints a line for the user, once.
    """

    method: str
    repeat: int
    experiment: str
    workdir: Path
    config: Mapping[str, Any]
    last_round: int = -1
    started: float = 0.0
    tell: Callable[[str], None] = lambda line: None

    @property
    def name(self) -> str:
        """`METHOD-REPEAT`."""
        return f"{self.method}-{self.repeat}"

    @property
    def id(self) -> str:
        """The experiment and the name: unique, and the same when the run resumes."""
        return f"{self.experiment}-{self.name}"


class Tracker(Protocol):
    """Receiver of the numbers of one run after another: `start`, `log` for each round, `finish`.

    An exception never stops the experiment: a line names it, and the tracker receives nothing more. An object
    may have a `name` for that line; its class's name is used otherwise.
    """

    def start(self, run: TrackedRun) -> None:
        """Open the run, or continue it if `run.last_round` is not negative."""

    def log(self, round_number: int, metrics: dict[str, float]) -> None:
        """Log the numbers of one round; rounds ascend.

        Rounds that a killed process lost are played and logged again when the run resumes, with the same
        numbers except for times. Nested names are joined by slashes (`communication/upload_bytes`). Undefined
        values are left out.
        """

    def finish(self, summary: dict[str, float] | None) -> None:
        """Close the run.

        Args:
            summary: final metrics as in summary.json: those of the last round, seconds and bytes summed over
                all rounds. None if the experiment was interrupted; `start` may then continue the run.
        """


class Tracking:
    """Context manager that passes an experiment's lines of metrics.jsonl on to trackers, by their names.

    A tracker that is new to an unfinished experiment receives the further rounds alone. One that fails is
    left out from then on. Leaving the context closes the run that is open: as finished, or as interrupted if
    there was an exception. WORKDIR/tracking.jsonl has the experiment's id.
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

    def __enter__(self) -> Self:
        if self._trackers:
            self._experiment = f"{self._workdir.resolve().name}-{_id(self._workdir / TRACKING)}"
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close(is_finished=exception is None)

    def log(self, record: Record) -> None:
        """Pass on a line that metrics.jsonl has just received."""
        if not self._trackers:
            return
        method, repeat, round_number = record["algorithm"], record["repeat"], record["round"]
        if self._run is None or (method, repeat) != (self._run.method, self._run.repeat):
            self._close(is_finished=True)
            earlier = [r["round"] for r in self._lines(method, repeat) if r["round"] < round_number]
            self._run = TrackedRun(
                *(method, repeat, self._experiment, self._workdir),
                settings(self._config, method, repeat),
                last_round=max(earlier, default=-1),
                started=time.time() - record.get("seconds", 0.0),
                tell=self._tell,
            )
            self._call("start", self._run)
        self._call("log", round_number, numbers(record))

    def _close(self, *, is_finished: bool) -> None:
        if self._run is None:
            return
        final = None
        if is_finished:
            lines = self._lines(self._run.method, self._run.repeat)
            final = numbers(reduce(accumulated, map(plain, lines), {}))
        self._call("finish", final)

    def _lines(self, method: str, repeat: int) -> list[Record]:
        lines = read_metrics(self._workdir)
        return [line for line in lines if (line["algorithm"], line["repeat"]) == (method, repeat)]

    def _call(self, method: str, *arguments: Any) -> None:
        for name, tracker in tuple(self._trackers.items()):
            try:
                own = (dict(each) if isinstance(each, dict) else each for each in arguments)
                getattr(tracker, method)(*own)
            except Exception as error:
                del self._trackers[name]
                why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                self._tell(
                    f"tracker {name} failed and is left out from here on; the run goes on: {why}"
                )


def _id(file: Path) -> str:
    """Return the experiment's id from its file, which is made if it is missing."""
    if not file.exists():
        storage.append(file, json.dumps({"id": secrets.token_hex(4)}) + "\n")
    try:
        with safe_files.guarded(file):
            first, *_ = safe_files.content_of(file).splitlines()
            return str(safe_files.json_object(first, file)["id"])
    except safe_files.Damaged as error:
        raise UsageError(f"{error}; delete it, and trackers begin new runs") from error


def chosen(given: Iterable[Any], key: str) -> dict[str, Tracker]:
    """Return name -> tracker for names, which may be joined by commas, and objects.

    Args:
        given: from the user.
        key: the argument or flag, for errors.

    Raises:
        UsageError: an unknown name, a library that is not installed, an object without a tracker's
            methods, or the same name twice.
    """
    trackers: dict[str, Tracker] = {}
    for entry in _entries(given, key):
        name = entry if isinstance(entry, str) else _checked(entry, key)
        if isinstance(entry, str) and entry not in TRACKERS:
            wrong = f"no such tracker{suggestion(entry, TRACKERS)}"
            raise UsageError(wrong, key=key, value=entry)
        if name in TRACKERS:
            check_installed(name, key)
        if name in trackers:
            raise UsageError("is given twice", key=key, value=name)
        if isinstance(entry, str):
            entry = getattr(import_module(f"{_PACKAGE}.{name}"), TRACKERS[name])()
        trackers[name] = entry
    return trackers


def check_installed(name: str, key: str) -> None:
    """Check that a tracker's library is installed, without importing it.

    Raises:
        UsageError: it is not. A folder of its name, such as ./wandb with offline runs, does not count.
    """
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise UsageError(
            f"{name} is not installed",
            key=key,
            value=name,
            allowed=f"pip install {name} (requirements-trackers.txt has the versions that are tested)",
        )


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the defined numbers of a line of metrics.jsonl; nested names are joined by slashes."""
    return {
        name.replace(".", "/"): float(value)
        for name, value in flatten(plain(record))
        if isinstance(value, int | float) and name not in ("repeat", "round")
    }


def settings(config: Mapping[str, Any], method: str, repeat: int) -> dict[str, Any]:
    """Return a resolved config as `TrackedRun.config`."""
    return {"method": method, "repeat": repeat, **dict(flatten(plain(config)))}


def _checked(entry: Any, key: str) -> str:
    """Return the name of an object that has a tracker's methods."""
    if isinstance(entry, type):
        raise UsageError("is a class; give an object of it", key=key, value=entry)
    missing = [method for method in _METHODS if not callable(getattr(entry, method, None))]
    if missing:
        raise UsageError(f"has no method {', '.join(missing)}", key=key, value=entry)
    return str(getattr(entry, "name", type(entry).__name__))


def _entries(given: Iterable[Any], key: str) -> list[Any]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError("use a list of names and trackers", key=key, value=given)
    found: list[Any] = []
    for entry in given:
        found += [name.strip() for name in entry.split(",")] if isinstance(entry, str) else [entry]
    return found
