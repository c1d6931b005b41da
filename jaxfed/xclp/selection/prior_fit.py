"""Fit the strength and smoothing of the client prior to the labels, by leave-one-out likelihood.

The class of a labeled point i of client j has the probability

    q_ic ~ p_ic^gamma pi_jc / pi_c       (`jaxfed.xclp.steps.client_prior`, beta = 1 / gamma)

with p_i, pi_j and pi without the label y_i. Two log-likelihoods are summed over all labels, one after the
other:

    l(s)     = sum_i log pi_j,y_i(s)         how unlike clients are, by their labels alone, without the graph
    l(gamma) = sum_i log q_i,y_i(gamma, s)   sharpness of scores, as in `jaxfed.xclp.steps.calibration`

s is a value of `PRIOR_LABELS`, gamma one of `SHARPNESS`, both geometric grids. The chosen grid index is the
mean of all indices with weights exp(l), rounded. With many labels it is the most likely value. With few
labels it is nearer to the middle of the grid, which is a weak prior.

Rejected (`results/xclp_prior`): the strength with the most leave-one-out hits among a few, with s = C. With
three labels at a client, hits cannot tell such strengths apart.

Each client sums over its own labels and counts them. It sends `len(PRIOR_LABELS) + 1` numbers, then
`len(SHARPNESS) + 1`. The server adds them up, masked if row sums are masked, and announces the pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from jaxfed.xclp.selection.leave_one_out import Labeled, left_out_counts, left_out_scores
from jaxfed.xclp.settings.parameters import Propagation
from jaxfed.xclp.steps.calibration import SHARPNESS, log_sums, probabilities
from jaxfed.xclp.steps.client_prior import shares

P = TypeVar("P", bound=Propagation)

PRIOR_LABELS = tuple(2.0**k for k in range(-3, 10))  # s


def priors() -> list[tuple[float, float]]:
    """All pairs (client_prior, client_prior_labels) that a fit can return, in the order of their indices."""
    return [(1 / gamma, labels) for labels in PRIOR_LABELS for gamma in SHARPNESS]


def fitted(
    points: Mapping[int, Labeled],
    p: P,
    total: Callable[[Mapping[int, np.ndarray]], np.ndarray | None],
) -> P:
    """Return `p` with the fitted prior; `p` itself if there is no sum over clients.

    Args:
        points: leave-one-out data by client with these settings.
        p: the settings.
        total: sums the clients' numbers; returns None if there are too few clients to hide one, or none.
    """
    of_labels = total({j: _by_labels(own) for j, own in points.items()})
    if of_labels is None:
        return p
    labels = PRIOR_LABELS[_mean_place(of_labels)]
    of_scores = total({j: _by_sharpness(own, p, labels) for j, own in points.items()})
    if of_scores is None:
        return p
    gamma = SHARPNESS[_mean_place(of_scores)]
    return replace(p, client_prior=1 / gamma, client_prior_labels=labels)


def _by_labels(points: Labeled) -> np.ndarray:
    """A client's l(s) and its number of labels, float64 [S + 1, 1]."""
    own, cohort = (np.maximum(counts, 0) for counts in left_out_counts(points))
    return log_sums([shares(own, cohort, labels)[0] for labels in PRIOR_LABELS], points.answers)


def _by_sharpness(points: Labeled, p: Propagation, labels: float) -> np.ndarray:
    """A client's l(gamma) and its number of labels, float64 [G + 1, 1]."""

    def at(gamma: float) -> np.ndarray:
        weighed = replace(p, client_prior=1 / gamma, client_prior_labels=labels)
        return np.asarray(probabilities(left_out_scores(points, weighed), gamma))

    return log_sums([at(gamma) for gamma in SHARPNESS], points.answers)


def _mean_place(sums: np.ndarray) -> int:
    """Mean grid index, weighted by the likelihoods of `sums` [G + 1, 1], rounded."""
    likelihoods = sums[:-1, 0]
    weights = np.exp(likelihoods - likelihoods.max())
    return round(float(weights @ np.arange(len(weights)) / weights.sum()))
