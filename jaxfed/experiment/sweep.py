"""Runs every point of a config's `sweep(add)`: each a `launch.run` of its own, N at a time.

    def sweep(add):                                   # or sweep(add, variant)
        for num_bits in (64, 4096):
            add(**{"xclp.num_bits": num_bits})

In the directory of a sweep:

    sweep.json     the config, the swept keys' own values there (`base`), and all points
    sweep.csv      one row a finished point and method: overrides, mean and deviation of each metric
    POINT/         the workdir of one point, named by what it overrides
    logs/          POINT.log, what its process printed; POINT.failure, why it failed if so

Finished points are skipped and unfinished ones resume, so the same command continues a sweep.
"""

from __future__ import annotations

import csv
import hashlib
import inspect
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Protocol

from jaxfed.config import check
from jaxfed.config import file as config_file
from jaxfed.config.keys import flatten
from jaxfed.errors import UsageError
from jaxfed.experiment import workdir
from jaxfed.experiment.records import read_json, read_sweep
from jaxfed.host import storage
from jaxfed.host.interruption import SIGNALS, Interrupted, Interruption

_MAX_NAME = 120  # characters; file systems allow 255 bytes
_POLL_SECONDS = 0.1
_LOCK = ".lock"


class Point(NamedTuple):
    """One experiment of a sweep.

    Attributes:
        name: of its directory, unique in the sweep and the same whenever it is planned.
        overrides: what it sets, by dotted key, as the config resolves it.
        texts: the same as `KEY=VALUE` for the command line.
        settings: the whole config, nested.
    """

    name: str
    overrides: dict[str, Any]
    texts: tuple[str, ...]
    settings: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What a sweep will run. `overrides` (`KEY=VALUE`) hold at every point; `base` is without them
    the config's value of every key that some point sets.
    """

    config: str
    overrides: tuple[str, ...]
    base: dict[str, Any]
    points: tuple[Point, ...]
    repeated: dict[str, str]


class Progress(Protocol):
    """What is told of a sweep while it runs."""

    def started(self, point: Point) -> None:
        """The process of a point has started."""

    def ended(self, point: Point, seconds: float, failure: str) -> None:
        """It has ended; `failure` is empty if well."""


Command = Callable[[Point, Path], list[str]]


def plan(config: str, overrides: Sequence[str] = ()) -> Plan:
    """Work out and check all points of a sweep, before anything runs.

    Two points may resolve to one experiment (the default value of two keys, say): it runs once, and
    `Plan.repeated` maps the name of the second to that of the first.

    Args:
        config: `FILE.py[:VARIANT]`.
        overrides: `KEY=VALUE` strings that hold at every point.

    Raises:
        UsageError: the file has no `sweep` or it adds nothing, two points are the same, or one
            sets a key to what its config does not allow.
    """
    path, variant = config_file.split_variant(config)
    base = dict(flatten(_load(config, overrides)))
    points: dict[str, Point] = {}
    first: dict[str, str] = {}
    repeated: dict[str, str] = {}
    for values in _added(path, variant):
        point = _point(config, overrides, values)
        if point.name in points or point.name in repeated:
            raise UsageError(f"--config={config}: sweep adds the point {point.name} twice")
        experiment = json.dumps(workdir.plain(point.settings), sort_keys=True)
        if experiment in first:
            repeated[point.name] = first[experiment]
        else:
            first[experiment] = point.name
            points[point.name] = point
    if not points:
        raise UsageError(f"--config={config}: sweep adds no point")
    swept = dict.fromkeys(key for point in points.values() for key in point.overrides)
    return Plan(
        config,
        tuple(overrides),
        {key: base[key] for key in swept},
        tuple(points.values()),
        repeated,
    )


def _added(path: str, variant: str) -> list[dict[str, Any]]:
    """The overrides of every point that the config file adds, in order."""
    sweep = getattr(config_file.load_module(path), "sweep", None)
    if not callable(sweep):
        raise UsageError(f"--config={path}: defines no sweep(add); launch.run runs it as it is")
    added: list[dict[str, Any]] = []

    def add(**overrides: Any) -> None:
        added.append(overrides)

    if "variant" in inspect.signature(sweep).parameters:
        sweep(add, variant=variant)
    else:
        sweep(add)
    return added


def _load(config: str, overrides: Sequence[str]) -> dict[str, Any]:
    loaded = config_file.load(config, overrides)
    check.check(loaded)
    settings: dict[str, Any] = loaded.to_dict()
    return settings


def _point(config: str, overrides: Sequence[str], values: Mapping[str, Any]) -> Point:
    texts = tuple(f"{key}={_value_text(value)}" for key, value in values.items())
    name = point_name(texts)
    try:
        settings = _load(config, [*overrides, *texts])
    except UsageError as error:
        raise UsageError(f"sweep point {name}: {error}") from None
    flat = dict(flatten(settings))
    return Point(name, {key: flat[key] for key in values}, texts, settings)


def _value_text(value: Any) -> str:
    """A value as `--config.KEY=VALUE` reads it."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(tuple(value)) if isinstance(value, list | tuple) else str(value)


