"""What a labeled point's scores would be without its own label: of every one, without solving again.

Z is a function of X = M Y and counts of labels (`jaxfed.xclp.label_matrix`), so that without the label y_i of
point i its scores follow from X_i - M_ii y_i. M_ii is in the column of M that line 12 solves for, where
columns are sent or multiplied. Where the server is given Y it solves for M Y alone, C columns; then

    M_ii = (M e_i)_i                                one more column a label, for `EXACT_UP_TO` labels and less
    M_ii ~ s_i (M_c b_g)_i + (M - M_c)_ii           beyond: labels dealt at random to `NUM_PROBES` groups g,
                                                    b_g = sum over l in g of s_l e_l, signs s at random

(Bekas, Kokiopoulou, Saad, Applied Numerical Mathematics 2007: probing, here with signs; each label's error
has mean zero and variance sum over the others in its group of (M_c)_il^2. On digits, a third labeled, alpha
= 0.99, that is 14 % of M_ii, and changes at most one hit in a hundred: a test has it.) M_c is M beside the
leading eigenvectors, which are known and would be most of the error.

Two solves differ by their tolerance. Where a label is alone in its component of the graph, that alone would
be left, and take part as if another label had reached the point. Whoever solves knows the components: there
X_i is M_ii y_i and nothing else, and what is left is zero (`alone`).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.kernels.components import components
from jaxfed.kernels.conjugate_gradient import Convergence, propagate_centered
from jaxfed.kernels.padding import padded_length
from jaxfed.kernels.spread import everywhere
from jaxfed.xclp import client_prior
from jaxfed.xclp.influence import Accuracy, accuracy_of, solved
from jaxfed.xclp.label_matrix import Rows, scores, without_own
from jaxfed.xclp.parameters import Propagation
from jaxfed.xclp.smoother import Smoother, label_counts

EXACT_UP_TO = 256
NUM_PROBES = 64
_WIDTHS = (16, 64, 256)  # of columns solved for at once: few, so few programs
_WIDE_FROM = 20_000  # points; in smaller graphs 64 columns fill a CPU's caches
_SEED = 0x100
_NEAR = 1e-3  # scores without the own label may differ so much between two solves of one system
_ROUNDING = 4 * np.finfo(np.float32).eps  # of X_i and M_ii y_i, where they are the same number


class Labeled(NamedTuple):
    """Some labeled points, of one client or of all, and what their scores are made of.

    Fields:
        rows: with all labels.
        diagonal: M_ii, what each label adds at its own point, float32 [m].
        labels: Y of these points, float32 [m, C]; of randomized labels the unbiased estimates.
        answers: the labels, int [m]; of randomized ones the answers.
        client_counts: the numbers of labels of each point's client, float32 [m, C] or [C].
        cohort_counts: of all clients, float32 [C].
        accuracy: of the linear systems that all of it comes from.
    """

    rows: Rows
    diagonal: np.ndarray
    labels: np.ndarray
    answers: np.ndarray
    client_counts: np.ndarray
    cohort_counts: np.ndarray
    accuracy: Accuracy = Accuracy()


def left_out_scores(points: Labeled, p: Propagation) -> np.ndarray:
    """Z of every labeled point as if its own label were not there, float32 [m, C]."""
    rows = without_own(points.rows, points.labels, points.diagonal)
    own = np.abs(points.diagonal[:, None] * points.labels)
    values = np.where(np.abs(rows.values) > _ROUNDING * own, rows.values, np.float32(0))
    z = scores(p.label_matrix, rows._replace(values=values))
    client, cohort = (n - points.labels for n in (points.client_counts, points.cohort_counts))
    return np.asarray(client_prior.weighed(z, client, cohort, p.client_prior))


def half_hits(left_out: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Twice how far each point gets its own label back, int [m]: 2, 1 or 0.

    2 where its own class has the largest score, 1 where it ties with the largest other one, 0 elsewhere and
    where no other label reaches the point. Scores tie that differ by `_NEAR` of the larger, or by less: where
    points are identical the order of additions would decide, which protocols have another of.
    """
    rows = np.arange(len(answers))
    others = left_out.copy()
    others[rows, answers] = -np.inf
    own, other = left_out[rows, answers], others.max(axis=1, initial=-np.inf)
    with np.errstate(invalid="ignore"):  # of one class alone
        is_near = np.abs(own - other) <= _NEAR * np.maximum(np.abs(own), np.abs(other))
    found = np.where(is_near, 1, np.where(own > other, 2, 0))
    return np.where(left_out.max(axis=1) > 0, found, 0)


def alone(matrix: Smoother, points: np.ndarray) -> np.ndarray:
    """bool [m]: which of these points have no other of them in their component of the graph."""
    root = np.asarray(everywhere(components(matrix.graph)).root)
    _, place, sizes = np.unique(root[points], return_inverse=True, return_counts=True)
    return np.asarray(sizes[place] == 1)


