"""Group the points of a sweep into curves: one swept key varies, all others are fixed."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxfed.experiment.store.records import PointRecord, Sweep


class Curve(NamedTuple):
    """Points of a sweep that differ in `key` alone; `fixed` are other swept keys off their base value."""

    key: str
    values: tuple[Any, ...]
    points: tuple[PointRecord, ...]
    fixed: dict[str, Any]


def swept_keys(sweep: Sweep) -> list[str]:
    """Return the keys with more than one value among the points, in the order they were first set."""
    keys = dict.fromkeys(key for point in sweep.points for key in point.overrides)
    return [k for k in keys if len({_hashable(sweep.value(p, k)) for p in sweep.points}) > 1]


def curves(sweep: Sweep) -> list[Curve]:
    """Return the curves of a sweep, each with at least two values.

    Every key has a curve through the points where all other keys have the config's own value. Away from
    these values (in a grid), points are joined only along the key with the most values; a grid thus has one
    family of curves, not one in every direction. A categorical key that is fully crossed with all other
    points (`selection.settings`, for example) adds a curve for each of its values along every other key.
    """
    keys = swept_keys(sweep)
    if not keys:
        return []
    longest = max(keys, key=lambda k: len({_hashable(sweep.value(p, k)) for p in sweep.points}))
    crossed = [key for key in keys if _is_crossed(sweep, key, keys)]
    found = []
    for key in keys:
        others = [other for other in keys if other != key]
        groups: dict[tuple[Any, ...], list[PointRecord]] = {}
        for point in sweep.points:
            groups.setdefault(
                tuple(_hashable(sweep.value(point, other)) for other in others), []
            ).append(point)
        base = tuple(_hashable(sweep.base.get(other)) for other in others)
        for group, points in groups.items():
            off_base = {
                other for other, value, at in zip(others, group, base, strict=True) if value != at
            }
            if len(points) < 2 or (off_base.difference(crossed) and key != longest):
                continue
            ordered = sorted(points, key=lambda point: _order(sweep.value(point, key)))
            fixed = {o: sweep.value(points[0], o) for o in others if o in off_base}
            values = tuple(sweep.value(point, key) for point in ordered)
            found.append(Curve(key, values, tuple(ordered), fixed))
    return found


def families(found: Sequence[Curve]) -> list[list[Curve]]:
    """Group curves by their key, preserving the order."""
    by_key: dict[str, list[Curve]] = {}
    for curve in found:
        by_key.setdefault(curve.key, []).append(curve)
    return list(by_key.values())


def merged_values(family: Sequence[Curve]) -> list[Any]:
    """Return the values of all curves along one key, each once, in order."""
    values = {_hashable(value): value for curve in family for value in curve.values}
    return sorted(values.values(), key=_order)


def _is_crossed(sweep: Sweep, key: str, keys: Sequence[str]) -> bool:
    """True if a key is categorical and every point exists for each of its values."""
    values = {_hashable(sweep.value(point, key)) for point in sweep.points}
    if any(is_number(value) for value in values):
        return False
    found: dict[tuple[Any, ...], set[Any]] = {}
    for point in sweep.points:
        rest = tuple(_hashable(sweep.value(point, other)) for other in keys if other != key)
        found.setdefault(rest, set()).add(_hashable(sweep.value(point, key)))
    return all(there == values for there in found.values())


def beside_curves(sweep: Sweep, found: Sequence[Curve]) -> list[PointRecord]:
    """Return the points of a sweep that lie on none of its curves."""
    on_a_curve = {point.name for curve in found for point in curve.points}
    return [point for point in sweep.points if point.name not in on_a_curve]


def is_number(value: Any) -> bool:
    """True if a swept value is a number, and not a name, a switch or a table."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _order(value: Any) -> tuple[int, float]:
    # Numbers ascend; other values keep the order of the sweep (sorts are stable).
    return (1, float(value)) if is_number(value) else (0, 0.0)


def _hashable(value: Any) -> Any:
    return repr(value) if isinstance(value, list | dict) else value
