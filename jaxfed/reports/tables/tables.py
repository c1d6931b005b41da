"""Tables of results: methods against settings, and differences paired by seed."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from jaxfed.experiment.store.records import Measurement, Run, algorithms_of, ordered_methods
from jaxfed.host.csv_file import write_csv
from jaxfed.paper_numbers import PAPER_TABLES, PaperCell, PaperTable
from jaxfed.reports.tables import remarks
from jaxfed.reports.tables.comparison import best_methods, main_and_baseline, paired_difference
from jaxfed.reports.tables.display_names import (
    difference_text,
    is_accuracy,
    markdown_text,
    measurement_text,
    metric_label,
    setting_labels,
    setting_text,
)
from jaxfed.reports.tables.method_names import difference_name, method_names
from jaxfed.reports.tables.tested_rows import shared_split

# Metrics in a run's table, in this order; all others are in the CSV.
_RUN_METRICS = (
    "test_accuracy",
    "test_balanced_accuracy",
    "unlabeled_accuracy",
    "worst_client_test_accuracy",
    "worst_client_unlabeled_accuracy",
    *("epsilon", "epsilon_sampled", "epsilon_if_stable", "epsilon_estimated"),
    *("delta", "noise_multiplier", "clip", "sampling_rate"),
    "prototype_epsilon",
    "seconds",
    "communication.upload_bytes",
    "communication.download_bytes",
)

_MEASURES = {"test_accuracy": "Accuracy", "test_balanced_accuracy": "Balanced accuracy"}
_OTHER_MEASURES = {"membership_auc": "vulnerability as the area under an ROC curve"}

STATISTICS = "Mean ± sample standard deviation (divisor n − 1; none for one repeat) over repeats. "
BEST = (
    "Bold, of the methods that leave data with the clients and from three repeats on: the best mean, and "
    "those next to it down to the first that is behind it by a two-sided t test at 5 %, paired by seed, and "
    "in 97.5 % of the draws of a bootstrap over test rows, paired by row, where predictions are stored. "
)
_TIME = "Time has compilation in it, where that was not cached. "
_EPSILONS = "Epsilons are of different promises (for a label, a record, a client): see docs/threat-model.md. "
PAIRED = "Differences are in percentage points and paired: both methods had the same seeds. "
REUSED = " †"
ONCE = "† Run once, at another point: what is swept does not change the method. "


class Cell(NamedTuple):
    """Cell of a table; `best` is printed in bold."""

    text: str
    best: bool = False


class Row(NamedTuple):
    """One setting of a table: the values of its keys, and its run if that has started."""

    values: Sequence[Any]
    run: Run | None
    failure: str = ""

    @property
    def state(self) -> str:
        """State of the run: finished, failed, not started or unfinished."""
        if self.run is not None and self.run.finished:
            return "finished"
        if self.failure:
            return "failed"
        return "not started" if self.run is None else "unfinished"


@dataclass(frozen=True)
class Table:
    """A table ready to print.

    Attributes:
        name: of its CSV file, without extension.
        title: heading above the table.
        columns: headings.
        rows: cells, one for each column.
        num_settings: number of leading columns with settings instead of results.
        caption: explanation below the table.
        records: the numbers of the CSV, one for each setting, method and metric.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    num_settings: int
    caption: str
    records: tuple[dict[str, Any], ...] = field(repr=False, default=())

    def to_markdown(self) -> str:
        """Return the table and its caption in Markdown."""
        alignment = [":--"] * self.num_settings + ["--:"] * (len(self.columns) - self.num_settings)
        lines = [
            _markdown_row(self.columns),
            _markdown_row(alignment),
            *(
                _markdown_row([f"**{c.text}**" if c.best else c.text for c in row])
                for row in self.rows
            ),
        ]
        title, caption = markdown_text(self.title), markdown_text(self.caption)
        return "\n".join([f"### {title}", "", *lines, "", caption, ""])

    def write_csv(self, path: Path) -> None:
        """Write the unrounded numbers in long form: a row for each setting, method and metric."""
        path.parent.mkdir(parents=True, exist_ok=True)
        columns = dict.fromkeys(key for record in self.records for key in record)
        write_csv(path, columns, self.records)


