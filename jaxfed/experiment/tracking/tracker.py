"""A tracker's three methods, the run that it tracks, and trackers by their names.

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

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from jaxfed.config.keys import flatten
from jaxfed.errors import UsageError, suggestion
from jaxfed.experiment.store.workdir import plain

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
        last_round: the last round that this tracker has logged in an earlier process; -1: none.
        started: start of the first round after `last_round`, in seconds since 1970; an estimate if that was
            before this process.
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
        """Log the numbers of one round; rounds ascend, and none comes twice.

        Nested names are joined by slashes (`communication/upload_bytes`). Undefined values are left out.
        """

    def finish(self, summary: dict[str, float] | None) -> None:
        """Close the run.

        Args:
            summary: final metrics as in summary.json: those of the last round, seconds and bytes summed over
                all rounds. None if the experiment was interrupted; `start` may then continue the run.
        """


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
