"""The tables of a sweep: methods at its points, and what the main one gains over each other one."""

from collections.abc import Callable, Iterator, Sequence

from jaxfed.experiment.records import Point, Sweep
from jaxfed.reports import tables
from jaxfed.reports.curves import Curve, beside_curves, families, swept_keys
from jaxfed.reports.gains import gains_table
from jaxfed.reports.tables import Table
from jaxfed.reports.words import setting_label

Take = Callable[..., str]  # a file name of these parts that nothing else has

_APART = 0.02  # of accuracy and balanced accuracy that both are worth a table


def curve_tables(sweep: Sweep, found: Sequence[Curve], metric: str, take: Take) -> Iterator[Table]:
    """A table of methods for every key that is swept, and of what no key orders; gains below each."""
    for family in families(found):
        key = family[0].key
        keys = [*other_keys(family), key]
        rows = [row_of(sweep, point, keys) for curve in family for point in curve.points]
        yield from _point_tables(sweep, setting_label(key), [key], keys, rows, metric, take)
    rest = beside_curves(sweep, found)
    if rest:
        keys = swept_keys(sweep) or list(sweep.base)
        rows = [row_of(sweep, point, keys) for point in rest]
        title = f"{'other ' if found else ''}points"
        yield from _point_tables(sweep, title, ["points"], keys or ["point"], rows, metric, take)


def _point_tables(
    sweep: Sweep,
    title: str,
    parts: Sequence[str],
    keys: Sequence[str],
    rows: Sequence[tables.Row],
    metric: str,
    take: Take,
) -> Iterator[Table]:
    """Methods at these points, and what the main one gains; in balanced accuracy too where that differs."""
    title = f"{sweep.name}, {title}"
    for measure in (metric, *_also(metric, rows)):
        which = [] if measure == metric else [measure]
        name = take(sweep.name, *parts, *which)
        yield tables.settings_table(name, title, keys, rows, measure, sweep.command)
        name = take(sweep.name, *parts, *which, "gains")
        gains = gains_table(name, title, keys, rows, measure, sweep.command)
        yield from [gains] if gains is not None else []


def _also(metric: str, rows: Sequence[tables.Row]) -> list[str]:
    """Balanced accuracy beside accuracy, where a method differs by two points in them: unequal classes."""
    both = ("test_accuracy", "test_balanced_accuracy")
    found = [m for row in rows if row.run for m in row.run.results.values()]
    apart = [abs(m[both[0]].mean - m[both[1]].mean) for m in found if all(b in m for b in both)]
    return [both[1]] if metric == both[0] and max(apart, default=0) >= _APART else []


def row_of(sweep: Sweep, point: Point, keys: Sequence[str]) -> tables.Row:
    """A point by its values of some keys; by its name where there are none."""
    values = [sweep.value(point, key) for key in keys] or [point.name]
    return tables.Row(values, point.run, point.failure)


def other_keys(family: Sequence[Curve]) -> list[str]:
    """The keys beside theirs in which curves along one key differ."""
    return list(dict.fromkeys(other for curve in family for other in curve.fixed))
