"""Scores Z from S Y, S = (I - alpha W)^-1: `label_matrix`, and a client's label frequencies as a class prior.

Label matrices: the paper's one-hot Y, zero rows where unlabeled, or Y with each column divided by its number
of labels.

    plain            Z = (I - alpha W)^-1 Y                                     the paper (line 10)
    class_balanced   Z = (I - alpha W)^-1 Y diag(n_1 ... n_C)^-1                n_c labels of class c
    degree_balanced  Z = (I - alpha W)^-1 Y diag(m_1 ... m_C)^-1                m_c = sum_i Y_ic sqrt(d_i)

Motivation. With v = D^1/2 1 on a component of the graph (W v = v), (I - alpha W)^-1 = v v^T / ((1 - alpha)
|v|^2) + a bounded term. The first term gives all points of a component the same scores up to a factor, and
the highest score to the class with most labels. At alpha = 0.99 it decides where labels are few.
"class_balanced" makes it about equal for all classes (class mass normalization with equal shares: Zhu,
Ghahramani, Lafferty, ICML 2003; the authors' code of XCLP does it). The first term is in fact proportional to
m_c, the roots of the degrees of the class's labels, so "degree_balanced" makes it equal for all classes.

Leave-one-out. Scores are a function of `Rows`: X = S Y with the matrix S = (I - alpha W)^-1, which does not
depend on labels, counts of labels N, and their masses M, sums of roots of degrees. Without labeled point i's
own label they are X_i - S_ii y_i, N_i - y_i and M_i - sqrt(d_i) y_i, exactly: no system is solved again.

Client prior. Scores are weighted by the ratio of the client's label frequencies to the cohort's:

    Z'_ic = Z_ic (pi_jc / pi_c)^beta                                    for every point i of client j
    pi_c  = (n_c + 1) / (n + C)                the cohort's share of class c among its n labels
    pi_jc = (n_jc + s pi_c) / (n_j + s)        client j's, shrunk to the cohort's with the weight of s labels

It is the correction of label shift (Saerens, Latinne, Decaestecker, Neural Computation 2002) with label
frequencies as the new class shares. Scores at alpha near 1 are flat, so the prior alone would decide. They
would have to be sharpened first, p^gamma. The largest entry of p^gamma (pi_j / pi) is that of
p (pi_j / pi)^(1 / gamma), so beta stands for 1 / gamma. beta = 0 switches the prior off. s is small for
unlike clients and large for like ones. Leave-one-out can estimate s and gamma
(`jaxfed.xclp.selection.choice`). A client without labels has pi_j = pi and unchanged scores.

Client j needs its own labels and the cohort's number of labels of each class, as with
`label_matrix="class_balanced"`; nothing else leaves it. Leave-one-out removes a label from both n_jc and n_c.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array | np.ndarray


class Rows(NamedTuple):
    """Inputs of some points' scores.

    Fields:
        values: X = S Y, float32 [m, C], of one-hot Y.
        counts: N, float32 [m, C], labels of every class in the cohort. Not read for "plain".
        masses: M, float32 [m, C], sums of the roots of their degrees. Read for "degree_balanced" alone.
    """

    values: Array
    counts: Array
    masses: Array | float = 0.0


def scores(label_matrix: str, rows: Rows) -> Array:
    """Z as the module's docstring defines it, float32 [m, C], of NumPy or JAX arrays."""
    x = rows.values
    if label_matrix == "plain":
        return x
    xp = jnp if isinstance(x, jax.Array) else np
    if label_matrix == "class_balanced":
        return x / xp.maximum(rows.counts, 1).astype(x.dtype)
    has_labels = rows.counts > _HALF
    return x / xp.where(has_labels, xp.maximum(rows.masses, _SMALLEST_MASS), 1).astype(x.dtype)


def without_own(rows: Rows, labels: Array, diagonal: Array, roots: Array | float) -> Rows:
    """`rows` of labeled points, each without its own label.

    `labels` are one-hot, [m, C]; `diagonal` S_ii and `roots` sqrt(d_i), [m].
    """
    masses = rows.masses - np.asarray(roots)[..., None] * labels
    return Rows(rows.values - diagonal[:, None] * labels, rows.counts - labels, masses)


_HALF, _SMALLEST_MASS = 0.5, 1e-6  # of a label's count; of the labels of points without edges
_LOG_OF_FACTORS = 40.0  # e^40 times any score is a float32


def shares(counts: Array, cohort: Array, labels: float = 0.0) -> tuple[Array, Array]:
    """pi_j and pi, float32 [..., C], of numbers of labels [..., C]; `labels` is s, 0 stands for C."""
    num_classes = counts.shape[-1]
    weight = labels or num_classes
    share = (cohort + 1) / (cohort.sum(axis=-1, keepdims=True) + num_classes)
    return (counts + weight * share) / (counts.sum(axis=-1, keepdims=True) + weight), share


def weighed_by_prior(
    scores: Array, counts: Array, cohort: Array, beta: float, labels: float = 0.0
) -> Array:
    """Z', float32 [m, C], of scores Z [m, C], entries of which below zero count as zero.

    `counts` and `cohort` are the client's and all clients' numbers of labels, [C] or one row a point, [m, C].
    A row beyond float32's range is divided by its largest factor, which changes neither labels nor shares.
    """
    if not beta:
        return scores
    xp = jnp if isinstance(scores, jax.Array) else np
    counts, cohort = (
        xp.maximum(xp.broadcast_to(xp.asarray(each, np.float32), scores.shape), 0)
        for each in (counts, cohort)
    )
    own_share, share = shares(counts, cohort, labels)
    ratio = xp.where(scores > 0, own_share / share, np.float32(0))
    largest = ratio.max(axis=-1, keepdims=True)
    largest = xp.where(largest > 0, largest, np.float32(1))
    fits = xp.abs(np.float32(beta) * xp.log(largest)) <= _LOG_OF_FACTORS
    return scores * (ratio / xp.where(fits, np.float32(1), largest)) ** np.float32(beta)
