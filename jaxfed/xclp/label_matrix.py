"""What XCLP propagates: label matrices beside the paper's Y, and the scores that a point gets of each.

With the graph's W, v = D^1/2 1 on a component K of it (W v = v), Y one-hot, zero rows where unlabeled:

    plain            Z = (I - alpha W)^-1 Y                                          the paper (line 10)
    class_balanced   Z = (I - alpha W)^-1 Y diag(n_1 ... n_C)^-1                     n_c labels of class c
    centered         Z = (I - alpha W)^-1 (Y - v v^T Y / |v|^2)                      on every component K
    poisson          Z = D^-1/2 (I - W)^+ D^-1/2 (Y - 1_labeled ybar^T)              ybar: mean label of K

Why. (I - alpha W)^-1 = v v^T / ((1 - alpha) |v|^2) + something bounded. The first term gives all points of
a component the same scores but for a factor, and most to the class with most labels; at alpha = 0.99 it is
what decides where labels are few. "class_balanced" makes it about equal for all classes (class mass
normalization with equal shares: Zhu, Ghahramani, Lafferty, ICML 2003; the authors' code of XCLP does it),
"centered" never forms it. "poisson" is Poisson learning (Calder, Cook, Thorpe, Slepcev, ICML 2020), without
class priors. (I - alpha W)^-1 beside v goes to (I - W)^+ with alpha to 1: so it is the limit of "centered"
for D^-1/2 Y, with one more term, which moves all classes alike where a component has as many labels of
each. "centered" itself goes to (I - W)^+ Y, where labels of points with many edges count more. Far from all
labels its scores are below zero, most for the class with most labels: where classes are unequal it leans to
small ones.

Scores. Of "centered" and "poisson" Z has both signs. Line 16 wants shares, and a class without a label in
the component, whose column is zero, must not win where all others are below zero. So every class with a
label in the point's component gets the same amount f_i / C_i on top, C_i being the number of these classes,
and other classes have 0. f_i is what Z_i sums to along v: v_i sum_l v_l / ((1 - alpha) |v|^2) over the
component's labels l (for "poisson" with D^-1/2 on both sides and alpha = 0.99). Which of these classes is
largest does not depend on f, unless a client prior weighs the sums. The largest is not below zero: the signed
scores of a point sum to what, with f_i, is a row of (I - alpha W)^-1 1_labeled >= 0; of "poisson" they sum to
zero, so that their largest is not below it, and f > 0.

Leave-one-out. Everything is a function of `Rows`: X = M Y with a matrix M that knows no labels, f, and counts
of labels N. Without labeled point i's own label they are X_i - M_ii y_i, f_i - F_ii, N_i - y_i, exactly: no
system is solved again.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array | np.ndarray

LABEL_MATRICES = ("plain", "class_balanced", "centered", "poisson")
BY_COMPONENT = frozenset(
    {"centered", "poisson"}
)  # whose counts are of a component, not of the cohort


class Rows(NamedTuple):
    """What some points' scores are made of.

    Fields:
        values: X = M Y, float32 [m, C], of one-hot Y.
        counts: N, float32 [m, C], labels of every class: of the point's component for `BY_COMPONENT`, else of
            the cohort. Not read for "plain".
        flat: f, float32 [m]. Read for `BY_COMPONENT` only.
    """

    values: Array
    counts: Array
    flat: Array


def scores(label_matrix: str, rows: Rows) -> Array:
    """Z as the module's docstring says, float32 [m, C], of NumPy or JAX arrays."""
    x, counts = rows.values, rows.counts
    if label_matrix == "plain":
        return x
    xp = jnp if isinstance(x, jax.Array) else np
    if label_matrix == "class_balanced":
        return x / xp.maximum(counts, 1).astype(x.dtype)
    is_there = counts > 0
    flat = rows.flat[:, None] / xp.maximum(is_there.sum(axis=1, keepdims=True), 1).astype(x.dtype)
    if label_matrix == "poisson":
        total = xp.maximum(counts.sum(axis=1, keepdims=True), 1).astype(x.dtype)
        x = x - x.sum(axis=1, keepdims=True) * (counts.astype(x.dtype) / total)
    return xp.where(is_there, x + flat, xp.zeros_like(x))


def without_own(rows: Rows, labels: Array, own: Rows) -> Rows:
    """`rows` of labeled points, each as if its own label were not there.

    Args:
        rows: of m labeled points.
        labels: one-hot, float32 [m, C].
        own: what one label adds at its own point: M_ii [m], 1 [m], F_ii [m].
    """
    return Rows(
        rows.values - own.values[:, None] * labels,
        rows.counts - own.counts[:, None] * labels,
        rows.flat - own.flat,
    )
