"""Measures of predictions: of each method with bootstrap intervals, and of each client with its support.

A run's ± is over seeds. The interval here is over test rows: the rows of all repeats are drawn anew with
replacement, as many as there are, and the ends are the 2.5th and 97.5th percentile of the mean over repeats
(Efron, "Bootstrap Methods", Annals of Statistics 1979). A row that several repeats test on is drawn in all of
them together.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas
from sklearn.metrics import precision_recall_fscore_support, roc_auc_score

from jaxfed.experiment.store.records import Run, read_json
from jaxfed.federation.evaluate import expected_calibration_error
from jaxfed.reports.comparison import Rows, judged_rows
from jaxfed.reports.names import methods_of
from jaxfed.reports.tables import Table

_DRAWS, _BLOCK = 1000, 250
_MOST_CLIENTS = 25  # with a row in the report; the CSV has all
_MEASURES = {
    "accuracy": "Accuracy [%]",
    "balanced_accuracy": "Balanced accuracy [%]",
    "macro_f1": "Macro F1 [%]",
    "sensitivity": "Sensitivity [%]",
    "specificity": "Specificity [%]",
    "auroc": "AUROC [%]",
    "calibration_error": "Calibration error [%]",
}
_CAPTION = (
    "Means over repeats, with 95 % intervals by bootstrap over test rows, where ± above is over seeds. "
    "Macro F1 and balanced accuracy are means over the classes that test rows have. "
    "{two}The calibration error is that of 15 bins of equal mass. "
)
_OF_CLIENTS = (
    "Accuracy on a client's test rows, or of its own model on all, mean over repeats; the CSV has the other "
    "measures."
)


def point_measures(rows: Rows, group: np.ndarray, num_classes: int) -> pandas.DataFrame:
    """Return support and measures of each group of rows; NaN where a class that a measure needs is absent.

    Of two classes the area is that of confidences with a sign. These order rows as the second class's
    probability does, also where a confidence is no probability.
    """
    names, of = np.unique(group, return_inverse=True)
    measures = _measures(rows, np.ones(len(of)), of, len(names), num_classes).set_axis(names)
    for name in names:
        part = rows.of(group == name)
        if num_classes == 2 and len(np.unique(part.truth)) == 2:
            sign = np.select([part.label == 1, part.label == 0], [1, -1], 0)
            area = roc_auc_score(part.truth, sign * np.nan_to_num(part.confidence))
            measures.loc[name, "auroc"] = area
        error = expected_calibration_error(part.confidence, part.label == part.truth)
        measures.loc[name, "calibration_error"] = error
    return measures.assign(support=np.bincount(of))


def _measures(
    rows: Rows, weight: np.ndarray, group: np.ndarray, num_groups: int, num_classes: int
) -> pandas.DataFrame:
    """Return a line for each group of weighted rows.

    A class has a number of its own in each group, so that one call of scikit-learn serves all groups: 0.1 to
    0.8 s for 1,000 draws of 500 to 10,000 rows, and 3 to 11 s with a call for each draw.
    """
    size = num_groups, num_classes
    numbers = np.arange(num_groups * (num_classes + 1)).reshape(num_groups, -1)  # last: no label
    _, recall, f1, support = precision_recall_fscore_support(
        numbers[group, rows.truth],
        numbers[group, rows.label],
        labels=numbers[:, :-1].ravel(),
        sample_weight=weight,
        zero_division=np.nan,
    )
    recall, f1, support = (each.reshape(size) for each in (recall, f1, support))
    present, hits = support > 0, weight * (rows.truth == rows.label)
    with np.errstate(invalid="ignore"):  # a group without rows
        measures = {
            "accuracy": np.bincount(group, hits, num_groups) / support.sum(axis=1),
            "balanced_accuracy": np.nansum(recall, axis=1) / present.sum(axis=1),
            "macro_f1": np.where(present, f1, 0).sum(axis=1) / present.sum(axis=1),
        }
    if num_classes == 2:
        measures |= {"sensitivity": recall[:, 1], "specificity": recall[:, 0]}
    return pandas.DataFrame(measures)


def intervals(repeats: Sequence[Rows], num_classes: int) -> pandas.DataFrame:
    """Return the ends, `low` and `high`, of each measure's 95 % interval over test rows."""
    every = np.unique(np.concatenate([rows.row for rows in repeats]))
    rng, drawn = np.random.default_rng(0), []
    for _ in range(_DRAWS // _BLOCK):
        weights = rng.multinomial(len(every), np.full(len(every), 1 / len(every)), size=_BLOCK)
        blocks = []
        for rows in repeats:
            pair = rows.truth * (num_classes + 1) + rows.label  # rows of equal pairs count together
            _, first, kind_of = np.unique(pair, return_index=True, return_inverse=True)
            of_row = weights[:, np.searchsorted(every, rows.row)]
            counts = np.array([np.bincount(kind_of, each) for each in of_row])
            draw, kind = np.nonzero(counts)
            of = rows.of(first[kind])
            blocks.append(_measures(of, counts[draw, kind], draw, _BLOCK, num_classes))
        drawn.append(sum(blocks) / len(blocks))
    return pandas.concat(drawn).quantile([0.025, 0.975]).set_axis(["low", "high"])


def _means(
    repeats: Sequence[Rows], num_classes: int, by_client: bool = False
) -> dict[int, dict[str, float]]:
    """Return client (0: all) -> measure -> mean over the repeats with rows, unless one lacks it."""
    groups = [rows.client * by_client for rows in repeats]
    points = [point_measures(*each, num_classes) for each in zip(repeats, groups, strict=True)]
    means = pandas.concat(points).groupby(level=0).agg(lambda values: values.mean(skipna=False))
    return {client: row.dropna().to_dict() for client, row in means.iterrows()}


def quality_tables(run: Run, names: tuple[str, str]) -> Iterator[Table]:
    """Yield the table of methods against measures, and that of clients, if clients hold the test rows."""
    read = {
        m: [judged_rows(run.workdir, m, r) for r in range(run.num_repeats)] for m in run.results
    }
    of = {m: [rows for rows in each if rows is not None] for m, each in read.items() if any(each)}
    if not of:
        return
    has_partition = (run.workdir / "partition.json").exists()
    partition = read_json(run.workdir, "partition.json") if has_partition else {}
    classes = [name for name in partition.get("class_names", ()) if name != "(unknown)"]
    size = 1 + max(int(max(r.truth.max(), r.label.max())) for rows in of.values() for r in rows)
    num_classes, methods = max(len(classes), size), methods_of([run])
    records, lines = list[dict[str, Any]](), []
    for method, repeats in of.items():
        ends, means = intervals(repeats, num_classes), _means(repeats, num_classes)[0]
        support, texts = int(means.pop("support")), {}
        for name, mean in means.items():
            record = {"algorithm": method, "metric": name, "support": support, "mean": mean}
            interval = ends.get(name, pandas.Series()).dropna()
            records.append(record | interval.to_dict())
            text = "" if interval.empty else " ({low:.1f} to {high:.1f})".format(**100 * interval)
            texts[name] = f"{100 * mean:.2f}{text}"
        if "auroc" not in texts and (area := run.results[method].get("test_auroc")):
            texts["auroc"] = f"{100 * area.mean:.2f}"
        lines.append((methods.name(method), f"{support:,}", texts))
    shown = [name for name in _MEASURES if any(name in texts for *_, texts in lines)]
    two = "Sensitivity is the recall of the second class, specificity of the first. "
    rows = [[*first, *(texts.get(m, "–") for m in shown)] for *first, texts in lines]
    columns = ("method", "test rows", *(_MEASURES[name] for name in shown))
    caption = _CAPTION.format(two=two * (num_classes == 2))
    title = f"{run.name}: measures on test rows"
    yield Table(names[0], title, columns, rows, 2, caption, records)
    if any((rows.client >= 0).any() for repeats in of.values() for rows in repeats):
        called = partition.get("client_names") if partition.get("every", 1) == 1 else None
        yield _clients_table(run, names[1], of, num_classes, called)


def _clients_table(
    run: Run, name: str, of: Mapping[str, Sequence[Rows]], num_classes: int, names: Any
) -> Table:
    """Return the accuracies of clients, which have these names, or numbers for None."""
    means_of = {m: _means(repeats, num_classes, by_client=True) for m, repeats in of.items()}
    records, lines = list[dict[str, Any]](), []
    for client in sorted({c for means in means_of.values() for c in means if c >= 0}):
        cells, support, called = [], 0, names[client] if names else str(client)
        for method, means in means_of.items():
            measures = means.get(client, {})
            support = int(measures.pop("support", support))
            records += [
                {"algorithm": method, "metric": metric, "support": support}
                | {"client": called, "mean": mean}
                for metric, mean in measures.items()
            ]
            cells.append(f"{100 * measures['accuracy']:.2f}" if measures else "–")
        lines.append([called, f"{support:,}", *cells])
    columns = ("client", "test rows", *map(methods_of([run]).name, of))
    title = f"{run.name}: clients' accuracy [%]"
    return Table(name, title, columns, lines[:_MOST_CLIENTS], 2, _OF_CLIENTS, records)