def point_name(texts: Sequence[str]) -> str:
    """A directory name from `KEY=VALUE` strings: readable, safe in a shell and on any file system.

    Where characters had to be replaced or cut, a digest of the whole keeps it unique.
    """
    name = ",".join(sorted(texts)) or "base"
    safe = re.sub(r"[^A-Za-z0-9._=,+-]+", "_", name)
    if safe == name and len(name) <= _MAX_NAME:
        return name
    return f"{safe[:_MAX_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def run_command(sweep: Plan) -> Command:
    """The `launch.run` command of each point."""

    def command(point: Point, directory: Path) -> list[str]:
        settings = [f"--config.{text}" for text in (*sweep.overrides, *point.texts)]
        start = [sys.executable, "-m", "launch.run"]
        return [*start, f"--config={sweep.config}", f"--workdir={directory}", *settings]

    return command


@contextmanager
def claim(sweep: Plan, directory: Path) -> Iterator[None]:
    """Write sweep.json into the directory and hold its lock, or refuse one that is used otherwise.

    Raises:
        UsageError: the directory holds another sweep or something else, a sweep is running there, or
            it cannot be written.
    """
    path, variant = config_file.split_variant(sweep.config)
    settings = [f"--config.{text}" for text in sweep.overrides]
    start = ["python", "-m", "launch.sweep", f"--config={sweep.config}"]
    content = workdir.plain(
        {
            "config_file": path,
            "variant": variant,
            "overrides": sweep.overrides,
            "command": shlex.join([*start, f"--workdir={directory}", *settings]),
            "base": sweep.base,
            "points": [
                {"name": point.name, "overrides": point.overrides} for point in sweep.points
            ],
        }
    )
    file = directory / "sweep.json"
    if file.exists():
        there = read_json(file)
        for key in ("config_file", "variant", "overrides"):
            if there.get(key) != content[key]:
                raise UsageError(
                    f"--workdir={directory}: holds another sweep: {key} is {there.get(key)!r} "
                    f"there, {content[key]!r} now; give another --workdir"
                )
    elif directory.is_dir() and any(entry.name != _LOCK for entry in directory.iterdir()):
        raise UsageError(f"--workdir={directory}: is no workdir of launch.sweep; give a new one")
    with ExitStack() as stack:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(storage.lock(directory / _LOCK))
            with storage.whole_file(file) as stream:
                json.dump(content, stream, indent=2)
                stream.write("\n")
        except BlockingIOError:
            raise UsageError(f"--workdir={directory}: another sweep is running here") from None
        except OSError as error:
            raise UsageError(
                f"--workdir={directory}: {error.filename}: {error.strerror}"
            ) from error
        yield


def unfinished(sweep: Plan, directory: Path) -> list[Point]:
    """The points that have not run to their end.

    Raises:
        UsageError: the directory of a point holds the results of another config.
    """
    remedy = "give the sweep another --workdir, or delete this point's"
    return [
        point
        for point in sweep.points
        if not workdir.is_finished(directory / point.name, point.settings, remedy)
    ]


