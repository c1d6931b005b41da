"""Expected calibration error (ECE): the gap between confidence and accuracy, over bins of confidence.

    ECE = sum over bins b of (n_b / n) |acc_b - conf_b|

with the mean confidence and the share of right labels of the points in bin b (Naeini, Cooper, Hauskrecht,
AAAI 2015; Guo, Pleiss, Sun, Weinberger, ICML 2017, who take 15 bins of equal width). Bins here are of equal
mass: equally many points in each, as far as equal confidences allow. Flat confidences would all fall into one
bin of equal width (Nguyen, O'Connor, EMNLP 2015; Nixon et al., CVPR Workshops 2019). The plug-in estimate is
above zero for calibrated confidences too: by some 0.8 sqrt(15 p (1 - p) / n) with n / 15 points per bin.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

NUM_BINS = 15


class Reliability(NamedTuple):
    """Counts and means of all nonempty bins, in ascending order: int [B], float64 [B] and [B]."""

    num_points: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray


def reliability(
    confidence: np.ndarray, is_right: np.ndarray, num_bins: int = NUM_BINS
) -> Reliability:
    """Sort points by confidence into bins of equal mass; equal confidences share a bin.

    Args:
        confidence: float [n].
        is_right: bool [n].
        num_bins: maximum number of bins.

    The order of points does not matter.
    """
    exact = np.asarray(confidence, np.float64)
    rank = np.searchsorted(np.sort(exact), exact, side="left")  # rank of the first equal confidence
    number = rank * num_bins // len(exact)
    count = np.bincount(number, minlength=num_bins)
    there = count > 0
    sums = (
        np.bincount(number, weights=values, minlength=num_bins)[there] / count[there]
        for values in (exact, np.asarray(is_right, np.float64))
    )
    return Reliability(count[there], *sums)


def expected_calibration_error(
    confidence: np.ndarray, is_right: np.ndarray, num_bins: int = NUM_BINS
) -> float:
    """ECE in [0, 1], arguments as `reliability`; NaN without points."""
    bins = reliability(confidence, is_right, num_bins)
    if not len(bins.num_points):
        return float("nan")
    return float(bins.num_points @ np.abs(bins.accuracy - bins.confidence) / bins.num_points.sum())
