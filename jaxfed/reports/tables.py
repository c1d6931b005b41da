"""Tables of results: methods against metrics and settings, differences paired by seed, papers' numbers."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas

from jaxfed.experiment.store.records import Measurement, Run, ordered_methods, own_measures
from jaxfed.host import storage
from jaxfed.paper_numbers import PAPER_TABLES, PaperCell, PaperTable
from jaxfed.reports.comparison import (
    LEAST_REPEATS,
    best_methods,
    is_ahead_on_other_rows,
    paired_difference,
    standard_error,
)
from jaxfed.reports.names import (
    REMARK,
    Methods,
    difference_text,
    is_accuracy,
    latex_text,
    lower,
    mark,
    markdown_text,
    measurement_text,
    methods_of,
    metric_label,
    setting_labels,
    setting_text,
)

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
    "by 1.96 standard errors over test rows, paired by row, where predictions are stored. "
)
PAIRED = "Differences are in percentage points and paired: both methods had the same seeds. "
REUSED = " †"
ONCE = "† Run once, at another point: what is swept does not change the method. "
_GAINS = (
    "Differences in percentage points, paired by seed: mean ± standard error (s / √n; none for one seed). "
    "Bold, from three repeats on: ahead by more than two of them, and by 1.96 of those over test rows. "
    "The last lines count the settings that are ahead, and behind, by more than two; others are level."
)
_TIME = "Time has compilation in it, where that was not cached. "
_EPSILONS = "Epsilons are of different promises (for a label, a record, a client): see docs/threat-model.md. "


Cell = tuple[str, bool]  # a text, and True if it is printed in bold


class Row(NamedTuple):
    """One setting of a table: the values of its keys, and its run if that has started."""

    values: Sequence[Any]
    run: Run | None


class Table:
    """A table ready to print, as data frames.

    Attributes:
        name: of its files, without extension.
        title: heading above the table.
        texts: as they are printed; the columns are the headings.
        best: True where a text is in bold.
        aligned: a letter for each column, l or r.
        caption: explanation below the table.
        records: the numbers of the CSV, a row for each setting, method and metric.
    """

    def __init__(
        self,
        name: str,
        title: str,
        columns: Iterable[str],
        rows: Iterable[Iterable[str | Cell]],
        num_settings: int,
        caption: str,
        records: Iterable[Mapping[str, Any]],
    ) -> None:
        self.name, self.title, self.caption = name, title, caption.strip()
        headings = [*map(_utf8, columns)]
        self.aligned = "l" * num_settings + "r" * (len(headings) - num_settings)
        cells = [[(each, False) if isinstance(each, str) else each for each in row] for row in rows]
        texts, best = ([[_utf8(cell[part]) for cell in row] for row in cells] for part in (0, 1))
        self.texts = pandas.DataFrame(texts, columns=headings, dtype=object)
        self.best = pandas.DataFrame(best, columns=headings, dtype=bool)
        numbers = [{key: storage.inert(_utf8(v)) for key, v in row.items()} for row in records]
        self.records = pandas.DataFrame(numbers, dtype=object)  # 3 stays 3 in a column with gaps

    def to_markdown(self) -> str:
        """Return the table and its caption in Markdown."""
        aligned = [":--" if side == "l" else "--:" for side in self.aligned]
        texts = self._printed(markdown_text, "**{}**")
        grid = (texts.columns, aligned, *texts.to_numpy())
        lines = [f"| {' | '.join(cells)} |" for cells in grid]
        title, caption = markdown_text(self.title), markdown_text(self.caption)
        return "\n".join([f"### {title}", "", *lines, "", caption, ""])

    def to_latex(self) -> str:
        """Return the table, without its caption, as a LaTeX tabular with booktabs' rules."""
        texts = self._printed(latex_text, r"\textbf{{{}}}")
        head, *body = (" & ".join(cells) + r" \\" for cells in (texts.columns, *texts.to_numpy()))
        ends = rf"\begin{{tabular}}{{{self.aligned}}}", r"\end{tabular}"
        return "\n".join(
            [ends[0], r"\toprule", head, r"\midrule", *body, r"\bottomrule", ends[1], ""]
        )

    def _printed(self, escape: Callable[[str], str], bold: str) -> pandas.DataFrame:
        texts = self.texts.rename(columns=escape).map(escape)
        return texts.mask(self.best.to_numpy(), texts.map(bold.format))

    def write(self, folder: Path) -> None:
        """Write NAME.tex, and NAME.csv with the unrounded numbers: a row for each record."""
        folder.mkdir(parents=True, exist_ok=True)
        with storage.whole_file(folder / f"{self.name}.csv") as stream:
            self.records.to_csv(stream, index=False, lineterminator="\n")
        with storage.whole_file(folder / f"{self.name}.tex") as stream:
            stream.write(self.to_latex())


