"""Readers of the workdirs of `launch.run` and `launch.sweep`, which compare files with the run's manifest.

    manifest.json    {"files": {name: [length, SHA-256]}} of a finished run

Every reader of these files calls `read_file`, or `check_manifest` for files that another reader opens.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from jaxfed.config.keys import flatten
from jaxfed.errors import UsageError
from jaxfed.host import safe_files
from jaxfed.host.location import location
from jaxfed.host.safe_files import Damaged

# The paper's method and its baselines come first; methods on all clients' pooled data come last.
_ORDER = {"xclp": -3, "per_client_lp": -2, "client_knn": -1, "pooled_lp": 1}

MANIFEST = "manifest.json"
_TESTED = {f"test_{m}" for m in ("accuracy", "balanced_accuracy", "auroc")}
_TESTED |= {"test_expected_calibration_error"}
STATES = ("states", "preprocessing")  # folders of large files, compared when they are read
PREDICTED: dict[str, Callable[[str], Any]] = {  # columns of predictions, from their texts
    **{"client": int, "index": int, "role": str, "label": int, "confidence": float},
    "truth": lambda text: int(text) if text else None,
}


def read_file(workdir: Path, name: str) -> bytes:
    """Return the content of a file of a workdir, or `Damaged` if it differs from the run's manifest."""
    content = safe_files.content_of(workdir / name)
    _check(workdir / name, read_manifest(workdir).get(name), io.BytesIO(content))
    return content


def read_json(workdir: Path, name: str) -> dict[str, Any]:
    """Return the JSON object in a file of a workdir."""
    return safe_files.json_object(read_file(workdir, name), workdir / name)


def read_predictions(workdir: Path, method: str, repeat: int) -> list[dict[str, str]] | None:
    """Return the rows of a method's predictions, as texts by `PREDICTED`; None if it has none."""
    name = f"predictions/{method}-{repeat}.csv.gz"
    if not (workdir / name).exists() and name not in read_manifest(workdir):
        return None
    return safe_files.table_rows(read_file(workdir, name), [*PREDICTED], workdir / name)


def read_manifest(workdir: Path) -> dict[str, tuple[int, str]]:
    """Return name -> length and SHA-256 of the files of a finished run; {} for one of an older version."""
    file = workdir / MANIFEST
    if not os.path.lexists(file):
        return {}
    with safe_files.guarded(file):
        entries = safe_files.json_object(safe_files.content_of(file), file)["files"]
        return {str(name): (int(size), str(digest)) for name, (size, digest) in entries.items()}


