"""Which experiments a sweep is made of: `sweep(add)` of a config file, every point checked."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxfed.config import check
from jaxfed.config import file as config_file
from jaxfed.config.keys import flatten
from jaxfed.errors import UsageError
from jaxfed.experiment import workdir

_MAX_NAME = 120  # characters; file systems allow 255 bytes


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
    texts = tuple(config_file.as_text(key, value) for key, value in values.items())
    name = point_name(texts)
    try:
        settings = _load(config, [*overrides, *texts])
    except UsageError as error:
        raise UsageError(f"sweep point {name}: {error}") from None
    flat = dict(flatten(settings))
    return Point(name, {key: flat[key] for key in values}, texts, settings)


def point_name(texts: Sequence[str]) -> str:
    """A directory name from `KEY=VALUE` strings: readable, safe in a shell and on any file system.

    Where characters had to be replaced or cut, a digest of the whole keeps it unique.
    """
    name = ",".join(sorted(texts)) or "base"
    safe = re.sub(r"[^A-Za-z0-9._=,+-]+", "_", name)
    if safe == name and len(name) <= _MAX_NAME:
        return name
    return f"{safe[:_MAX_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