def run_table(run: Run, name: str) -> Table:
    """Return methods against metrics of one run, followed by its main method minus each other one."""
    results, names, of = run.results, method_names([run]), algorithms_of([run])
    metrics = [m for m in _RUN_METRICS if any(m in found for found in results.values())]
    rows = [
        (
            Cell(names[algorithm] + remarks.mark(run, algorithm)),
            *(result_cell(results, algorithm, metric, of) for metric in metrics),
        )
        for algorithm in results
    ]
    main = run.algorithm
    for other in results:
        differences = {m: paired_difference(results, main, other, m) for m in metrics}
        if any(differences.values()):
            title = difference_name(names, str(main), other)
            cells = [
                Cell("" if difference is None else difference_text(difference))
                for difference in differences.values()
            ]
            rows.append((Cell(title), *cells))
    return Table(
        name=name,
        title=f"{run.name}: all methods",
        columns=("method", *map(metric_label, metrics)),
        rows=tuple(rows),
        num_settings=1,
        caption=(
            STATISTICS
            + shared_split([run], metrics)
            + BEST
            + PAIRED * (len(rows) > len(results))
            + remarks.note([run], names)
            + _EPSILONS * any("epsilon" in metric for metric in metrics)
            + _TIME * ("seconds" in metrics)
        ).strip(),
        records=tuple(records({}, run)),
    )


def settings_table(
    name: str,
    title: str,
    keys: Sequence[str],
    rows: Sequence[Row],
    metric: str,
) -> Table:
    """Return settings against methods in one metric, with the main method's paired gain over a baseline.

    Args:
        name: of the CSV file.
        title: the settings that vary.
        keys: the settings' headings, as config keys.
        rows: the settings, in order.
        metric: the displayed one; the CSV has all.
    """
    runs = [row.run for row in rows if row.run is not None]
    any_unfinished = any(row.state != "finished" for row in rows)
    algorithms = ordered_methods(runs)
    main, baseline = main_and_baseline(runs, algorithms)
    settings = [*setting_labels(keys), *["state"] * any_unfinished]
    names = method_names(runs)
    headings = [*settings, *(names[algorithm] for algorithm in algorithms)]
    if baseline:
        headings.append(difference_name(names, main, baseline))
    lines = []
    numbers: list[dict[str, Any]] = []
    for row in rows:
        run = row.run
        pairs = list(zip(keys, row.values, strict=True))
        cells = [Cell(setting_text(value, key, names)) for key, value in pairs]
        if any_unfinished:
            cells.append(Cell(row.state))
        results = run.results if run is not None else {}
        reused = run.reused if run is not None else {}
        of = algorithms_of([run]) if run is not None else {}
        for algorithm in algorithms:
            cell = result_cell(results, algorithm, metric, of)
            marks = REUSED * (algorithm in reused) + remarks.mark(run, algorithm)
            cells.append(cell._replace(text=cell.text + marks))
        if baseline:
            gain = paired_difference(results, main, baseline, metric)
            cells.append(Cell("–" if gain is None else difference_text(gain)))
        lines.append(tuple(cells))
        if run is not None:
            numbers += records(dict(pairs), run)
    return Table(
        name=name,
        title=f"{title}: {metric_label(metric)[:1].lower()}{metric_label(metric)[1:]}",
        columns=tuple(headings),
        rows=tuple(lines),
        num_settings=len(settings),
        caption=(
            STATISTICS
            + shared_split(runs, [metric])
            + BEST
            + PAIRED * bool(baseline)
            + ONCE * any(run.reused for run in runs)
            + remarks.note(runs, names)
        ).strip(),
        records=tuple(numbers),
    )


