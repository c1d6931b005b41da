"""Tables of a sweep: methods at its points, and gains of the main method over each other one."""

from collections.abc import Callable, Iterator, Sequence

from jaxfed.experiment.store.records import PointRecord, Sweep
from jaxfed.reports.tables import tables
from jaxfed.reports.tables.curves import Curve, beside_curves, swept_keys
from jaxfed.reports.tables.display_names import setting_label
from jaxfed.reports.tables.gains import gains_table
from jaxfed.reports.tables.tables import Table

Take = Callable[..., str]  # returns a unique file name made of the given parts

_APART = 0.02  # difference of accuracy and balanced accuracy from which both have a table


def family_tables(
    sweep: Sweep, family: Sequence[Curve], metric: str, take: Take
) -> Iterator[Table]:
    """Yield a table of methods at the points along one swept key, followed by gains."""
    key = family[0].key
    keys = [*other_keys(family), key]
    rows = [row_of(sweep, point, keys) for curve in family for point in curve.points]
    yield from _point_tables(sweep, setting_label(key), [key], keys, rows, metric, take)


def beside_tables(sweep: Sweep, found: Sequence[Curve], metric: str, take: Take) -> Iterator[Table]:
    """Yield a table of methods at the points on no curve, followed by gains."""
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
    """Yield tables of methods and gains at these points; also in balanced accuracy if that differs."""
    title = f"{sweep.name}, {title}"
    for measure in (metric, *_also(metric, rows)):
        which = [] if measure == metric else [measure]
        name = take(sweep.name, *parts, *which)
        yield tables.settings_table(name, title, keys, rows, measure)
        name = take(sweep.name, *parts, *which, "gains")
        gains = gains_table(name, title, keys, rows, measure)
        yield from [gains] if gains is not None else []


def _also(metric: str, rows: Sequence[tables.Row]) -> list[str]:
    """Return balanced accuracy as a second metric if a method's two accuracies differ by two points.

    That happens with unequal class sizes.
    """
    both = ("test_accuracy", "test_balanced_accuracy")
    found = [m for row in rows if row.run for m in row.run.results.values()]
    apart = [abs(m[both[0]].mean - m[both[1]].mean) for m in found if all(b in m for b in both)]
    return [both[1]] if metric == both[0] and max(apart, default=0) >= _APART else []


def row_of(sweep: Sweep, point: PointRecord, keys: Sequence[str]) -> tables.Row:
    """Return the row of a point: its values of some keys, or its name if there are no keys."""
    values = [sweep.value(point, key) for key in keys] or [point.name]
    return tables.Row(values, point.run, point.failure)


def other_keys(family: Sequence[Curve]) -> list[str]:
    """Return the other keys in which the curves along one key differ."""
    return list(dict.fromkeys(other for curve in family for other in curve.fixed))