def _utf8(value: Any) -> Any:
    # Half of a surrogate pair, of a folder's name or a JSON file, is none: pandas refuses it.
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def run_table(run: Run, name: str) -> Table:
    """Return methods against metrics of one run, followed by its main method minus each other one."""
    results, methods = run.results, methods_of([run])
    measured = dict.fromkeys(m for measurements in results.values() for m in measurements)
    metrics = [m for m in (*own_measures(measured), *_RUN_METRICS) if m in measured]
    rows: list[list[str | Cell]] = [
        [
            methods.name(method) + mark(run, method),
            *(result_cell(results, method, metric, methods) for metric in metrics),
        ]
        for method in results
    ]
    main = run.algorithm
    for other in results:
        gains = [paired_difference(results, main, other, metric) for metric in metrics]
        if any(gains):
            texts = ["" if gain is None else difference_text(gain) for gain in gains]
            both = map(methods.name, (str(main), other))
            title = " − ".join(f"({each})" if " + " in each else each for each in both)
            rows.append([title, *texts])
    return Table(
        name=name,
        title=f"{run.name}: all methods",
        columns=("method", *map(metric_label, metrics)),
        rows=rows,
        num_settings=1,
        caption=(
            STATISTICS
            + BEST
            + PAIRED * (len(rows) > len(results))
            + _remarks([run], methods)
            + _EPSILONS * any("epsilon" in metric for metric in metrics)
            + _TIME * ("seconds" in metrics)
        ),
        records=records({}, run),
    )


def settings_table(
    name: str, title: str, keys: Sequence[str], rows: Sequence[Row], metric: str
) -> Table:
    """Return settings (of these config keys, one a row) against methods in one metric; the CSV has all."""
    runs = [row.run for row in rows if row.run]
    ordered, methods = ordered_methods(runs), methods_of(runs)
    lines = []
    for row in rows:
        cells: list[str | Cell] = [*_settings(keys, row, methods).values()]
        results = row.run.results if row.run else {}
        of = methods_of([row.run] if row.run else [])
        for method in ordered:
            text, is_best = result_cell(results, method, metric, of)
            marks = REUSED * bool(row.run and method in row.run.reused) + mark(row.run, method)
            cells.append((text + marks, is_best))
        lines.append(cells)
    return Table(
        name=name,
        title=f"{title}: {lower(metric_label(metric))}",
        columns=(*setting_labels(keys), *map(methods.name, ordered)),
        rows=lines,
        num_settings=len(keys),
        caption=(
            STATISTICS + BEST + ONCE * any(run.reused for run in runs) + _remarks(runs, methods)
        ),
        records=[r for row in rows if row.run for r in records(_settings(keys, row), row.run)],
    )


def gains_table(
    name: str, title: str, keys: Sequence[str], rows: Sequence[Row], metric: str
) -> Table | None:
    """Return the main method minus every other one in each setting, and counts of settings ahead and behind.

    Rows without results are omitted. None if runs have no main method in common, or nothing is compared.
    """
    finished = [(row, row.run) for row in rows if row.run is not None and row.run.finished]
    runs = [run for _, run in finished]
    mains = {run.algorithm for run in runs}
    main, methods = str(min(mains, key=str, default="")), methods_of(runs)
    others = [method for method in ordered_methods(runs) if method != main]
    gained = {o: [paired_difference(run.results, main, o, metric) for run in runs] for o in others}
    if len(mains) != 1 or not any(map(any, gained.values())):
        return None
    lines = [
        [
            *_settings(keys, row, methods).values(),
            *(_gain_cell(gained[other][i], run, (main, other, metric)) for other in others),
        ]
        for i, (row, run) in enumerate(finished)
    ]
    for word, sign in (("ahead", 1), ("behind", -1)):
        signs = [[_sign(gain) for gain in gained[other] if gain] for other in others]
        counts = [f"{each.count(sign)} of {len(each)}" for each in signs]
        lines.append([word, *[""] * (len(keys) - 1), *counts])
    return Table(
        name=name,
        title=f"{title}: what {methods.name(main)} gains in {lower(metric_label(metric))}",
        columns=(*setting_labels(keys), *(f"over {methods.name(other)}" for other in others)),
        rows=lines,
        num_settings=len(keys),
        caption=_GAINS,
        records=[
            {**_settings(keys, row), "algorithm": main, "over": other, "metric": metric}
            | {"mean": gain.mean, "standard_error": gain.std and standard_error(gain)}
            | {"num_repeats": len(gain.values)}
            for i, (row, _) in enumerate(finished)
            for other in others
            if (gain := gained[other][i]) is not None
        ],
    )


def _sign(gain: Measurement) -> int:
    """Return 1 (ahead) or -1 (behind) if the difference exceeds two standard errors, else 0."""
    return (abs(gain.mean) > 2 * standard_error(gain)) * (1 if gain.mean > 0 else -1)


