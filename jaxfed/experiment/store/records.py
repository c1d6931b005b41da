"""Readers of the workdirs of `launch.run` and `launch.sweep`."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from jaxfed.config.keys import flatten
from jaxfed.errors import UsageError
from jaxfed.experiment.store.manifest import check_manifest, read_file, read_json, read_manifest
from jaxfed.host import safe_files
from jaxfed.host.location import location

# The paper's method and its baselines come first; methods on all clients' pooled data come last.
_FIRST_ALGORITHMS = ("xclp", "per_client_lp", "client_knn")
_LAST_ALGORITHMS = ("pooled_lp",)


class Measurement(NamedTuple):
    """One metric over the repeats of an experiment: mean, sample deviation, and each repeat's value.

    `std` is the sample standard deviation (divisor n - 1) and None for a single repeat. `source` is the
    workdir and the method; None if unknown.
    """

    mean: float
    std: float | None
    values: tuple[float, ...]
    source: tuple[Path, str] | None = None


def measure(values: Sequence[float]) -> Measurement:
    """Return mean and sample standard deviation (divisor n - 1; None for one value) of `values`."""
    if not values:
        raise ValueError("a measurement needs at least one value")
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Measurement(float(np.mean(values)), std, tuple(float(value) for value in values))


@dataclass(frozen=True)
class Run:
    """One workdir of `launch.run`: its resolved config and, once it has finished, its summary.

    Attributes:
        workdir: its directory.
        config: as resolved.
        summary: the content of summary.json; None until then.
        reused: method -> the run of another sweep point that stands for it; the swept keys do not change it.
    """

    workdir: Path
    config: dict[str, Any]
    summary: dict[str, Any] | None
    reused: Mapping[str, "Run"] = field(default_factory=dict)

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
        named = (self.summary or {}).get("algorithm", self.config.get("algorithm"))
        return named if isinstance(named, str) else None

    @cached_property
    def results(self) -> dict[str, dict[str, Measurement]]:
        """Algorithm -> metric -> measurement; nested metrics are joined by a dot."""
        if not self.finished:
            return {}
        others = {
            name: run.summary["algorithms"][name]
            for name, run in self.reused.items()
            if run.summary and name in run.summary.get("algorithms", {})
        }
        algorithms = others | (self.summary or {}).get("algorithms", {})
        return {
            algorithm: {
                metric: found._replace(source=(self.reused.get(algorithm, self).workdir, algorithm))
                for metric, found in _measurements(algorithms[algorithm])
            }
            for algorithm in sort_algorithms(
                algorithms, {name: self.algorithm_of(name) for name in algorithms}
            )
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
        return int((self.summary or {}).get("num_repeats", self.config.get("num_repeats", 1)))

    @property
    def origin(self) -> str:
        """The summary's note on the origin of the examples; mostly empty."""
        return str((self.summary or {}).get("data_origin", ""))

    @property
    def row_statistics(self) -> tuple[str, ...]:
        """The summary's lines on exact statistics of clients' rows; mostly one."""
        return tuple((self.summary or {}).get("row_statistics", ()))

    def num_examples(self, metric: str) -> int:
        """Return the number of examples that an accuracy is measured on; 0 if it is unknown."""
        counts = (self.summary or {}).get("examples", {})
        kinds = {"consensus": "public"} | {k: k for k in ("validation", "unlabeled", "test")}
        kind = next((kind for word, kind in kinds.items() if word in metric), "")
        number = counts.get(kind, 0) if isinstance(counts, dict) else 0
        return number if isinstance(number, int) else 0

    @property
    def remarks(self) -> list[str]:
        """The summary's lines on methods whose characteristic step had no effect; mostly empty."""
        return [str(line) for line in (self.summary or {}).get("remarks", ())]

    @property
    def environment(self) -> dict[str, Any]:
        """Device, versions and commit of the run, from the summary."""
        return dict((self.summary or {}).get("environment", {}))


class PointRecord(NamedTuple):
    """One point of a sweep.

    Fields:
        name: of its directory.
        overrides: the keys it sets.
        run: its run if that has started.
        failure: the reason if it failed, else "".
        reused: method -> the point that ran it for this one.
    """

    name: str
    overrides: dict[str, Any]
    run: Run | None
    failure: str = ""
    reused: Mapping[str, str] = MappingProxyType({})


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


class Found(NamedTuple):
    """Sweeps and stand-alone runs found under some workdirs."""

    sweeps: tuple[Sweep, ...]
    runs: tuple[Run, ...]


def find(workdirs: Sequence[str | os.PathLike[str]]) -> Found:
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
        found_any = False
        for directory in _experiment_directories(root):
            found_any = True
            if (directory / "sweep.json").is_file():
                sweeps.setdefault(directory.resolve(), read_sweep(directory))
            else:
                runs.setdefault(directory.resolve(), read_run(directory))
        if not found_any:
            raise UsageError(
                f"no run or sweep under {root}: looked for config.json and sweep.json; "
                "give a --workdir of launch.run or launch.sweep"
            )
    in_a_sweep = {
        point.run.workdir.resolve()
        for sweep in sweeps.values()
        for point in sweep.points
        if point.run is not None
    }
    loose = tuple(run for path, run in runs.items() if path not in in_a_sweep)
    return Found(tuple(sweeps.values()), loose)


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
        config=_read_object(workdir, "config.json", _CONFIG),
        summary=_read_object(workdir, "summary.json", _SUMMARY) if summary.exists() else None,
    )


