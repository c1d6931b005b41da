"""A client's scores from its rows of the sums of line 14.

Line 14 gives client j rows R_j of S Y (`jaxfed.xclp.steps.propagation_matrix`). If the scores need them, it
also gives the sums of the clients' counts of labels (`jaxfed.xclp.steps.label_matrix`,
`jaxfed.xclp.steps.client_prior`).
"""

from __future__ import annotations

import numpy as np

from jaxfed.privacy import randomized_response
from jaxfed.xclp.settings.parameters import Parameters
from jaxfed.xclp.steps import client_prior, label_matrix
from jaxfed.xclp.steps.label_matrix import Rows


def class_counts(matrix: np.ndarray, *, are_needed: bool) -> np.ndarray:
    """Numbers of labels of each class in Y^(j) [n_j, C], to be summed with Z: [1, C], or no row."""
    counts = matrix.sum(axis=0, keepdims=True)
    return counts if are_needed else counts[:0]


def own_rows(values: np.ndarray, counts: np.ndarray, p: Parameters) -> Rows:
    """CS: the inputs of a client's scores, from S times one-hot labels, f32 [n_j, C].

    `counts`: the cohort's numbers of labels, [1, C]; [0, C] if the scores do not need them. For randomized
    labels, both are replaced by their unbiased estimates.
    """
    if p.label_epsilon:
        values = randomized_response.unbiased(values, p.num_classes, p.label_epsilon)
        counts = randomized_response.unbiased(counts, p.num_classes, p.label_epsilon)
    return Rows(values, np.broadcast_to(counts.sum(axis=0), values.shape))


def client_scores(values: np.ndarray, counts: np.ndarray, p: Parameters) -> np.ndarray:
    """CS: Z[R_j] without a client prior, f32 [n_j, C]; arguments as `own_rows`."""
    z = label_matrix.scores(p.label_matrix, own_rows(values, counts, p))
    return np.asarray(z, np.float32)


def with_prior(z: np.ndarray, own: np.ndarray, cohort: np.ndarray, p: Parameters) -> np.ndarray:
    """CS: scores [m, C] weighted by the client's and the cohort's label counts [C], if `p` has a prior."""
    if not p.client_prior:
        return z
    if p.label_epsilon:
        own, cohort = randomized_response.unbiased(
            np.stack([own, cohort]), p.num_classes, p.label_epsilon
        )
    return np.asarray(client_prior.weighed(z, own, cohort, p.client_prior), np.float32)
