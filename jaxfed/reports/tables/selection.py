"""Tables of settings chosen without test labels: by clients' labels in a run, by validation over a sweep."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxfed.experiment.store.records import (
    Measurement,
    PointRecord,
    Run,
    Sweep,
    algorithms_of,
    ordered_methods,
    sort_algorithms,
)
from jaxfed.reports.tables.comparison import paired_difference
from jaxfed.reports.tables.curves import swept_keys
from jaxfed.reports.tables.display_names import (
    difference_text,
    measurement_text,
    metric_label,
    setting_label,
    setting_labels,
    setting_text,
)
from jaxfed.reports.tables.method_names import method_names, own_label
from jaxfed.reports.tables.provenance import reads
from jaxfed.reports.tables.tables import (
    BEST,
    ONCE,
    PAIRED,
    REUSED,
    STATISTICS,
    Cell,
    Row,
    Table,
    records,
    result_cell,
)

_CHOSEN = "selected."  # prefix of the settings that a one-shot method selected
# Sections that define the problem and its execution; no method selects them.
_NO_CHOICE = ("dataset", "federation", "preprocessing", "execution", "selection")


def chosen_settings(
    name: str, title: str, keys: Sequence[str], rows: Sequence[Row]
) -> Table | None:
    """Return the settings selected by clients' labels in each repeat; None if nothing was selected.

    Selection is by cross-validation (`selection.settings`) or leave-one-out (`select`). The table has
    settings as rows and methods as columns.

    Arguments as `jaxfed.reports.tables.tables.settings_table`; rows without a selection are omitted.
    """
    there = [(row, row.run) for row in rows if row.run is not None]
    found = [(row, run) for row, run in there if any(_chosen(run, a) for a in run.results)]
    if not found:
        return None
    runs = [run for _, run in found]
    choosing = {a for run in runs for a in run.results if _chosen(run, a)}
    algorithms = sort_algorithms(choosing, algorithms_of(runs))
    names = method_names(runs)
    lines = [
        (
            *(Cell(setting_text(v, key, names)) for key, v in zip(keys, row.values, strict=True)),
            *(
                Cell((_chosen(run, algorithm) or "–") + REUSED * (algorithm in run.reused))
                for algorithm in algorithms
            ),
        )
        for row, run in found
    ]
    numbers = [
        record
        for row, run in found
        for record in records(dict(zip(keys, row.values, strict=True)), run)
        if record["metric"].startswith((_CHOSEN, "cross_validation.", "leave_one_out."))
    ]
    return Table(
        name=name,
        title=f"{title}: settings chosen by clients' labels",
        columns=(*setting_labels(keys), *(names[algorithm] for algorithm in algorithms)),
        rows=tuple(lines),
        num_settings=len(keys),
        caption=(
            "What each method chose, and in how many repeats, by how many of the clients' labels came back, "
            "hidden or left out; no test label takes part. The CSV has the shares that came back, with "
            "these settings and with the given ones."
            + f" {ONCE}".rstrip()
            * any(choosing.intersection(run.reused) for run in runs)
        ),
        records=tuple(numbers),
    )


def _chosen(run: Run, algorithm: str) -> str:
    """Return counts of the values over repeats: `propagation alpha 0.95 in 3 of 5, 0.9 in 2 of 5`.

    A categorical choice is reported one-hot: a metric for each name, 1 for the selected one.
    """
    values: dict[str, Sequence[Any]] = {}
    for metric, found in run.results.get(algorithm, {}).items():
        if metric.startswith(_CHOSEN):
            key, _, name = metric.removeprefix(_CHOSEN).partition(".")
            before = values.get(key, found.values)
            values[key] = (
                [
                    name if is_it else other
                    for is_it, other in zip(found.values, before, strict=True)
                ]
                if name
                else found.values
            )
    of = run.algorithm_of(algorithm)
    return "; ".join(
        f"{own_label(f'{of}.{key}', of, of)} {_counts(chosen)}" for key, chosen in values.items()
    )


def _counts(chosen: Sequence[Any]) -> str:
    """Return the values with the number of repeats that chose each, most frequent first."""
    counted = Counter(map(setting_text, chosen)).most_common()
    if len(chosen) == 1:
        return counted[0][0]
    return ", ".join(f"{text} in {count} of {len(chosen)}" for text, count in counted)


def validated_settings(sweep: Sweep, metric: str, name: str) -> Table | None:
    """Return `metric` of every method at the given settings and at its best ones, selected by validation.

    Among the points that differ only in methods' settings, each method gets the point with the best mean of
    `dataset.validation_measure` (of the states that validation selected). In a tie the given settings win,
    then the first point. None if no method validates or no setting of a method was swept.
    """
    keys = swept_keys(sweep)
    choices = [key for key in keys if "." in key and key.partition(".")[0] not in _NO_CHOICE]
    problem = [key for key in keys if key not in choices]
    if not choices:
        return None
    measures = [p.run.settings.get("dataset.validation_measure") for p in sweep.points if p.run]
    validation = f"selected_validation_{next(filter(None, measures), 'accuracy')}"
    lines: list[tuple[Cell, ...]] = []
    numbers: list[dict[str, Any]] = []
    for finished in _alike(sweep, problem):
        values = {key: sweep.value(finished[0].point, key) for key in problem}
        given = [
            each
            for each in finished
            if all(sweep.value(each.point, key) == sweep.base.get(key) for key in choices)
        ]
        before = given[0].run.results if given else {}
        best = dict(_best(given + [each for each in finished if each not in given], validation))
        after = {algorithm: each.run.results[algorithm] for algorithm, each in best.items()}
        of = algorithms_of(run for _, run in finished)
        for algorithm, (point, run) in best.items():
            names = method_names([run])
            chosen = {k: sweep.value(point, k) for k in choices if reads(run, k, algorithm)}
            if not chosen:
                continue
            texts = [f"{setting_label(k)} {setting_text(v, k)}" for k, v in chosen.items()]
            lines.append(
                (
                    *(Cell(setting_text(value, key, names)) for key, value in values.items()),
                    Cell(names[algorithm]),
                    result_cell(before, algorithm, metric, of),
                    Cell(", ".join(texts)),
                    Cell(measurement_text(validation, after[algorithm][validation])),
                    result_cell(after, algorithm, metric, of),
                    Cell(_gain(before, after, algorithm, metric)),
                )
            )
            of_point = records({**values, **chosen}, run)
            numbers += [record for record in of_point if record["algorithm"] == algorithm]
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
        rows=tuple(lines),
        num_settings=len(problem) + 1,
        caption=(
            f"{STATISTICS}{BEST}{PAIRED}Chosen is the point of the sweep that is best on validation examples "
            "in the mean, for each method; no test label takes part."
        ),
        records=tuple(numbers),
    )


class _Finished(NamedTuple):
    point: PointRecord
    run: Run


def _alike(sweep: Sweep, problem: Sequence[str]) -> list[list[_Finished]]:
    """Group the finished points of a sweep by their problem."""
    groups: dict[str, list[_Finished]] = {}
    for point in sweep.points:
        if point.run is not None and point.run.finished:
            values = repr([sweep.value(point, key) for key in problem])
            groups.setdefault(values, []).append(_Finished(point, point.run))
    return list(groups.values())


def _best(points: Sequence[_Finished], validation: str) -> Iterator[tuple[str, _Finished]]:
    """Yield each method that validates with its best point; the first one in a tie."""
    for algorithm in ordered_methods(run for _, run in points):
        validated = [each for each in points if validation in each.run.results.get(algorithm, {})]
        if validated:
            yield (
                algorithm,
                max(validated, key=lambda p: p.run.results[algorithm][validation].mean),
            )


def _gain(
    before: Mapping[str, Mapping[str, Measurement]],
    after: Mapping[str, Mapping[str, Measurement]],
    algorithm: str,
    metric: str,
) -> str:
    """Return a method's gain from selection as text, paired by seed."""
    if algorithm not in before:
        return "–"
    pair = {"after": after[algorithm], "before": before[algorithm]}
    gain = paired_difference(pair, "after", "before", metric)
    return "–" if gain is None else difference_text(gain)
