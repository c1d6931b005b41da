"""Run every point of a config's `sweep(add)` as a separate `launch.run` process, N at a time.

    def sweep(add):                                   # or sweep(add, variant)
        for num_bits in (64, 4096):
            add(**{"xclp.num_bits": num_bits})

In the directory of a sweep:

    sweep.json     the config, its own values of the swept keys (`base`), and all points; `reused` maps the
                   baselines that a point does not run to the point that runs them for it
    sweep.csv      one row for each finished point and method: overrides, mean and deviation of each metric
    POINT/         the workdir of one point, named by its overrides
    logs/          POINT.log, the output of its process; POINT.failure, the reason if it failed

Finished points are skipped and unfinished ones resume, so the same command continues a sweep.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from jaxfed.config import file as config_file
from jaxfed.errors import UsageError
from jaxfed.experiment.run.summary import complaints
from jaxfed.experiment.store import workdir
from jaxfed.experiment.store.manifest import read_json
from jaxfed.experiment.store.records import read_run, read_sweep
from jaxfed.experiment.store.workdir import IN_A_SWEEP, OF_A_SWEEP, with_resume_hint
from jaxfed.experiment.sweep.sweep_plan import Point, SweepPlan
from jaxfed.host import csv_file, storage
from jaxfed.host.interruption import SIGNALS, Interrupted, Interruption
from jaxfed.host.terminal import Terminal

_POLL_SECONDS = 0.1

Command = Callable[[Point, Path], list[str]]


def run_command(sweep: SweepPlan, module: str = "launch.run", flags: Iterable[str] = ()) -> Command:
    """Return a function that builds the command of a point; `module` is the entry that runs it."""

    def command(point: Point, directory: Path) -> list[str]:
        settings = [f"--config.{text}" for text in (*sweep.overrides, *point.texts)]
        start = [sys.executable, "-m", module]
        return [*start, f"--config={sweep.config}", f"--workdir={directory}", *flags, *settings]

    return command


@contextmanager
def claim(sweep: SweepPlan, directory: Path) -> Iterator[None]:
    """Write sweep.json into the directory and hold its lock; refuse a directory with other content.

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
        there = read_json(directory, file.name)
        there.setdefault("grid", [])  # absent in files of versions before grids existed
        for key in ("config_file", "variant", "overrides", "grid"):
            if there.get(key) != content[key]:
                raise UsageError(
                    f"--workdir={directory}: holds another sweep: {key} is {there.get(key)!r} "
                    f"there, {content[key]!r} now; give another --workdir"
                )
    elif directory.is_dir() and any(entry.name != storage.LOCK for entry in directory.iterdir()):
        raise UsageError(f"--workdir={directory}: is no workdir of launch.sweep; give a new one")
    with storage.claimed(directory, "another sweep is running here"):
        workdir.write_json(file, content)
        yield


def unfinished(sweep: SweepPlan, directory: Path) -> list[Point]:
    """Return the points that have not finished.

    Raises:
        UsageError: the directory of a point holds the results of another config.
    """
    with with_resume_hint(OF_A_SWEEP):
        return [
            point
            for point in sweep.points
            if not workdir.is_finished(directory / point.name, point.settings)
        ]


def complaining(sweep: SweepPlan, directory: Path, left: Collection[Point]) -> list[str]:
    """Return the names of finished points (those not in `left`) with a method that diverged or failed."""
    there = (point.name for point in sweep.points if point not in left)
    return [name for name in there if complaints(read_run(directory / name).summary or {})]


class _Running(NamedTuple):
    """A point and its process."""

    point: Point
    process: subprocess.Popen[bytes]
    log: Path
    started: float

    def failure(self) -> str:
        """Return the reason in one line why the ended process failed; "" if it succeeded."""
        status = self.process.returncode
        if status == 0:
            return ""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        cause = f"signal {-status}" if status < 0 else f"exit status {status}"
        return f"{cause}: {lines[-1].strip() if lines else 'it printed nothing'} ({self.log})"


def run(
    points: Sequence[Point],
    directory: Path,
    command: Command,
    *,
    jobs: int,
    progress: Terminal,
    interruption: Interruption,
) -> list[str]:
    """Run points, `jobs` at a time; a failing point does not stop the others.

    A signal is forwarded to the processes, which save their round, and raises `Interrupted` when
    the last one has ended. With more than one job, processes share a GPU: each allocates memory on demand
    instead of most of it at the start (XLA_PYTHON_CLIENT_PREALLOCATE=false, unless it is already set).

    Returns:
        The names of the points that failed.
    """
    environment = {**os.environ, IN_A_SWEEP: "1"}
    if jobs > 1:
        environment.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    (directory / "logs").mkdir(exist_ok=True)
    waiting, num_ended = list(points)[::-1], 0
    running: list[_Running] = []
    failed = []
    for point in waiting:  # a damaged summary would make readers count the point as finished
        (directory / point.name / "summary.json").unlink(missing_ok=True)
    try:
        write_csv(directory)
        while waiting or running:
            while waiting and len(running) < jobs:
                with interruption.deferred():  # A signal here would leave an orphaned process.
                    point = waiting.pop()
                    running.append(_started(point, directory, command, environment))
                if not progress.is_interactive:
                    progress.say(f"{point.title}: started")
            ended = [each for each in running if each.process.poll() is not None]
            for each in ended:
                running.remove(each)
                if failure := each.failure():
                    failed.append(each.point.name)
                    failure_note(directory, each.point).write_text(failure, encoding="utf-8")
                write_csv(directory)
                num_ended += 1
                progress.advance()
                outcome = f"finished in {time.monotonic() - each.started:.1f} s"
                outcome = f"failed with {failure}" if failure else outcome
                progress.say(f"[{num_ended}/{len(points)}] {each.point.title}: {outcome}")
            progress.describe(", ".join(each.point.title for each in running))
            time.sleep(_POLL_SECONDS)
    except Interrupted as interrupted:
        _stop([each.process for each in running], interrupted.exit_status - 128)
        write_csv(directory)
        raise
    except BaseException:
        _stop([each.process for each in running], signal.SIGTERM)
        raise
    return failed


def _started(
    point: Point, directory: Path, command: Command, environment: dict[str, str]
) -> _Running:
    """Start a point's process in a session of its own: only this process forwards signals to it."""
    log = directory / "logs" / f"{point.name}.log"
    failure_note(directory, point).unlink(missing_ok=True)
    with log.open("w") as stream:
        process = subprocess.Popen(
            command(point, directory / point.name),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    return _Running(point, process, log, time.monotonic())


def _stop(running: Sequence[subprocess.Popen[bytes]], signum: int) -> None:
    """Forward a signal to all processes and wait for them to end; later signals are forwarded too.

    After the first signal each point saves its round. A second one ends them at once. A printed line says so.
    """

    def pass_on(signum: int, frame: FrameType | None) -> None:
        for process in running:
            process.send_signal(signum)

    previous = {each: signal.signal(each, pass_on) for each in SIGNALS}
    if any(process.poll() is None for process in running):
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


def failure_note(directory: Path, point: Point) -> Path:
    """Return the path of the file that stores the last failure of a point, for reports."""
    return directory / "logs" / f"{point.name}.failure"


def write_csv(directory: Path) -> None:
    """Write sweep.csv from the points' directories: a row for each finished point and method.

    Columns: point, the swept keys (the config's own value if a point sets none), algorithm,
    num_repeats, each metric's mean and `METRIC_std` (sample deviation, empty for one repeat), workdir, and
    run_at, the point that ran the method: a different one if the swept keys do not change the method.
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
