"""How far confidences are from how often they are right: expected calibration error, and what it is made of.

    ECE = sum over bins b of (n_b / n) |acc_b - conf_b|

with the mean confidence and the share of right labels of the points in bin b (Naeini, Cooper, Hauskrecht,
AAAI 2015; Guo, Pleiss, Sun, Weinberger, ICML 2017, who take 15 bins of equal width). Bins here are of equal
mass, as many points in each as equal confidences allow: flat confidences would all fall into one bin of equal
width (Nguyen, O'Connor, EMNLP 2015; Nixon et al., CVPR Workshops 2019). It is the plug-in estimate, which is
above zero for calibrated confidences too: with n / 15 points a bin by some 0.8 sqrt(15 p (1 - p) / n).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

NUM_BINS = 15


class Reliability(NamedTuple):
    """Of every bin that has points, in ascending order: int [B], float64 [B] and [B]."""

    num_points: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray


def reliability(
    confidence: np.ndarray, is_right: np.ndarray, num_bins: int = NUM_BINS
) -> Reliability:
    """Points by confidence, in bins of equal mass; equal confidences are in one bin.

    Args:
        confidence: float [n].
        is_right: bool [n].
        num_bins: at most.

    The order of points does not matter.
    """
    exact = np.asarray(confidence, np.float64)
    rank = np.searchsorted(np.sort(exact), exact, side="left")  # of the first that is equal
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