def manifest_of(workdir: Path, names: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Return name -> length and SHA-256 of those files that exist, and of all files in those folders."""
    manifest = {}
    for path in (workdir / name for name in names):
        for file in sorted(file for file in (path, *path.rglob("*")) if file.is_file()):
            with safe_files.opened(file) as stream:
                manifest[str(file.relative_to(workdir))] = _measured(stream)
    return manifest


def check_manifest(workdir: Path, folder: str = "") -> None:
    """Compare the files of a finished run with its manifest.

    `folder` names one of states (`STATES`); by default all other files are compared, which are small.

    Raises:
        Damaged: names a file that is missing or has changed.
    """
    for name, expected in read_manifest(workdir).items():
        if name.startswith(folder) if folder else not name.startswith(STATES):
            with safe_files.opened(workdir / name) as stream:
                _check(workdir / name, expected, stream)


def _check(file: Path, expected: tuple[int, str] | None, stream: Any) -> None:
    if expected is not None and expected != (actual := _measured(stream)):
        sizes = (
            f"{actual[0]} bytes, {expected[0]} then" if actual[0] != expected[0] else "other bytes"
        )
        raise Damaged(f"{file} has changed since the run wrote it ({sizes}); restore the file")


def _measured(stream: Any) -> tuple[int, str]:
    digest = hashlib.file_digest(stream, "sha256")
    return stream.seek(0, os.SEEK_END), digest.hexdigest()


def own_measures(metrics: Iterable[str]) -> list[str]:
    """Return the test metrics that are no measure of jaxfed: users' own (`jaxfed.federation.evaluate`)."""
    return [m for m in dict.fromkeys(metrics) if m.startswith("test_") and m not in _TESTED]


class Measurement(NamedTuple):
    """One metric over the repeats of an experiment: mean, sample deviation, and each repeat's value."""

    mean: float
    std: float | None  # divisor n - 1; None for a single repeat
    values: tuple[float, ...]
    source: tuple[Path, str] | None = None  # workdir and method


def measure(values: Sequence[float]) -> Measurement:
    """Return mean and sample standard deviation (divisor n - 1; None for one value) of `values`."""
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Measurement(float(np.mean(values)), std, tuple(float(value) for value in values))


@dataclass(frozen=True)
class Run:
    """One workdir of `launch.run`: its resolved config and, once it has finished, its summary.

    `reused` has the run of another sweep point that stands for a method that the swept keys do not change.
    """

    workdir: Path
    config: dict[str, Any]
    summary: dict[str, Any] | None
    reused: Mapping[str, Run] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the workdir."""
        return self.workdir.name

    @property
    def finished(self) -> bool:
        """True if the run has written its summary."""
        return self.summary is not None

    @property
    def algorithm(self) -> str | None:
        """The run's main method; its other methods are baselines."""
        return self.entry("algorithm", self.config.get("algorithm"))

    @cached_property
    def results(self) -> dict[str, dict[str, Measurement]]:
        """Algorithm -> metric -> measurement; nested metrics are joined by a dot."""
        if not self.finished:
            return {}
        of_this_run: dict[str, Any] = self.entry("algorithms", {})
        others = {name: run.entry("algorithms", {}).get(name) for name, run in self.reused.items()}
        by_name = {name: m for name, m in (others | of_this_run).items() if m is not None}
        order = sort_algorithms(by_name, {name: self.algorithm_of(name) for name in by_name})
        return {
            name: {
                metric: measured._replace(source=(self.reused.get(name, self).workdir, name))
                for metric, measured in _measurements(by_name[name])
            }
            for name in order
        }

    def algorithm_of(self, method: str) -> str:
        """Return the algorithm of a method; a variant's config section names it."""
        return str(self.settings.get(f"{method}.algorithm", method))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The config, flat: `xclp.num_bits` -> 4096."""
        return dict(flatten(self.config))

    @property
    def num_repeats(self) -> int:
        """Number of repeats (seeds) in the summary."""
        return int(self.entry("num_repeats", self.config.get("num_repeats", 1)))

    def entry(self, key: str, otherwise: Any) -> Any:
        """Return an entry of the summary, if the run has it."""
        return (self.summary or {}).get(key, otherwise)


class PointRecord(NamedTuple):
    """One point of a sweep: the name of its directory, the keys it sets, its run if that has started."""

    name: str
    overrides: dict[str, Any]
    run: Run | None


@dataclass(frozen=True)
class Sweep:
    """One workdir of `launch.sweep`; `base` holds the config's own value of every swept key."""

    workdir: Path
    command: str
    base: dict[str, Any]
    points: tuple[PointRecord, ...]

    @property
    def name(self) -> str:
        """The name of the workdir."""
        return self.workdir.name

    def value(self, point: PointRecord, key: str) -> Any:
        """Return the value of `key` at `point`: its own, else the config's."""
        return point.overrides.get(key, self.base.get(key))


class Experiments(NamedTuple):
    """Sweeps and stand-alone runs."""

    sweeps: tuple[Sweep, ...]
    runs: tuple[Run, ...]


def find(workdirs: Sequence[str | os.PathLike[str]]) -> Experiments:
    """Find the sweeps and runs under `workdirs`, at any depth, each once.

    Raises:
        UsageError: a workdir does not exist or holds neither, or one of its files is no valid JSON.
    """
    sweeps: dict[Path, Sweep] = {}
    runs: dict[Path, Run] = {}
    for workdir in workdirs:
        root = location(workdir, "WORKDIR")
        if not root.is_dir():
            raise UsageError(f"no such directory: {root}; give a --workdir of launch.run or .sweep")
        directories = list(_experiment_directories(root))
        for directory in directories:
            if (directory / "sweep.json").is_file():
                sweeps.setdefault(directory.resolve(), read_sweep(directory))
            else:
                runs.setdefault(directory.resolve(), read_run(directory))
        if not directories:
            raise UsageError(
                f"no run or sweep under {root}; give a --workdir of launch.run or launch.sweep"
            )
    points = (point.run for sweep in sweeps.values() for point in sweep.points)
    in_a_sweep = {run.workdir.resolve() for run in points if run}
    loose = tuple(run for path, run in runs.items() if path not in in_a_sweep)
    return Experiments(tuple(sweeps.values()), loose)


def _experiment_directories(root: Path) -> Iterator[Path]:
    for path, children, files in os.walk(root):
        if "sweep.json" in files or "config.json" in files:
            yield Path(path)
        # A run holds no other run; a sweep may.
        children[:] = [] if "config.json" in files else sorted(c for c in children if c[0] != ".")


def read_run(workdir: Path) -> Run:
    """Read one workdir of `launch.run`, finished or not; a finished one is compared with its manifest."""
    summary = workdir / "summary.json"
    if summary.exists():
        check_manifest(workdir)
    return Run(
        workdir,
        config=read_json(workdir, "config.json"),
        summary=read_json(workdir, "summary.json") if summary.exists() else None,
    )


def read_sweep(workdir: Path) -> Sweep:
    """Read one workdir of `launch.sweep` and those of its points that have started."""
    content = read_json(workdir, "sweep.json")
    with safe_files.guarded(workdir / "sweep.json"):
        runs = {
            point["name"]: read_run(workdir / point["name"])
            for point in content["points"]
            if (workdir / point["name"] / "config.json").is_file()
        }
        points = []
        for point in content["points"]:
            name, reused = point["name"], point.get("reused", {})
            run = runs.get(name)
            if run is not None:
                linked = {name: runs[other] for name, other in reused.items() if other in runs}
                run = replace(run, reused=linked)
            points.append(PointRecord(name, point["overrides"], run))
        return Sweep(workdir, content["command"], content["base"], tuple(points))


def read_metrics(workdir: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl, without a last line that an interrupted run left half-written."""
    path = workdir / "metrics.jsonl"
    if not path.exists() and path.name not in read_manifest(workdir):
        return []
    return safe_files.json_lines(read_file(workdir, path.name), path)


def algorithms_of(runs: Iterable[Run]) -> dict[str, str]:
    """Return method -> its algorithm in all runs that have it; its own name if the runs differ."""
    algorithms: dict[str, set[str]] = {}
    for run in runs:
        for name in run.results:
            algorithms.setdefault(name, set()).add(run.algorithm_of(name))
    return {name: min(of) if len(of) == 1 else name for name, of in algorithms.items()}


def ordered_methods(runs: Iterable[Run]) -> list[str]:
    """Return all methods with results in the runs, in the order of `sort_algorithms`."""
    algorithms = algorithms_of(runs)
    return sort_algorithms(algorithms, algorithms)


def sort_algorithms(
    names: Iterable[str], algorithms: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Sort methods: the paper's method, its baselines, all others by name, then LP on pooled data.

    A variant follows its algorithm, which `algorithms` maps it to.
    """

    def rank(name: str) -> tuple[int, str, bool, str]:
        algorithm = algorithms.get(name, name)
        return _ORDER.get(algorithm, 0), algorithm, algorithm != name, name

    return sorted(set(names), key=rank)


def _measurements(
    metrics: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Measurement]]:
    for name, content in metrics.items():
        if not isinstance(content, Mapping):
            continue
        values = content.get("values")
        if values is None:
            yield from _measurements(content, f"{prefix}{name}.")
        # If a repeat lacks the metric (no labeled test point), it is undefined over repeats.
        elif values and all(value is not None and math.isfinite(value) for value in values):
            yield f"{prefix}{name}", measure(values)