def _gain_cell(gain: Measurement | None, run: Run, compared: tuple[str, str, str]) -> Cell:
    if gain is None:
        return "–", False
    *pair, metric = compared
    first, second = (run.results[method][metric] for method in pair)
    is_ahead = len(gain.values) >= LEAST_REPEATS and _sign(gain) > 0
    text = difference_text(gain._replace(std=gain.std and standard_error(gain)))
    return text, is_ahead and is_ahead_on_other_rows(first, second, metric)


def _settings(keys: Sequence[str], row: Row, methods: Methods | None = None) -> dict[str, Any]:
    """Return key -> text of its value, for the CSV or, with `methods`, as it is printed."""
    values = dict(zip(keys, row.values, strict=True))
    return {k: setting_text(v, *((k, methods) if methods else ())) for k, v in values.items()}


def paper_orientation(table: PaperTable, name: str) -> Table:
    """Return a paper's own table, with a caption that its data differ from those of the results here."""
    rows = {row: [*zip(table.columns, of, strict=True)] for row, of in table.rows.items()}
    others = {_OTHER_MEASURES[metric]: None for metric in table.other_metrics.values()}
    also = "".join(f", and {measure}," for measure in others)
    return Table(
        name=name,
        title=f"For orientation: {table.location} of the paper, on {table.data}",
        columns=(table.setting, *table.columns),
        rows=[
            [setting, *(_paper_text(table, *cell) for cell in cells)]
            for setting, cells in rows.items()
        ],
        num_settings=1,
        caption=(
            f"{table.title}. {_MEASURES[table.metric]} in percent{also} as printed in the paper "
            f"({table.statistics}), on {table.data}. These are other data and other splits "
            f"than the results here: trends can be compared, numbers cannot. Source: {table.citation}"
        ),
        records=[
            {table.setting: setting, "column": column, "metric": (metric := table.measure(column))}
            | {"mean": cell[0], "std": cell[1]}
            | {"unit": "percent" if is_accuracy(metric) else "share"}
            for setting, cells in rows.items()
            for column, cell in cells
            if cell is not None
        ],
    )


def _paper_text(table: PaperTable, column: str, cell: PaperCell) -> str:
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
    papers = [PAPER_TABLES.get(run.config.get("paper_table", "")) for run in runs]
    of_papers = {paper.metric if paper else "" for paper in papers}
    if len(of_papers) == 1 and of_papers <= measured:
        return of_papers.pop()
    return next((m for m in _RUN_METRICS if m in measured and is_accuracy(m)), None)


def differing_keys(runs: Sequence[Run]) -> list[str]:
    """Return the config keys in which runs differ; only the first of keys that always change together.

    Keys that more runs have come first. Lists of methods, and sections of variants that some runs lack, are
    omitted: the results show them.
    """
    settings = pandas.DataFrame([{k: repr(v) for k, v in run.settings.items()} for run in runs])
    variants = {key.partition(".")[0] for key in settings if key.endswith(".algorithm")}
    missing = settings.isna().sum()
    keys = [
        key
        for key in settings
        if key not in ("baselines", "paper_table")
        and not key.startswith("execution.")
        and not (missing[key] and key.partition(".")[0] in variants)
    ]
    texts = settings[keys].fillna("None")
    return sorted(texts.loc[:, texts.nunique() > 1].T.drop_duplicates().index, key=missing.get)


def records(settings: Mapping[str, Any], run: Run) -> list[dict[str, Any]]:
    """Return the rows of a CSV in long form, one for each method and metric; settings have their texts."""
    return [
        {
            **settings,
            "algorithm": method,
            "metric": metric,
            "mean": measurement.mean,
            "std": measurement.std,
            "num_repeats": len(measurement.values),
            "values": " ".join(map(repr, measurement.values)),
            "workdir": os.fspath(run.reused.get(method, run).workdir),
        }
        for method, metrics in run.results.items()
        for metric, measurement in metrics.items()
    ]


def result_cell(
    results: Mapping[str, Mapping[str, Measurement]], method: str, metric: str, methods: Methods
) -> Cell:
    """Return a method's metric, in bold if it is among the best of these results (`best_methods`)."""
    text = measurement_text(metric, results.get(method, {}).get(metric))
    return text, method in best_methods(results, metric, methods.algorithms)


def _remarks(runs: Sequence[Run], methods: Methods) -> str:
    """Return the footnote on marked methods: of each reason the methods, with the repeats of a single run."""
    methods_of_reason: dict[str, dict[str, None]] = {}
    # METHOD in repeats 1, 3: reason
    for line in (line for run in runs for line in run.entry("remarks", ())):
        where, _, reason = line.partition(": ")
        method, _, repeats = where.rpartition(" in ")
        method_text = methods.name(method) + f" in {repeats}" * (len(runs) == 1)
        methods_of_reason.setdefault(reason, {})[method_text] = None
    return "".join(
        f"{REMARK[1:]} {'; '.join(names)}: {why}. " for why, names in methods_of_reason.items()
    )
