"""Sweeps: plan and check the points of a config's `sweep(add)` or of a grid, and run each as a process.

    def sweep(add):                                   # or sweep(add, variant)
        for num_bits in (64, 4096):
            add(**{"xclp.num_bits": num_bits})

A baseline whose settings are the same at several points (`jaxfed.config.check`) runs at one of them and its
rows are reused at the others. In the directory of a sweep:

    sweep.json     the config, its own values of the swept keys (`base`), and all points; `reused` maps the
                   baselines that a point does not run to the point that runs them for it
    POINT/         the workdir of one point, named by its overrides
    logs/          POINT.log, the output of its process

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from jaxfed.config import check, methods
from jaxfed.config import file as config_file
from jaxfed.config.check import effects, seen_by
from jaxfed.config.keys import flatten
from jaxfed.config.overrides import as_text, value_of, with_overrides
from jaxfed.errors import UsageError
from jaxfed.experiment.store import workdir
from jaxfed.experiment.store.records import read_json
from jaxfed.experiment.store.workdir import IN_A_SWEEP
from jaxfed.host import storage
from jaxfed.host.interruption import Interrupted, Interruption
from jaxfed.host.terminal import Terminal

_MAX_NAME = 120  # characters; file systems allow 255 bytes


class Point(NamedTuple):
    """One experiment of a sweep."""

    name: str  # of its directory, unique in the sweep and the same in every plan of it
    overrides: dict[str, Any]  # dotted key -> value as the config resolves it
    texts: tuple[str, ...]  # the same as `KEY=VALUE`, and the baselines that still run here
    settings: dict[str, Any]  # the whole config, nested
    reused: dict[str, str]  # baseline -> the point that runs it for this one

    @property
    def title(self) -> str:
        """The point's values for display; directory names cannot contain all of them."""
        return _title([as_text(key, value) for key, value in self.overrides.items()])


def _title(texts: Sequence[str]) -> str:
    return ",".join(sorted(texts)) or "base"


@dataclass(frozen=True)
class SweepPlan:
    """Checked points of a sweep.

    `overrides` (`KEY=VALUE`) apply to every point. The points come from `grid` (`KEY=VALUE,VALUE`) unless it
    is empty. `base` is the config's own value of every key that some point sets.
    """

    config: str
    overrides: tuple[str, ...]
    grid: tuple[str, ...]
    base: dict[str, Any]
    points: tuple[Point, ...]


def plan(config: str, overrides: Sequence[str] = (), grid: Sequence[str] = ()) -> SweepPlan:
    """Build and check all points of a sweep before anything runs.

    If two points resolve to one experiment, for example with the default values of two keys, the first runs.

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
    points: dict[str, Point | None] = {}  # None: the experiment of an earlier one
    runs: dict[str, str] = {}  # settings, or a method and its settings -> the point that runs them
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
        if name in points:
            raise UsageError(f"--config={config}: sweep adds the point {name} twice")
        settings = loaded.to_dict()
        points[name] = None
        if runs.setdefault(_as_json(settings), name) != name:
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
    left = tuple(point for point in points.values() if point)
    base_values = {key: value_of(base, key) for point in left for key in point.overrides}
    return SweepPlan(config, tuple(overrides), tuple(grid), base_values, left)


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
        if not listed or key in values:
            raise UsageError(f"--sweep.{key}: write all its values once, --sweep.{key}=VALUE,VALUE")
        # Commas in brackets are part of a value: `(16,),(32, 64)` has two.
        values[key] = re.split(r" *, *(?![^(\[]*[)\]])", listed)
    return [
        dict(zip(values, combination, strict=True)) for combination in product(*values.values())
    ]


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
    start = ["python", "-m", "launch.sweep", f"--config={sweep.config}", f"--workdir={directory}"]
    identity = {"config_file": path, "variant": variant}
    identity |= workdir.plain({"overrides": sweep.overrides, "grid": sweep.grid})
    points = [{"name": p.name, "overrides": p.overrides, "reused": p.reused} for p in sweep.points]
    plan = {"command": shlex.join([*start, *settings]), "base": sweep.base, "points": points}
    file = directory / "sweep.json"
    if file.exists():
        stored = {"grid": [], **read_json(directory, file.name)}  # older versions had no grids
        for key, value in identity.items():
            if stored.get(key) != value:
                raise UsageError(
                    f"--workdir={directory}: holds another sweep: {key} is {stored.get(key)!r} "
                    f"there, {value!r} now; give another --workdir"
                )
    elif directory.is_dir() and any(entry.name != storage.LOCK for entry in directory.iterdir()):
        raise UsageError(f"--workdir={directory}: is no workdir of launch.sweep; give a new one")
    with storage.claimed(directory, "another sweep is running here"):
        workdir.write_json(file, identity | plan)
        yield


def unfinished(sweep: SweepPlan, directory: Path) -> list[Point]:
    """Return the points that have not finished."""
    return [
        point
        for point in sweep.points
        if not workdir.is_finished(directory / point.name, point.settings)
    ]


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
    waiting, failed, num_ended = list(points)[::-1], list[str](), 0
    running: dict[subprocess.Popen[bytes], tuple[Point, float]] = {}
    for point in waiting:  # a damaged summary would make readers count the point as finished
        (directory / point.name / "summary.json").unlink(missing_ok=True)
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                with interruption.deferred():  # A signal here would leave an orphaned process.
                    point = waiting.pop()
                    process = _started(point, directory, command, environment)
                    running[process] = point, time.monotonic()
                if not progress.is_interactive:
                    progress.say(f"{point.title}: started")
            for process in [each for each in running if each.poll() is not None]:
                point, started = running.pop(process)
                outcome = f"finished in {time.monotonic() - started:.1f} s"
                if process.returncode:
                    failed.append(point.name)
                    log = directory / "logs" / f"{point.name}.log"
                    lines = log.read_text(errors="replace").strip().splitlines() or [""]
                    outcome = f"failed, {lines[-1].strip()} ({log})"
                num_ended += 1
                progress.advance()
                progress.say(f"[{num_ended}/{len(points)}] {point.title}: {outcome}")
            progress.describe(", ".join(point.title for point, _ in running.values()))
            time.sleep(0.1)
    except BaseException as error:
        signum = error.exit_status - 128 if isinstance(error, Interrupted) else signal.SIGTERM
        for process in running:
            process.send_signal(signum)
        if running:
            progress.say("stopping after the rounds that are running")
        for process in running:
            process.wait()
        raise
    return failed


def _started(
    point: Point, directory: Path, command: Command, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start a point's process in a session of its own: only this process forwards signals to it."""
    with (directory / "logs" / f"{point.name}.log").open("w") as stream:
        return subprocess.Popen(
            command(point, directory / point.name),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
