"""The choice of test rows in tables: its standard error, and a paired bootstrap of differences over the rows.

A row counts in every repeat that tests on it. So the bootstrap covers the choice of rows that all repeats
share, which no deviation over repeats shows.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxfed.experiment.store.manifest import read_predictions
from jaxfed.experiment.store.records import Measurement, Run
from jaxfed.host.safe_files import guarded

DRAWS = 1000
_TESTED = ("test", "new")  # roles of predictions
_AT_ONCE = 2_000_000  # row counts in memory


class _Hits(NamedTuple):
    """Test rows of a method in a repeat: numbers, ascending, classes, and shares of right predictions."""

    row: np.ndarray
    truth: np.ndarray
    hit: np.ndarray


def shared_split(runs: Sequence[Run], metrics: Sequence[str]) -> str:
    """Return a sentence on the error that ± does not cover: all repeats share the same test examples.

    Returns "" if the number of test examples is unknown, or if repeats have other test examples.
    """
    measured = [
        (error, number)
        for run in runs
        if run.num_repeats > 1
        and run.settings.get("federation.left_out_client", -1) < 0
        and _examples(run).get("test_rows", "shared") == "shared"
        and (number := run.num_examples("test_accuracy"))
        for found in run.results.values()
        for metric in metrics
        if metric in found
        and metric.startswith("test_")
        and 0 <= found[metric].mean <= 1
        and (error := _split_error(run, metric, found[metric].mean, number)) is not None
    ]
    if not measured:
        return ""
    sizes = sorted({number for _, number in measured})
    counted = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    return (
        f"All repeats are tested on the same {counted} examples: ± is over deals and seeds, and the choice "
        f"of these examples adds a standard error of up to {100 * max(measured)[0]:.1f} points. "
    )


def _split_error(run: Run, metric: str, p: float, number: int) -> float | None:
    """Return the standard error of a share p of n independent examples: sqrt(p (1 - p) / n).

    For a balanced accuracy over C classes return its upper bound, sqrt(sum_c 1 / (4 n_c)) / C; None if the
    classes' numbers n_c are unknown.
    """
    if "balanced" not in metric:
        return math.sqrt(p * (1 - p) / number)
    of_each = _examples(run).get("test_classes", ())
    return math.sqrt(sum(1 / (4 * n) for n in of_each)) / len(of_each) if of_each else None


def _examples(run: Run) -> Mapping[str, Any]:
    counts = (run.summary or {}).get("examples")
    return counts if isinstance(counts, dict) else {}


@lru_cache(maxsize=1024)
def is_ahead_on_other_rows(first: Measurement, second: Measurement, metric: str) -> bool:
    """True if `first` is ahead in 97.5 % of the draws of test rows, or if the predictions were not stored.

    Both methods are tested on the same rows in each repeat. All comparisons use the same draws.
    """
    is_balanced = "balanced" in metric
    pairs = []
    for repeat, values in enumerate(zip(first.values, second.values, strict=True)):
        a, b = _hits(first.source, repeat), _hits(second.source, repeat)
        if a is None or b is None or not np.array_equal(a.row, b.row):
            return True
        if not np.allclose([_mean(a, is_balanced), _mean(b, is_balanced)], values, atol=1e-6):
            return True  # a measure that rows do not add up to
        pairs.append((a, b))
    rows = np.unique(np.concatenate([a.row for a, _ in pairs]))
    rng, gains = np.random.default_rng(0), []
    for size in _chunks(len(rows)):
        drawn = rng.integers(len(rows), size=(size, len(rows)))
        drawn += len(rows) * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * len(rows)).reshape(size, -1)
        of_each = [
            _difference(counts[:, np.searchsorted(rows, a.row)], a, b, is_balanced)
            for a, b in pairs
        ]
        gains.append(np.mean(of_each, axis=0))
    return bool(np.quantile(np.concatenate(gains), 0.025) > 0)


def _chunks(num_rows: int) -> list[int]:
    most = max(1, min(DRAWS, _AT_ONCE // num_rows))
    return [min(most, DRAWS - start) for start in range(0, DRAWS, most)]


def _difference(counts: np.ndarray, a: _Hits, b: _Hits, is_balanced: bool) -> np.ndarray:
    """Return the difference of accuracies, float [draws], for rows with these counts [draws, n]."""
    classes = a.truth if is_balanced else np.zeros_like(a.truth)
    is_of = classes[:, None] == np.unique(classes)
    totals = counts @ is_of
    sums = counts @ (is_of * (a.hit - b.hit)[:, None])
    there = totals > 0
    shares = np.divide(sums, totals, out=np.zeros_like(sums), where=there)
    return shares.sum(axis=1) / np.maximum(there.sum(axis=1), 1)


def _mean(hits: _Hits, is_balanced: bool) -> float:
    nothing = hits._replace(hit=np.zeros(len(hits.row)))
    return float(_difference(np.ones((1, len(hits.row))), hits, nothing, is_balanced)[0])


def _hits(source: tuple[Path, str] | None, repeat: int) -> _Hits | None:
    """Read a method's test rows of known class; None if its predictions were not stored."""
    table = None if source is None else read_predictions(*source, repeat)
    if source is None or not table:
        return None
    with guarded(source[0] / "predictions"):
        found = np.array(
            [
                (int(row["index"]), int(row["truth"]), row["label"] == row["truth"])
                for row in table
                if row["role"] in _TESTED and row["truth"]
            ],
            float,
        ).reshape(-1, 3)
    if not len(found):
        return None
    rows, first, place = np.unique(found[:, 0], return_index=True, return_inverse=True)
    hit = np.bincount(place, found[:, 2]) / np.bincount(place)
    return _Hits(rows, found[first, 1], hit)