def read_sweep(workdir: Path) -> Sweep:
    """Read one workdir of `launch.sweep` and those of its points that have started."""
    path = workdir / "sweep.json"
    content = _read_object(workdir, "sweep.json", _SWEEP)
    try:
        runs = {
            point["name"]: read_run(workdir / point["name"])
            for point in content["points"]
            if (workdir / point["name"] / "config.json").is_file()
        }
        points = tuple(_point(workdir, point, runs) for point in content["points"])
        return Sweep(
            workdir,
            content["command"],
            content["base"],
            points,
        )
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path} was not written by launch.sweep: {error!r}") from None


def _point(workdir: Path, content: Mapping[str, Any], runs: Mapping[str, Run]) -> PointRecord:
    """Return a point of sweep.json; its run refers to the runs of other points that it reuses."""
    name, reused = content["name"], content.get("reused", {})
    run = runs.get(name)
    if run is not None:
        there = {method: runs[other] for method, other in reused.items() if other in runs}
        run = replace(run, reused=there)
    return PointRecord(name, content["overrides"], run, _failure(workdir, name), reused)


# Optional keys that reports rely on: key -> type; a type in a list is that of all values.
_CONFIG = {"seed": int, "num_repeats": int, "algorithm": str, "paper_table": str}
_SUMMARY = {
    "num_repeats": int,
    "algorithm": str,
    "algorithms": [dict],
    "environment": dict,
    "data_origin": str,
    "remarks": list,
}
_ENVIRONMENT = {"command": str, "commit": str}
_SWEEP = {"command": str, "base": dict, "points": list}
_RECORD = {"algorithm": str, "round": int}


def _read_object(workdir: Path, name: str, types: Mapping[str, Any]) -> dict[str, Any]:
    path, content = workdir / name, read_json(workdir, name)
    _check_types(str(path), content, types)
    _check_types(f"{path}: environment", content.get("environment", {}), _ENVIRONMENT)
    return content


def _check_types(where: str, content: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    for key, kind in types.items():
        value = content.get(key)
        if isinstance(kind, list):
            _check_types(where, {key: value}, {key: dict})
            _check_types(f"{where}: {key}", value or {}, dict.fromkeys(value or {}, *kind))
        elif value is not None and not isinstance(value, kind):
            raise UsageError(
                f"{where}: {key} is {json.dumps(value)[:60]}, but {_JSON_NAMES[kind]} belongs there"
            )


_JSON_NAMES = {int: "an integer", str: "text", dict: "an object", list: "a list"}


def _failure(workdir: Path, point: str) -> str:
    """Return the sweep's note on why the last process of a point failed; "" if it did not fail."""
    file = workdir / "logs" / f"{point}.failure"
    return file.read_text(encoding="utf-8", errors="replace").strip() if file.is_file() else ""


def read_metrics(workdir: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl, without a last line that an interrupted run left half-written.

    Raises:
        Damaged: names the lines that hold no JSON object.
    """
    path = workdir / "metrics.jsonl"
    if not path.exists() and path.name not in read_manifest(workdir):
        return []
    records = safe_files.json_lines(read_file(workdir, path.name), path)
    for number, record in enumerate(records, start=1):
        _check_types(f"{path}: line {number}", record, _RECORD)
    return records


def algorithms_of(runs: Iterable[Run]) -> dict[str, str]:
    """Return method -> its algorithm in all runs that have it; its own name if the runs differ."""
    found: dict[str, set[str]] = {}
    for run in runs:
        for name in run.results:
            found.setdefault(name, set()).add(run.algorithm_of(name))
    return {name: min(of) if len(of) == 1 else name for name, of in found.items()}


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
    order = {name: rank for rank, name in enumerate(_FIRST_ALGORITHMS, -len(_FIRST_ALGORITHMS))}
    order |= {name: rank for rank, name in enumerate(_LAST_ALGORITHMS, 1)}

    def place(name: str) -> tuple[int, str, bool, str]:
        algorithm = algorithms.get(name, name)
        return order.get(algorithm, 0), algorithm, algorithm != name, name

    return sorted(set(names), key=place)


def _measurements(
    metrics: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Measurement]]:
    for name, content in metrics.items():
        if not isinstance(content, Mapping):
            continue
        if "values" not in content:
            yield from _measurements(content, f"{prefix}{name}.")
            continue
        values = content["values"]
        # If a repeat lacks the metric (no labeled test point), it is undefined over repeats.
        if (
            isinstance(values, list)
            and values
            and all(isinstance(v, int | float) and math.isfinite(v) for v in values)
        ):
            yield f"{prefix}{name}", measure(values)
