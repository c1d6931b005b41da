"""Methods beside each other: differences seed by seed, which are best, and over which one a gain is."""

import math
from collections.abc import Mapping, Sequence

from jaxfed.experiment.records import Measurement, Run, measure
from jaxfed.reports.style import POOLED
from jaxfed.reports.words import is_accuracy


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
    """The method with the best mean and those within noise of it; none where nothing is compared.

    Methods that see all clients' data are not among them: `algorithms` says which algorithm each one is.
    """
    means = {
        method: found[metric].mean
        for method, found in results.items()
        if metric in found and algorithms.get(method, method) not in POOLED
    }
    if len(means) < 2 or not is_accuracy(metric):
        return set()
    first = max(means, key=lambda method: means[method])
    return {first} | {
        method
        for method in means
        if is_within_noise(paired_difference(results, first, method, metric))
    }


def is_within_noise(difference: Measurement | None) -> bool:
    """Whether the mean of a paired difference is at most two of its standard errors, s / sqrt(n).

    About what a two-sided test at 5 % asks; with few seeds that would ask for more (t = 4.3 with three).
    Of one seed's difference the noise is not known: only 0 is within it.
    """
    if difference is None:
        return False
    return abs(difference.mean) <= 2 * standard_error(difference)


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