def paper_orientation(table: PaperTable, name: str) -> Table:
    """Return a paper's own table, with a caption that its data differ from those of the results here."""
    rows = {
        setting: list(zip(table.columns, cells, strict=True))
        for setting, cells in table.rows.items()
    }
    also = "".join(
        f", and {_OTHER_MEASURES[metric]},"
        for metric in dict.fromkeys(table.other_metrics.values())
    )
    return Table(
        name=name,
        title=f"For orientation: {table.place} of the paper, on {table.data}",
        columns=(table.setting, *table.columns),
        rows=tuple(
            (Cell(setting), *(Cell(_printed(table, *cell)) for cell in cells))
            for setting, cells in rows.items()
        ),
        num_settings=1,
        caption=(
            f"{table.title}. {_MEASURES[table.metric]} in percent{also} as printed in the paper "
            f"({table.statistics}), on {table.data}. These are other data and other splits "
            f"than the results here: trends can be compared, numbers cannot. Source: {table.citation}"
        ),
        records=tuple(
            {
                table.setting: setting,
                "column": column,
                "metric": table.measure(column),
                "mean": cell[0],
                "std": cell[1],
                "unit": "percent" if is_accuracy(table.measure(column)) else "share",
            }
            for setting, cells in rows.items()
            for column, cell in cells
            if cell is not None
        ),
    )


def _printed(table: PaperTable, column: str, cell: PaperCell) -> str:
    """Return a paper's number with the digits printed there."""
    if cell is None:
        return "–"
    mean, std = cell
    if not is_accuracy(table.measure(column)):
        return f"{mean:.2f}"
    of_mean, of_std = table.decimals or ((1, 0) if std is None else (2, 2))
    text = f"{mean:.{of_mean}f}"
    return text if std is None else f"{text} ± {std:.{of_std}f}"


def primary_metric(runs: Iterable[Run]) -> str | None:
    """Return the metric of the paper's table that all runs name, else the first accuracy that any run has."""
    runs = list(runs)
    measured = {m for run in runs for metrics in run.results.values() for m in metrics}
    of_papers = {_headline(run) for run in runs}
    if len(of_papers) == 1 and of_papers <= measured:
        return of_papers.pop()
    return next((m for m in _RUN_METRICS if m in measured and is_accuracy(m)), None)


def _headline(run: Run) -> str:
    """Return the metric of the paper's table that a run names; "" if it names none."""
    table = PAPER_TABLES.get(run.config.get("paper_table", ""))
    return table.metric if table else ""


def differing_keys(runs: Sequence[Run]) -> list[str]:
    """Return the config keys in which runs differ; only the first of keys that always change together.

    Keys that more runs have come first. Lists of methods, and sections of variants that some runs lack, are
    omitted: the results show them.
    """
    found: dict[tuple[str, ...], str] = {}
    own = {
        key.partition(".")[0] for run in runs for key in run.settings if key.endswith(".algorithm")
    }
    for key in dict.fromkeys(key for run in runs for key in run.settings):
        pattern = tuple(repr(run.settings.get(key)) for run in runs)
        is_method = key.partition(".")[0] in own and any(key not in run.settings for run in runs)
        is_seen = is_method or key in ("baselines", "paper_table") or key.startswith("execution.")
        if len(set(pattern)) > 1 and not is_seen:
            found.setdefault(pattern, key)
    return sorted(found.values(), key=lambda key: sum(key not in run.settings for run in runs))


def records(settings: Mapping[str, Any], run: Run) -> list[dict[str, Any]]:
    """Return the rows of a CSV in long form."""
    return [
        {
            **{
                key: setting_text(value) for key, value in settings.items()
            },  # names as in the config
            **record_of(run, algorithm, metric, measurement),
        }
        for algorithm, metrics in run.results.items()
        for metric, measurement in metrics.items()
    ]


def record_of(run: Run, method: str, metric: str, measurement: Measurement) -> dict[str, Any]:
    """Return the row of a CSV for one measurement, without settings."""
    return {
        "algorithm": method,
        "metric": metric,
        "mean": measurement.mean,
        "std": measurement.std,
        "num_repeats": len(measurement.values),
        "values": " ".join(map(repr, measurement.values)),
        "workdir": os.fspath(run.reused.get(method, run).workdir),
    }


def slug(text: str) -> str:
    """Return a file name for a title."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def result_cell(
    results: Mapping[str, Mapping[str, Measurement]],
    method: str,
    metric: str,
    algorithms: Mapping[str, str],
) -> Cell:
    """Return a method's metric, in bold if it is among the best of these results (`best_methods`)."""
    measurement = results.get(method, {}).get(metric)
    best = best_methods(results, metric, algorithms)
    return Cell(measurement_text(metric, measurement), method in best)


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(map(markdown_text, cells)) + " |"