def run(
    points: Iterable[Point],
    directory: Path,
    command: Command,
    *,
    jobs: int,
    progress: Progress,
    interruption: Interruption,
) -> list[str]:
    """Run points, `jobs` at a time; one that fails does not stop the others.

    A signal is passed on to the processes, which save their round, and raises `Interrupted` when
    the last has ended. More than one at a time share a GPU: each then takes memory as it needs it
    instead of most of it at once (XLA_PYTHON_CLIENT_PREALLOCATE=false, unless that is set).

    Returns:
        The names of the points that failed.
    """
    environment = dict(os.environ)
    if jobs > 1:
        environment.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    (directory / "logs").mkdir(exist_ok=True)
    waiting = list(points)[::-1]
    running: list[_Process] = []
    failed = []
    for point in waiting:  # one that is damaged would count as finished for those who read it
        (directory / point.name / "summary.json").unlink(missing_ok=True)
    try:
        write_csv(directory)
        while waiting or running:
            while waiting and len(running) < jobs:
                with interruption.deferred():  # No process may start that nobody would stop.
                    point = waiting.pop()
                    log = directory / "logs" / f"{point.name}.log"
                    failure_note(directory, point).unlink(missing_ok=True)
                    running.append(
                        _Process(point, command(point, directory / point.name), log, environment)
                    )
                progress.started(point)
            for process in [process for process in running if process.ended]:
                running.remove(process)
                failure = process.failure()
                if failure:
                    failed.append(process.point.name)
                    failure_note(directory, process.point).write_text(failure, encoding="utf-8")
                write_csv(directory)
                progress.ended(process.point, process.seconds, failure)
            time.sleep(_POLL_SECONDS)
    except Interrupted as interrupted:
        _stop(running, interrupted.exit_status - 128)
        write_csv(directory)
        raise
    except BaseException:
        _stop(running, signal.SIGTERM)
        raise
    return failed


def failure_note(directory: Path, point: Point) -> Path:
    """Where the last failure of a point is noted, for reports."""
    return directory / "logs" / f"{point.name}.failure"


class _Process:
    """The process of one point; it has a session of its own, so that signals come from us alone."""

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
        return self._process.poll() is not None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def failure(self) -> str:
        """Why an ended process did not succeed, in a line; empty if it did."""
        status = self._process.returncode
        if status == 0:
            return ""
        lines = [
            line for line in self._log.read_text(errors="replace").splitlines() if line.strip()
        ]
        cause = f"signal {-status}" if status < 0 else f"exit status {status}"
        return f"{cause}: {lines[-1].strip() if lines else 'it printed nothing'} ({self._log})"

    def signal(self, signum: int) -> None:
        self._process.send_signal(signum)

    def wait(self) -> None:
        self._process.wait()


def _stop(running: Sequence[_Process], signum: int) -> None:
    """Pass a signal on and wait for all to end; one that comes meanwhile is passed on as well."""

    def pass_on(signum: int, frame: FrameType | None) -> None:
        for process in running:
            process.signal(signum)

    previous = {each: signal.signal(each, pass_on) for each in SIGNALS}
    try:
        pass_on(signum, None)
        for process in running:
            process.wait()
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


def write_csv(directory: Path) -> None:
    """Write sweep.csv from what the points' directories hold: a row a finished point and method.

    Columns: point, the swept keys (the config's own value where a point sets none), algorithm,
    num_repeats, each metric's mean and `METRIC_std` (sample deviation, empty for one repeat), and
    workdir.
    """
    sweep = read_sweep(directory)
    runs = [(point, point.run) for point in sweep.points if point.run is not None]
    rows: list[dict[str, Any]] = []
    for point, run in runs:
        settings = {key: sweep.value(point, key) for key in sweep.base}
        for algorithm, metrics in run.results.items():
            row = {"point": point.name, **settings, "algorithm": algorithm}
            row["num_repeats"] = run.num_repeats
            for metric, measurement in metrics.items():
                row |= {metric: measurement.mean, f"{metric}_std": measurement.std}
            rows.append(row | {"workdir": str(run.workdir)})
    leading = ["point", *sweep.base, "algorithm", "num_repeats"]
    others = dict.fromkeys(key for row in rows for key in row)
    middle = [key for key in others if key not in leading and key != "workdir"]
    with storage.whole_file(directory / "sweep.csv") as stream:
        table = csv.DictWriter(stream, [*leading, *middle, "workdir"], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
