"""Curves of a sweep, and its settings chosen by validation."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxfed.experiment.store.records import Measurement, PointRecord, Run, Sweep, ordered_methods
from jaxfed.reports.comparison import paired_difference
from jaxfed.reports.names import (
    difference_text,
    is_number,
    measurement_text,
    methods_of,
    metric_label,
    setting_label,
    setting_labels,
    setting_text,
)
from jaxfed.reports.provenance import keys_read
from jaxfed.reports.tables import BEST, PAIRED, STATISTICS, Cell, Table, records, result_cell

# Sections that define the problem and its execution; no method selects them.
_NO_CHOICE = ("dataset", "federation", "preprocessing", "execution", "selection")


class Curve(NamedTuple):
    """Points of a sweep that differ in `key` alone; `fixed` are other swept keys off their base value."""

    key: str
    points: tuple[PointRecord, ...]
    fixed: dict[str, Any]


def swept_keys(sweep: Sweep) -> list[str]:
    """Return the keys with more than one value among the points, in the order they were first set."""
    keys = dict.fromkeys(key for point in sweep.points for key in point.overrides)
    return [key for key in keys if _num_values(sweep, key) > 1]


def _num_values(sweep: Sweep, key: str) -> int:
    return len({repr(sweep.value(point, key)) for point in sweep.points})


def curves(sweep: Sweep) -> list[Curve]:
    """Return the curves of a sweep, each with at least two values.

    Every key has a curve through the points where all other keys have the config's own value. Away from
    these values (in a grid), points are joined only along the key with the most values; a grid thus has one
    family of curves, not one in every direction.
    """
    keys, all_curves = swept_keys(sweep), []
    for key in keys:
        others = [other for other in keys if other != key]
        groups: dict[str, list[PointRecord]] = {}
        for point in sweep.points:
            values = [sweep.value(point, other) for other in others]
            groups.setdefault(repr(values), []).append(point)
        for points in groups.values():
            at = {other: sweep.value(points[0], other) for other in others}
            fixed = {other: value for other, value in at.items() if value != sweep.base.get(other)}
            is_longest = key == max(keys, key=lambda key: _num_values(sweep, key))
            if len(points) > 1 and (is_longest or not fixed):
                points.sort(key=lambda point: _order(sweep.value(point, key)))
                all_curves.append(Curve(key, tuple(points), fixed))
    return all_curves


def _order(value: Any) -> tuple[int, float]:
    # Numbers ascend; other values keep the order of the sweep (sorts are stable).
    return (1, float(value)) if is_number(value) else (0, 0.0)


def validated_settings(sweep: Sweep, metric: str, name: str) -> Table | None:
    """Return `metric` of every method at the given settings and at its best ones, selected by validation.

    Among the points that differ only in methods' settings, each method gets the point with the best mean of
    `dataset.validation_measure` (of the states that validation selected). In a tie the given settings win,
    then the first point. None if no method validates or no setting of a method was swept.
    """
    keys = swept_keys(sweep)
    choices = [key for key in keys if "." in key and key.partition(".")[0] not in _NO_CHOICE]
    problem = [key for key in keys if key not in choices]
    measures = [p.run.settings.get("dataset.validation_measure") for p in sweep.points if p.run]
    validation = f"selected_validation_{next(filter(None, measures), 'accuracy')}"
    groups: dict[str, list[tuple[PointRecord, Run]]] = {}
    for point in sweep.points if choices else ():
        if point.run is not None and point.run.finished:
            at = repr([sweep.value(point, key) for key in problem])
            groups.setdefault(at, []).append((point, point.run))
    lines: list[list[str | Cell]] = []
    numbers: list[dict[str, Any]] = []
    for group in groups.values():
        settings = {key: sweep.value(group[0][0], key) for key in problem}
        base = [
            (point, run)
            for point, run in group
            if all(sweep.value(point, key) == sweep.base.get(key) for key in choices)
        ]
        before = base[0][1].results if base else {}
        best = {}
        for method in ordered_methods(run for _, run in group):
            validated = [pair for pair in (*base, *group) if validation in _of(pair, method)]
            if validated:
                best[method] = max(validated, key=lambda p: _of(p, method)[validation].mean)
        after = {method: _of(pair, method) for method, pair in best.items()}
        methods = methods_of([run for _, run in group])
        for method, (point, run) in best.items():
            chosen = {k: sweep.value(point, k) for k in choices if k in keys_read(run, method)}
            if not chosen:
                continue
            texts = [f"{setting_label(k)} {setting_text(v, k)}" for k, v in chosen.items()]
            pair_of = {"after": after[method], "before": before.get(method, {})}
            lines.append(
                [
                    *(setting_text(value, key, methods) for key, value in settings.items()),
                    methods_of([run]).name(method),
                    result_cell(before, method, metric, methods),
                    ", ".join(texts),
                    measurement_text(validation, after[method][validation]),
                    result_cell(after, method, metric, methods),
                    difference_text(paired_difference(pair_of, "after", "before", metric)),
                ]
            )
            at_point = {key: setting_text(value) for key, value in {**settings, **chosen}.items()}
            numbers += [r for r in records(at_point, run) if r["algorithm"] == method]
    if not lines:
        return None
    label = metric_label(metric)
    return Table(
        name=name,
        title=f"{sweep.name}: every method at its own settings, chosen by validation",
        columns=(
            *setting_labels(problem),
            *("method", f"{label}, as given", "chosen", metric_label(validation)),
            *(f"{label}, chosen", "gain"),
        ),
        rows=lines,
        num_settings=len(problem) + 1,
        caption=(
            f"{STATISTICS}{BEST}{PAIRED}Chosen is the point of the sweep that is best on validation examples "
            "in the mean, for each method; no test label takes part."
        ),
        records=numbers,
    )


def _of(pair: tuple[PointRecord, Run], method: str) -> Mapping[str, Measurement]:
    return pair[1].results.get(method, {})
