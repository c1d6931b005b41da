"""Runs every point of a config's `sweep(add)`: each a `launch.run` of its own, N at a time.

    def sweep(add):                                   # or sweep(add, variant)
        for num_bits in (64, 4096):
            add(**{"xclp.num_bits": num_bits})

In the directory of a sweep:

    sweep.json     the config, the swept keys' own values there (`base`), and all points; under `reused` the
                   baselines that a point does not run, and the point that runs them for it
    sweep.csv      one row a finished point and method: overrides, mean and deviation of each metric
    POINT/         the workdir of one point, named by what it overrides
    logs/          POINT.log, what its process printed; POINT.failure, why it failed if so

Finished points are skipped and unfinished ones resume, so the same command continues a sweep.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from jaxfed.config import file as config_file
from jaxfed.errors import UsageError
from jaxfed.experiment import workdir
from jaxfed.experiment.point_process import PointProcess, stop
from jaxfed.experiment.records import read_json, read_run, read_sweep
from jaxfed.experiment.remedy import IN_A_SWEEP, OF_A_SWEEP, remedied
from jaxfed.experiment.summary import complaints
from jaxfed.experiment.sweep_plan import Plan, Point
from jaxfed.host import csv_file, storage
from jaxfed.host.interruption import Interrupted, Interruption

_POLL_SECONDS = 0.1
_LOCK = ".lock"


class Progress(Protocol):
    """What is told of a sweep while it runs."""

    def started(self, point: Point) -> None:
        """The process of a point has started."""

    def ended(self, point: Point, seconds: float, failure: str) -> None:
        """It has ended; `failure` is empty if well."""


Command = Callable[[Point, Path], list[str]]


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
    settings = [f"--sweep.{text}" for text in sweep.grid]
    settings += [f"--config.{text}" for text in sweep.overrides]
    start = ["python", "-m", "launch.sweep", f"--config={sweep.config}"]
    content = workdir.plain(
        {
            "config_file": path,
            "variant": variant,
            "overrides": sweep.overrides,
            "grid": sweep.grid,
            "command": shlex.join([*start, f"--workdir={directory}", *settings]),
            "base": sweep.base,
            "points": [
                {"name": point.name, "overrides": point.overrides, "reused": point.reused}
                for point in sweep.points
            ],
        }
    )
    file = directory / "sweep.json"
    if file.exists():
        there = read_json(file)
        there.setdefault("grid", [])  # of a sweep before there were any
        for key in ("config_file", "variant", "overrides", "grid"):
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
    with remedied(OF_A_SWEEP):
        return [
            point
            for point in sweep.points
            if not workdir.is_finished(directory / point.name, point.settings)
        ]


def complaining(sweep: Plan, directory: Path, left: Collection[Point]) -> list[str]:
    """The names of the finished points, those that are not left, that have methods which went wrong."""
    there = (point.name for point in sweep.points if point not in left)
    return [name for name in there if complaints(read_run(directory / name).summary or {})]


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
    environment = {**os.environ, IN_A_SWEEP: "1"}
    if jobs > 1:
        environment.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    (directory / "logs").mkdir(exist_ok=True)
    waiting = list(points)[::-1]
    running: list[PointProcess] = []
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
                        PointProcess(
                            point, command(point, directory / point.name), log, environment
                        )
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
        stop(running, interrupted.exit_status - 128)
        write_csv(directory)
        raise
    except BaseException:
        stop(running, signal.SIGTERM)
        raise
    return failed


def failure_note(directory: Path, point: Point) -> Path:
    """Where the last failure of a point is noted, for reports."""
    return directory / "logs" / f"{point.name}.failure"


def write_csv(directory: Path) -> None:
    """Write sweep.csv from what the points' directories hold: a row a finished point and method.

    Columns: point, the swept keys (the config's own value where a point sets none), algorithm,
    num_repeats, each metric's mean and `METRIC_std` (sample deviation, empty for one repeat), workdir, and
    run_at, the point that ran the method: another one where the swept keys do not change it.
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
            at = point.reused.get(algorithm, point.name)
            rows.append(row | {"workdir": str(directory / at), "run_at": at})
    leading = ["point", *sweep.base, "algorithm", "num_repeats"]
    others = dict.fromkeys(key for row in rows for key in row)
    last = ["workdir", "run_at"]
    middle = [key for key in others if key not in (*leading, *last)]
    csv_file.write_csv(directory / "sweep.csv", [*leading, *middle, *last], rows)
