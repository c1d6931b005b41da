"""Sweeps: plan and check the points of a config's `sweep(add)` or of a grid, and run each as a process.

    def sweep(add):                                   # or sweep(add, variant)
        for num_bits in (64, 4096):
            add(**{"xclp.num_bits": num_bits})

A baseline whose settings are the same at several points (`jaxfed.config.check`) runs at one of them and its
rows are reused at the others. In a sweep over `xclp.alpha`, for example, client_knn runs once. The main
algorithm runs at every point. In the directory of a sweep:

    sweep.json     the config, its own values of the swept keys (`base`), and all points; `reused` maps the
                   baselines that a point does not run to the point that runs them for it
    POINT/         the workdir of one point, named by its overrides
    logs/          POINT.log, the output of its process; POINT.failure, the reason if it failed

Finished points are skipped and unfinished ones resume, so the same command continues a sweep.
"""

from __future__ import annotations

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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from jaxfed.config import check, methods
from jaxfed.config import file as config_file
from jaxfed.config.check import effects, seen_by
from jaxfed.config.keys import flatten
from jaxfed.config.overrides import as_text, value_of, with_overrides
from jaxfed.errors import UsageError
from jaxfed.experiment.run.summary import complaints
from jaxfed.experiment.store import workdir
from jaxfed.experiment.store.records import read_json, read_run
from jaxfed.experiment.store.workdir import IN_A_SWEEP
from jaxfed.host import storage
from jaxfed.host.interruption import SIGNALS, Interrupted, Interruption
from jaxfed.host.terminal import Terminal

_MAX_NAME = 120  # characters; file systems allow 255 bytes
_POLL_SECONDS = 0.1


class Point(NamedTuple):
    """One experiment of a sweep.

    Fields:
        name: of its directory, unique in the sweep and the same in every plan of it.
        overrides: dotted key -> value as the config resolves it.
        texts: the same as `KEY=VALUE` for the command line, and the baselines that still run here.
        settings: the whole config, nested.
        reused: baseline -> the point that runs it for this one.
    """

    name: str
    overrides: dict[str, Any]
    texts: tuple[str, ...]
    settings: dict[str, Any]
    reused: dict[str, str]

    @property
    def title(self) -> str:
        """The point's values for display; directory names cannot contain all of them."""
        return _title(as_text(key, value) for key, value in self.overrides.items())


@dataclass(frozen=True)
class SweepPlan:
    """Checked points of a sweep.

    `overrides` (`KEY=VALUE`) apply to every point. The points come from `grid` (`KEY=VALUE,VALUE`) unless it
    is empty. `base` is the config's own value of every key that some point sets. `repeated` maps the name of
    a duplicate to that of the point that runs.
    """

    config: str
    overrides: tuple[str, ...]
    grid: tuple[str, ...]
    base: dict[str, Any]
    points: tuple[Point, ...]
    repeated: dict[str, str]


def plan(config: str, overrides: Sequence[str] = (), grid: Sequence[str] = ()) -> SweepPlan:
    """Build and check all points of a sweep before anything runs.

    Two points may resolve to one experiment, for example with the default values of two keys. It runs once,
    and `SweepPlan.repeated` maps the name of the second to that of the first.

    Args:
        config: `FILE.py[:VARIANT]`.
        overrides: `KEY=VALUE` strings that apply to every point.
        grid: `KEY=VALUE,VALUE,...` strings; their combinations replace the points of the file's `sweep`.

    Raises:
        UsageError: no `sweep`, no points, a point twice; a value that a config does not allow; a key that
            nothing reads at any point.
    """
    path, variant = config_file.split_variant(config)
    file = config_file.read(config)
    base = _checked(file, overrides)
    points: dict[str, Point] = {}
    first: dict[str, str] = {}  # settings -> the point that has them
    runs: dict[str, str] = {}  # method and its settings -> the point that runs it
    repeated: dict[str, str] = {}
    unread = dict[str, str]()
    for values in _crossed(grid) if grid else _added(path, variant):
        texts = tuple(as_text(key, value) for key, value in values.items())
        name = point_name(texts)
        try:
            loaded = _checked(file, [*overrides, *texts])
        except UsageError as error:
            raise UsageError(f"sweep point {_title(texts)}: {error}") from None
        for key, line in effects(loaded, file, [*overrides, *texts]).items():
            unread[key] = unread.get(key, line) and line
        if name in points or name in repeated:
            raise UsageError(f"--config={config}: sweep adds the point {name} twice")
        settings = loaded.to_dict()
        if (same := first.setdefault(_as_json(settings), name)) != name:
            repeated[name] = same
            continue
        flat = dict(flatten(settings))
        point = Point(name, {key: flat[key] for key in values}, texts, settings, {})
        seen = {m: f"{m} {_as_json(seen_by(loaded, m))}" for m in methods.chosen(loaded)}
        reused = {m: runs[seen[m]] for m in loaded.baselines if seen[m] in runs}
        points[name] = point = _without(file, overrides, point, reused) if reused else point
        for method in seen.keys() - point.reused.keys():
            runs.setdefault(seen[method], name)
    if not points:
        raise UsageError(f"--config={config}: sweep adds no point")
    for line in filter(None, unread.values()):
        raise UsageError(f"{line}; that is so at every point of the sweep")
    swept = dict.fromkeys(key for point in points.values() for key in point.overrides)
    own = {key: value_of(base, key) for key in swept}
    return SweepPlan(config, tuple(overrides), tuple(grid), own, tuple(points.values()), repeated)


