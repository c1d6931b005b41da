"""Methods beside each other: differences seed by seed, which are best, and over which one a gain is."""

import math
from collections.abc import Mapping, Sequence

from scipy import special

from jaxfed.experiment.records import Measurement, Run, measure
from jaxfed.reports.style import POOLED
from jaxfed.reports.words import is_accuracy

LEAST_REPEATS = 3  # of two, a difference's deviation says next to nothing


def paired_difference(
    results: Mapping[str, Mapping[str, Measurement]], main: str | None, other: str, metric: str
) -> Measurement | None:
    """`main` minus `other` in one accuracy, seed by seed; None where that makes no sense."""
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
    """The method with the best mean and those next to it, down to the first that is behind by a t test.

    None where nothing is compared, or with fewer than three repeats. Methods that see all clients' data are
    not among them: `algorithms` says which algorithm each one is. No method of a lower mean is best where one
    of a higher mean is not, however much its repeats vary.
    """
    means = {
        method: found[metric].mean
        for method, found in results.items()
        if metric in found and algorithms.get(method, method) not in POOLED
    }
    if len(means) < 2 or not is_accuracy(metric):
        return set()
    ordered = sorted(means, key=lambda method: -means[method])
    first = ordered[0]
    if len(results[first][metric].values) < LEAST_REPEATS:
        return set()
    is_behind = [
        not is_within_noise(paired_difference(results, first, method, metric))
        for method in ordered[1:]
    ]
    return set(ordered[: 1 + (is_behind.index(True) if True in is_behind else len(is_behind))])


def is_within_noise(difference: Measurement | None) -> bool:
    """Whether the mean of a paired difference is at most t s / sqrt(n), t Student's 97.5 % quantile.

    4.3 standard errors with three repeats, 2.8 with five. With fewer than three nothing is said.
    """
    if difference is None or len(difference.values) < LEAST_REPEATS:
        return False
    quantile = float(special.stdtrit(len(difference.values) - 1, 0.975))
    return abs(difference.mean) <= quantile * standard_error(difference)


def standard_error(difference: Measurement) -> float:
    """s / sqrt(n) of paired differences; 0 of one seed."""
    return (difference.std or 0.0) / math.sqrt(len(difference.values))


def main_and_baseline(runs: Sequence[Run], methods: Sequence[str]) -> tuple[str, str]:
    """The main method of the runs and the baseline that its gain is over; empty if there is none.

    The baseline is the first of the methods that in no run sees all clients' data, nor is the main method's
    algorithm once more.
    """
    mains = {run.algorithm for run in runs if run.finished}
    if len(mains) != 1 or None in mains:
        return "", ""
    main = str(mains.pop())
    no_baselines = {
        method
        for run in runs
        for method in methods
        if run.algorithm_of(method) in {*POOLED, run.algorithm_of(main)}
    }
    return main, next((method for method in methods if method not in no_baselines), "")