def labeled_rows(
    matrix: Smoother, y: np.ndarray, owner: np.ndarray, answers: np.ndarray
) -> Labeled:
    """Where one party has graph and labels: of all labeled points, in ascending order.

    Args:
        matrix: M, n by n.
        y: Y, float32 [n, C], zero rows where unlabeled.
        owner: the client of each point, int [n].
        answers: int [n], -1 where unlabeled.

    Cost: C columns of M, and as many as `diagonal` needs.
    """
    points = np.flatnonzero(answers >= 0)
    values, accuracy = solved(matrix, y)
    of_clients = np.zeros((int(owner.max(initial=0)) + 1, y.shape[1]), np.float32)
    np.add.at(of_clients, owner[points], y[points])
    x, counts = (np.asarray(a)[points] for a in (values, label_counts(y)))
    own, accuracy_of_own = diagonal(matrix, points)
    x = np.where(alone(matrix, points)[:, None], own[:, None] * y[points], x)
    return Labeled(
        Rows(x, counts),
        own,
        y[points],
        answers[points],
        of_clients[owner[points]],
        of_clients.sum(axis=0),
        accuracy.worst(accuracy_of_own),
    )


def diagonal(
    matrix: Smoother,
    points: np.ndarray,
    *,
    exact_up_to: int = EXACT_UP_TO,
    num_probes: int = NUM_PROBES,
) -> tuple[np.ndarray, Accuracy]:
    """M_ii of some points, float32 [m]: solved for, or estimated where they are more than `exact_up_to`.

    And how accurate the linear systems are.

    Args:
        matrix: M, n by n.
        points: their numbers, int [m].
        exact_up_to: as many are solved for, a column each.
        num_probes: columns of the estimate.

    The same points give the same numbers.
    """
    if len(points) <= exact_up_to:
        found, worst = np.zeros(len(points), np.float32), Accuracy()
        widths = _WIDTHS if matrix.num_points > _WIDE_FROM else _WIDTHS[:2]
        for start in range(0, len(points), widths[-1]):
            block = points[start : start + widths[-1]]
            columns = np.arange(len(block))
            width = next(width for width in widths if width >= len(block))
            unit = np.zeros((matrix.num_points, width), np.float32)
            unit[block, columns] = 1
            z, accuracy = solved(matrix, unit)
            found[start : start + len(block)] = np.asarray(z)[block, columns]
            worst = worst.worst(accuracy)
        return found, worst
    rng = np.random.default_rng((_SEED, len(points)))
    group = rng.permutation(len(points)) % num_probes
    sign = rng.choice(np.array([-1, 1], np.float32), len(points))
    probes = np.zeros((matrix.num_points, num_probes), np.float32)
    probes[points, group] = sign
    z, known, accuracy = _centered(matrix, probes)
    estimate = sign * np.asarray(z)[points, group] + np.asarray(known)[points]
    return np.asarray(estimate, np.float32), accuracy


def _centered(matrix: Smoother, y: np.ndarray) -> tuple[jax.Array, jax.Array, Accuracy]:
    """M_c Y, float32 [n, C], and the diagonal of M - M_c, float32 [n]: v_i^2 / ((1 - alpha) |v_K|^2).

    v = D^1/2 on the component K of each point; also how accurate the linear systems are.
    """
    p, found = matrix.p, everywhere(components(matrix.graph))
    z, info = everywhere(
        propagate_centered(
            matrix.graph, found, y, p.alpha, tolerance=p.tolerance, max_steps=p.max_steps
        )
    )
    v, volume = matrix.root_degrees, jnp.where(found.volume > 0, found.volume, 1.0)
    return z, v / ((1 - p.alpha) * volume) * v, accuracy_of(info, p.max_steps)


class AtLabeled:
    """M among labeled points alone, as the server has it: what choosing settings through a session needs.

    Columns that are solved for leave their M_ii in `diagonal`. A point that is `alone` gets nothing but that.

    Args:
        matrix: M, n by n.
        points: labeled points, int [m], in the order in which they are to be numbered.
    """

    def __init__(self, matrix: Smoother, points: np.ndarray) -> None:
        self._matrix, self._num_labeled = matrix, len(points)
        self.num_points, self.max_steps = padded_length(len(points)), matrix.max_steps
        self._points = np.zeros(self.num_points, np.int64)
        self._points[: len(points)] = points
        self.diagonal = np.zeros(self.num_points, np.float32)
        self.alone = np.zeros(self.num_points, bool)
        self.alone[: len(points)] = alone(matrix, points)

    def solved(self, y: np.ndarray) -> tuple[jax.Array, Convergence]:
        """M Y at the labeled points, for Y [m, C] of these."""
        joint = np.zeros((self._matrix.num_points, y.shape[1]), np.float32)
        joint[self._points[: self._num_labeled]] = y[: self._num_labeled]
        z, info = self._matrix.solved(joint)
        z = jnp.where(self.alone[:, None] & (y == 0), 0, z[self._points])
        rows, columns = np.nonzero(y)
        self.diagonal[rows] = np.asarray(z)[rows, columns]
        return z, info
