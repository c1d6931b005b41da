"""Points of a sweep, from `sweep(add)` of a config file or from a grid; every point is checked.

A baseline whose settings are the same at several points (`jaxfed.config.reading`) runs at one of
them and its rows are reused at the others. In a sweep over `xclp.alpha`, for example, client_knn runs once.
The main algorithm runs at every point.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from jaxfed.config import check, methods
from jaxfed.config import file as config_file
from jaxfed.config.keys import flatten
from jaxfed.config.overrides import as_text, value_of, with_overrides
from jaxfed.config.reading import effects, seen_by
from jaxfed.errors import UsageError
from jaxfed.experiment.store import workdir

_MAX_NAME = 120  # characters; file systems allow 255 bytes


class Point(NamedTuple):
    """One experiment of a sweep.

    Attributes:
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


def plan(
    config: str,
    overrides: Sequence[str] = (),
    grid: Sequence[str] = (),
    directory: Path | None = None,
) -> SweepPlan:
    """Build and check all points of a sweep before anything runs.

    Two points may resolve to one experiment, for example with the default values of two keys. It runs once,
    and `SweepPlan.repeated` maps the name of the second to that of the first.

    Args:
        config: `FILE.py[:VARIANT]`.
        overrides: `KEY=VALUE` strings that apply to every point.
        grid: `KEY=VALUE,VALUE,...` strings; their combinations replace the points of the file's `sweep`.
        directory: of the sweep. A point that has started there keeps the baselines that it started with.

    Raises:
        UsageError: the file has no `sweep` or it adds nothing, two points are the same, a point sets a key to
            a value that its config does not allow, or sets a key that nothing reads at any point.
    """
    path, variant = config_file.split_variant(config)
    file = config_file.read(config)
    base = _checked(file, overrides)
    points: dict[str, Point] = {}
    first: dict[str, str] = {}  # settings -> the point that has them
    runs: dict[str, str] = {}  # a method and its settings -> the point that runs it
    repeated: dict[str, str] = {}
    unread = dict[str, str]()
    given = [
        (values, tuple(as_text(key, value) for key, value in values.items()))
        for values in (_crossed(grid) if grid else _added(path, variant))
    ]
    names = [point_name(texts) for _, texts in given]
    begun = [directory and (directory / name / "config.json").exists() for name in names]
    for place in sorted(range(len(given)), key=lambda place: not begun[place]):
        (values, texts), name = given[place], names[place]
        try:
            loaded = _checked(file, [*overrides, *texts])
        except UsageError as error:
            raise UsageError(f"sweep point {_title(texts)}: {error}") from None
        for key, line in effects(file, [*overrides, *texts]).items():
            unread[key] = unread.get(key, line) and line
        if name in points or name in repeated:
            raise UsageError(f"--config={config}: sweep adds the point {name} twice")
        settings = loaded.to_dict()
        if (same := first.setdefault(_as_json(settings), name)) != name:
            repeated[name] = same
            continue
        at = {
            method: runs.setdefault(f"{method} {_as_json(seen_by(loaded, method))}", name)
            for method in methods.chosen(loaded)
        }
        flat = dict(flatten(settings))
        point = Point(name, {key: flat[key] for key in values}, texts, settings, {})
        reused = {method: at[method] for method in loaded.baselines if at[method] != name}
        points[name] = _without(file, overrides, point, reused) if reused else point
    if not points:
        raise UsageError(f"--config={config}: sweep adds no point")
    for line in filter(None, unread.values()):
        raise UsageError(f"{line}; that is so at every point of the sweep")
    swept = dict.fromkeys(key for point in points.values() for key in point.overrides)
    own = {key: value_of(base, key) for key in swept}
    in_order = tuple(points[name] for name in names if name in points)
    return SweepPlan(config, tuple(overrides), tuple(grid), own, in_order, repeated)


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
