"""Comparison of methods: differences paired by seed, their two sources of error, and the best methods.

Repeats differ in seeds: Student's t test is over those. A test row counts in every repeat that tests on it:
the standard error over rows covers the choice of rows that repeats share, which no deviation over repeats
shows.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import special

from jaxfed.algorithms import declaration_of
from jaxfed.experiment.store.records import Measurement, measure, read_predictions
from jaxfed.host.safe_files import guarded
from jaxfed.reports.names import is_accuracy

Results = Mapping[str, Mapping[str, Measurement]]  # method -> metric -> measurement

LEAST_REPEATS = 3  # with two, the deviation of a difference is almost meaningless
_NUMBERS = ("client", "index", "label", "confidence", "truth")


def paired_difference(
    results: Results, main: str | None, other: str, metric: str
) -> Measurement | None:
    """Return `main` minus `other` in one accuracy, paired by seed; None if they cannot be compared."""
    if main is None or main == other or not is_accuracy(metric):
        return None
    minuend = results.get(main, {}).get(metric)
    subtrahend = results.get(other, {}).get(metric)
    if minuend is None or subtrahend is None or len(minuend.values) != len(subtrahend.values):
        return None
    return measure([a - b for a, b in zip(minuend.values, subtrahend.values, strict=True)])


def best_methods(results: Results, metric: str, algorithms: Mapping[str, str]) -> set[str]:
    """Return the method with the best mean and those that follow without a significant difference.

    Methods are taken in order of their means, down to the first that is behind by a paired t test and on
    other test rows. A method is therefore never among the best if one with a higher mean is not, however much
    its repeats vary. The set is empty if there is nothing to compare or there are fewer than three repeats.
    Methods on pooled data do not count; `algorithms` maps each method to its algorithm.
    """
    means = {
        method: measured[metric].mean
        for method, measured in results.items()
        if metric in measured and not declaration_of(algorithms.get(method, method)).pooled
    }
    if len(means) < 2 or not is_accuracy(metric):
        return set()
    first, *others = sorted(means, key=lambda method: -means[method])
    if len(results[first][metric].values) < LEAST_REPEATS:
        return set()
    for rank, method in enumerate(others):
        gain = paired_difference(results, first, method, metric)
        if gain is None or not is_within_noise(gain):
            pair = results[first][metric], results[method][metric]
            if gain is None or is_ahead_on_other_rows(*pair, metric):
                return {first, *others[:rank]}
    return {first, *others}


def is_within_noise(difference: Measurement | None) -> bool:
    """True if the mean of a paired difference is at most t s / sqrt(n), with t Student's 97.5 % quantile.

    That is 4.3 standard errors with three repeats, 2.8 with five. False with fewer than three.
    """
    if difference is None or len(difference.values) < LEAST_REPEATS:
        return False
    quantile = float(special.stdtrit(len(difference.values) - 1, 0.975))
    return abs(difference.mean) <= quantile * standard_error(difference)


def standard_error(difference: Measurement) -> float:
    """Return s / sqrt(n) of paired differences; 0 for one seed."""
    return (difference.std or 0.0) / math.sqrt(len(difference.values))


@lru_cache(maxsize=1024)
def is_ahead_on_other_rows(first: Measurement, second: Measurement, metric: str) -> bool:
    """True if `first` is ahead by 1.96 standard errors over test rows, or if predictions were not stored.

    The difference of two accuracies is a mean over repeats of a mean over rows (of a balanced accuracy, over
    classes of means over their rows). To first order, drawing the N rows anew changes it with the variance
    sum_i u_i^2, where u_i sums row i's deviations from these means, each with its weight in them.
    """
    errors: dict[float, float] = {}
    gains = []
    for repeat, values in enumerate(zip(first.values, second.values, strict=True)):
        a, b = _hits(first.source, repeat), _hits(second.source, repeat)
        if a is None or b is None or not np.array_equal(a[0], b[0]):
            return True
        rows, truth, hits = a
        classes = truth if "balanced" in metric else np.zeros_like(truth)
        which = np.unique(classes, return_inverse=True)[1]
        weight = 1 / (np.bincount(which)[which] * (which.max() + 1))  # of a row in the mean
        if not np.allclose([weight @ hits, weight @ b[2]], values, atol=1e-6):
            return True  # a measure that rows do not add up to
        gain = hits - b[2]
        of_class = np.bincount(which, gain) / np.bincount(which)
        gains.append(weight @ gain)
        for row, error in zip(rows, weight * (gain - of_class[which]), strict=True):
            errors[row] = errors.get(row, 0.0) + error
    deviation = np.linalg.norm([*errors.values()]) / len(gains)
    return bool(np.mean(gains) > special.ndtri(0.975) * deviation)


class Rows(NamedTuple):
    """Rows of known class that a method is tested on in a repeat: integers [n], and confidences."""

    client: np.ndarray
    row: np.ndarray
    label: np.ndarray
    confidence: np.ndarray
    truth: np.ndarray

    def of(self, chosen: np.ndarray) -> "Rows":
        """Return the chosen rows."""
        return Rows(*(column[chosen] for column in self))


def judged_rows(
    workdir: Path, method: str, repeat: int, roles: Sequence[str] = ("new", "test")
) -> Rows | None:
    """Read the rows of the first role that a method's predictions have; None if they have none of these."""
    table = [row for row in read_predictions(workdir, method, repeat) or () if row["truth"]]
    present = {row["role"] for row in table}
    role = next((role for role in roles if role in present), None)
    if role is None:
        return None
    with guarded(workdir / "predictions"):
        numbers = [[r[key] for key in _NUMBERS] for r in table if r["role"] == role]
        client, row, label, confidence, truth = np.array(numbers, float).T
        client, row, label, truth = (each.astype(int) for each in (client, row, label, truth))
        return Rows(client, row, label, confidence, truth)


def _hits(source: tuple[Path, str] | None, repeat: int) -> tuple[np.ndarray, ...] | None:
    """Return a method's tested rows, ascending, their classes and shares of right predictions, if stored."""
    judged = judged_rows(*source, repeat) if source else None
    if judged is None:
        return None
    rows, first, index = np.unique(judged.row, return_index=True, return_inverse=True)
    is_right = (judged.label == judged.truth).astype(float)
    return rows, judged.truth[first], np.bincount(index, is_right) / np.bincount(index)
