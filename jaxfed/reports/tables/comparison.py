"""Comparison of methods: differences paired by seed, the best methods, and the baseline of a gain."""

import math
from collections.abc import Mapping, Sequence

from scipy import special

from jaxfed.algorithms import declaration_of
from jaxfed.experiment.store.records import Measurement, Run, measure
from jaxfed.reports.tables.display_names import is_accuracy
from jaxfed.reports.tables.tested_rows import is_ahead_on_other_rows

LEAST_REPEATS = 3  # with two, the deviation of a difference is almost meaningless


def paired_difference(
    results: Mapping[str, Mapping[str, Measurement]], main: str | None, other: str, metric: str
) -> Measurement | None:
    """Return `main` minus `other` in one accuracy, paired by seed; None if they cannot be compared."""
    if main is None or main == other or not is_accuracy(metric):
        return None
    minuend = results.get(main, {}).get(metric)
    subtrahend = results.get(other, {}).get(metric)
    if minuend is None or subtrahend is None or len(minuend.values) != len(subtrahend.values):
        return None
    return measure([a - b for a, b in zip(minuend.values, subtrahend.values, strict=True)])


def best_methods(
    results: Mapping[str, Mapping[str, Measurement]], metric: str, algorithms: Mapping[str, str]
) -> set[str]:
    """Return the method with the best mean and those that follow without a significant difference.

    Methods are taken in order of their means, down to the first that is behind by a paired t test and on
    other test rows (`jaxfed.reports.tables.tested_rows`). A method is therefore never among the best if one
    with a higher mean is not, however much its repeats vary. The set is empty if there is nothing to compare
    or there are fewer than three repeats. Methods on pooled data do not count; `algorithms` maps each method
    to its algorithm.
    """
    means = {
        method: found[metric].mean
        for method, found in results.items()
        if metric in found and not declaration_of(algorithms.get(method, method)).pooled
    }
    if len(means) < 2 or not is_accuracy(metric):
        return set()
    ordered = sorted(means, key=lambda method: -means[method])
    first = ordered[0]
    if len(results[first][metric].values) < LEAST_REPEATS:
        return set()
    for place, method in enumerate(ordered[1:], 1):
        if is_clearly_ahead(results, first, method, metric):
            return set(ordered[:place])
    return set(ordered)


def is_clearly_ahead(
    results: Mapping[str, Mapping[str, Measurement]], first: str, other: str, metric: str
) -> bool:
    """True if `first` is ahead of `other` by a paired t test, and stays so on other test rows."""
    difference = paired_difference(results, first, other, metric)
    if difference is None or is_within_noise(difference):
        return difference is None
    return is_ahead_on_other_rows(results[first][metric], results[other][metric], metric)


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


def main_and_baseline(runs: Sequence[Run], methods: Sequence[str]) -> tuple[str, str]:
    """Return the main method of the runs and the baseline for its gain; "" for one that does not exist.

    The baseline is the first method that in no run is on pooled data or a variant of the main method's
    algorithm.
    """
    mains = {run.algorithm for run in runs if run.finished}
    if len(mains) != 1 or None in mains:
        return "", ""
    main = str(mains.pop())
    no_baselines = {
        method
        for run in runs
        for method in methods
        if run.algorithm_of(method) == run.algorithm_of(main)
        or declaration_of(run.algorithm_of(method)).pooled
    }
    return main, next((method for method in methods if method not in no_baselines), "")