def _checked(file: ConfigDict, overrides: Sequence[str]) -> ConfigDict:
    loaded = with_overrides(file, overrides)
    check.check(loaded)
    return loaded


def _as_json(settings: Any) -> str:
    return json.dumps(workdir.plain(settings), sort_keys=True)


def _without(
    file: ConfigDict, overrides: Sequence[str], point: Point, reused: dict[str, str]
) -> Point:
    """Return the point without the reused baselines; unchanged if its config is invalid without them."""
    left = tuple(name for name in point.settings["baselines"] if name not in reused)
    texts = (*point.texts, f"baselines={','.join(left) or ()}")
    try:
        loaded = _checked(file, [*overrides, *texts])
    except UsageError:  # for example candidate settings that only the baseline has
        return point
    return point._replace(texts=texts, settings=loaded.to_dict(), reused=reused)


def _crossed(grid: Sequence[str]) -> list[dict[str, str]]:
    """Return all combinations of the values in `KEY=VALUE,VALUE,...` strings; the last key varies fastest."""
    values: dict[str, list[str]] = {}
    for text in grid:
        key, _, listed = text.partition("=")
        if not listed:
            raise UsageError(f"--sweep.{key}: values are missing, write --sweep.{key}=VALUE,VALUE")
        if key in values:
            raise UsageError(f"--sweep.{key}: is given twice; write all its values in one list")
        values[key] = _listed(listed)
    return [
        dict(zip(values, combination, strict=True)) for combination in product(*values.values())
    ]


def _listed(text: str) -> list[str]:
    """Split at commas outside brackets: `(16,),(32, 64)` has two values."""
    values, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            values.append("")
        else:
            values[-1] += character
    return [value.strip() for value in values]


def _added(path: str, variant: str) -> list[dict[str, Any]]:
    """Return the overrides of every point that the config file adds, in order."""
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


def _title(texts: Iterable[str]) -> str:
    return ",".join(sorted(texts)) or "base"


def point_name(texts: Sequence[str]) -> str:
    """Return a directory name for `KEY=VALUE` strings: readable, safe in a shell and on any file system.

    If characters had to be replaced or cut, a digest of the full text keeps it unique.
    """
    name = _title(texts)
    safe = re.sub(r"[^A-Za-z0-9._=,+-]+", "_", name)
    if safe == name and len(name) <= _MAX_NAME:
        return name
    return f"{safe[:_MAX_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


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
    """Write sweep.json into the directory and hold its lock; refuse a directory with other content."""
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
    """Return the points that have not finished."""
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
    """Run points, `jobs` at a time, and return the names of those that failed; the others go on.

    A signal is forwarded to the processes, which save their round, and raises `Interrupted` when
    the last one has ended. With more than one job, processes share a GPU: each allocates memory on demand
    instead of most of it at the start (XLA_PYTHON_CLIENT_PREALLOCATE=false, unless it is already set).
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
                num_ended += 1
                progress.advance()
                outcome = f"finished in {time.monotonic() - each.started:.1f} s"
                outcome = f"failed with {failure}" if failure else outcome
                progress.say(f"[{num_ended}/{len(points)}] {each.point.title}: {outcome}")
            progress.describe(", ".join(each.point.title for each in running))
            time.sleep(_POLL_SECONDS)
    except Interrupted as interrupted:
        _stop([each.process for each in running], interrupted.exit_status - 128)
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
