"""Measures of predictions: of each method with bootstrap intervals, and of each client with its support.

A run's ± is over seeds. The interval here is over test rows: the rows of all repeats are drawn anew with
replacement, as many as there are, and the ends are the 2.5th and 97.5th percentile of the mean over repeats
(Efron, "Bootstrap Methods", Annals of Statistics 1979). A row that several repeats test on is drawn in all of
them together.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxfed.experiment.store.records import Run, read_json
from jaxfed.federation.evaluate import auroc, expected_calibration_error
from jaxfed.reports.comparison import Rows, judged_rows
from jaxfed.reports.names import methods_of
from jaxfed.reports.tables import Cell, Table

_DRAWS, _BLOCK = 1000, 50
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


def measures_of(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Return the measures of confusion counts [..., C, C + 1]: truth, and label with a last column for none.

    They are scikit-learn's `accuracy_score`, `balanced_accuracy_score`, `f1_score(average="macro")` over the
    classes with rows, and for two classes `recall_score` of the second and of the first.
    """
    hits, support = np.diagonal(counts, axis1=-2, axis2=-1), counts.sum(axis=-1)
    predicted, present = counts.sum(axis=-2)[..., :-1], support > 0
    recall = np.divide(hits, support, out=np.zeros_like(hits, float), where=present)
    f1 = np.divide(
        2 * hits, support + predicted, out=np.zeros_like(recall), where=support + predicted > 0
    )
    number = present.sum(axis=-1)
    measures = {
        "accuracy": hits.sum(axis=-1) / support.sum(axis=-1),
        "balanced_accuracy": recall.sum(axis=-1) / number,
        "macro_f1": np.where(present, f1, 0).sum(axis=-1) / number,
    }
    if counts.shape[-2] == 2:
        measures |= {"sensitivity": recall[..., 1], "specificity": recall[..., 0]}
    return measures


def _counts(rows: Rows, num_classes: int, weights: np.ndarray) -> np.ndarray:
    """Return the confusion counts of weighted rows, weights [B, n] -> [B, C, C + 1]."""
    place = rows.truth * (num_classes + 1) + np.where(rows.label < 0, num_classes, rows.label)
    size = num_classes * (num_classes + 1)
    sums = [np.bincount(place, weight, minlength=size) for weight in weights]
    return np.reshape(sums, (-1, num_classes, num_classes + 1))


def point_measures(rows: Rows, num_classes: int) -> dict[str, float]:
    """Return all measures of some rows; of two classes the area, by confidences with a sign.

    These order rows as the second class's probability does, also where a confidence is no probability.
    """
    counts = _counts(rows, num_classes, np.ones((1, len(rows.row))))
    measures = {name: float(values[0]) for name, values in measures_of(counts).items()}
    if num_classes == 2 and len(np.unique(rows.truth)) == 2:
        signed = rows.confidence * np.select([rows.label == 1, rows.label == 0], [1, -1], 0)
        measures["auroc"] = auroc(np.stack([-signed, signed], axis=1), rows.truth)
    is_right = rows.label == rows.truth
    measures["calibration_error"] = expected_calibration_error(rows.confidence, is_right)
    return measures


def intervals(repeats: list[Rows], num_classes: int) -> dict[str, tuple[float, float]]:
    """Return measure -> ends of its 95 % interval over test rows."""
    every = np.unique(np.concatenate([rows.row for rows in repeats]))
    rng, drawn = np.random.default_rng(0), dict[str, list[np.ndarray]]()
    for _ in range(_DRAWS // _BLOCK):
        weights = rng.multinomial(len(every), np.full(len(every), 1 / len(every)), size=_BLOCK)
        blocks = [
            measures_of(_counts(each, num_classes, weights[:, np.searchsorted(every, each.row)]))
            for each in repeats
        ]
        for name in blocks[0]:
            drawn.setdefault(name, []).append(np.mean([block[name] for block in blocks], axis=0))
    ends = {name: np.nanpercentile(np.concatenate(v), (2.5, 97.5)) for name, v in drawn.items()}
    return {name: (float(low), float(high)) for name, (low, high) in ends.items()}


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
        ends, means = intervals(repeats, num_classes), _means(repeats, num_classes)
        support = _support(repeats)
        texts = {name: f"{100 * mean:.2f}" for name, mean in means.items()}
        for name, mean in means.items():
            interval = dict(zip(("low", "high"), ends.get(name, ()), strict=False))
            record = {"algorithm": method, "metric": name, "support": support, "mean": mean}
            records.append(record | interval)
            if interval:
                low_and_high = (100 * end for end in interval.values())
                texts[name] += " ({:.1f} to {:.1f})".format(*low_and_high)
        if "auroc" not in texts and (area := run.results[method].get("test_auroc")):
            texts["auroc"] = f"{100 * area.mean:.2f}"
        lines.append((methods.name(method), f"{support:,}", texts))
    shown = [name for name in _MEASURES if any(name in texts for *_, texts in lines)]
    rows = [[Cell(a), Cell(b), *(Cell(t.get(m, "–")) for m in shown)] for a, b, t in lines]
    columns = ("method", "test rows", *(_MEASURES[name] for name in shown))
    two = "Sensitivity is the recall of the second class, specificity of the first. "
    caption = _CAPTION.format(two=two * (num_classes == 2))
    title = f"{run.name}: measures on test rows"
    yield Table(names[0], title, columns, rows, 2, caption.strip(), records)
    clients = np.unique(np.concatenate([r.client for rows in of.values() for r in rows]))
    if (clients >= 0).any():
        called = partition.get("client_names") if partition.get("every", 1) == 1 else None
        known = {
            client: called[client] if called else str(client) for client in clients[clients >= 0]
        }
        yield _clients_table(run, names[1], of, num_classes, known)


def _means(repeats: list[Rows], num_classes: int) -> dict[str, float]:
    """Return the mean of each measure over the repeats that have rows."""
    points = [point_measures(rows, num_classes) for rows in repeats if len(rows.row)]
    names = points[0] if points else ()
    return {name: float(np.mean([p.get(name, np.nan) for p in points])) for name in names}


def _support(repeats: list[Rows]) -> int:
    return int(np.mean([len(rows.row) for rows in repeats]))


def _clients_table(
    run: Run, name: str, of: dict[str, list[Rows]], num_classes: int, known: dict[int, str]
) -> Table:
    """Return the accuracies of clients; `known` has their names."""
    records, lines = list[dict[str, Any]](), []
    for client, called in known.items():
        cells, support = [], 0
        for method, repeats in of.items():
            of_client = [rows.of(rows.client == client) for rows in repeats]
            means, support = _means(of_client, num_classes), _support(of_client) or support
            records += [
                {"algorithm": method, "metric": metric, "support": support}
                | {"client": called, "mean": mean}
                for metric, mean in means.items()
            ]
            cells.append(Cell(f"{100 * means['accuracy']:.2f}" if means else "–"))
        lines.append([Cell(called), Cell(f"{support:,}"), *cells])
    columns = ("client", "test rows", *map(methods_of([run]).name, of))
    title = f"{run.name}: clients' accuracy [%]"
    return Table(name, title, columns, lines[:_MOST_CLIENTS], 2, _OF_CLIENTS, records)
