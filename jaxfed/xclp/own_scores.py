"""From its rows of the sums of line 14 to a client's scores.

Line 14 gives client j rows R_j of M Y (`jaxfed.xclp.smoother`), and with them the sums of the clients' counts
of labels, where its scores need these (`jaxfed.xclp.label_matrix`, `jaxfed.xclp.client_prior`).
"""

from __future__ import annotations

import numpy as np

from jaxfed.privacy import randomized_response
from jaxfed.xclp import client_prior, label_matrix
from jaxfed.xclp.label_matrix import Rows
from jaxfed.xclp.parameters import Parameters


def class_counts(matrix: np.ndarray, *, are_needed: bool) -> np.ndarray:
    """What of Y^(j) [n_j, C] is summed together with Z: its labels of every class, [1, C], or no row."""
    counts = matrix.sum(axis=0, keepdims=True)
    return counts if are_needed else counts[:0]


def own_rows(values: np.ndarray, counts: np.ndarray, p: Parameters) -> Rows:
    """CS: what its scores are made of, out of M times one-hot answers, f32 [n_j, C].

    `counts`: the cohort's numbers of labels, [1, C]; [0, C] where scores are made without them. Randomized
    labels: the unbiased estimates of both.
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
    """CS: scores [m, C] weighed by numbers [C] of answers, the client's and the cohort's, as `p` wants it."""
    if not p.client_prior:
        return z
    if p.label_epsilon:
        own, cohort = randomized_response.unbiased(
            np.stack([own, cohort]), p.num_classes, p.label_epsilon
        )
    return np.asarray(client_prior.weighed(z, own, cohort, p.client_prior), np.float32)
