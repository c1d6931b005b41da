"""Label matrices that XCLP propagates: the paper's Y, or Y with each column divided by its number of labels.

With the graph's W and one-hot Y, zero rows where unlabeled:

    plain            Z = (I - alpha W)^-1 Y                                          the paper (line 10)
    class_balanced   Z = (I - alpha W)^-1 Y diag(n_1 ... n_C)^-1                     n_c labels of class c

Motivation. With v = D^1/2 1 on a component of the graph (W v = v), (I - alpha W)^-1 = v v^T / ((1 - alpha)
|v|^2) + a bounded term. The first term gives all points of a component the same scores up to a factor, and
the highest score to the class with most labels. At alpha = 0.99 it decides where labels are few.
"class_balanced" makes it about equal for all classes (class mass normalization with equal shares: Zhu,
Ghahramani, Lafferty, ICML 2003; the authors' code of XCLP does it).

Leave-one-out. Scores are a function of `Rows`: X = S Y with the matrix S = (I - alpha W)^-1, which does not
depend on labels, and counts of labels N. Without labeled point i's own label they are X_i - S_ii y_i and
N_i - y_i, exactly: no system is solved again.
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
    """

    values: Array
    counts: Array


def scores(label_matrix: str, rows: Rows) -> Array:
    """Z as the module's docstring defines it, float32 [m, C], of NumPy or JAX arrays."""
    x = rows.values
    if label_matrix == "plain":
        return x
    xp = jnp if isinstance(x, jax.Array) else np
    return x / xp.maximum(rows.counts, 1).astype(x.dtype)


def without_own(rows: Rows, labels: Array, diagonal: Array) -> Rows:
    """`rows` of labeled points, each without its own label.

    Args:
        rows: of m labeled points.
        labels: one-hot, float32 [m, C].
        diagonal: S_ii, what one label adds at its own point, float32 [m].
    """
    return Rows(rows.values - diagonal[:, None] * labels, rows.counts - labels)
