"""Leave-one-out scores of all labeled points, each without its own label, from one solve.

Z is a function of X = S Y and counts of labels (`jaxfed.xclp.steps.class_scores`), so without the label y_i
of point i its scores follow from X_i - S_ii y_i. S_ii is in the column of S that line 12 solves for, if
columns are sent or multiplied. If the server receives Y, it solves for S Y alone, C columns. Then

    S_ii = (S e_i)_i                                one more column per label, for up to `EXACT_UP_TO` labels
    S_ii ~ s_i (S_c b_g)_i + (S - S_c)_ii           beyond: labels in `NUM_PROBES` random groups g,
                                                    b_g = sum over l in g of s_l e_l, random signs s

(Bekas, Kokiopoulou, Saad, Applied Numerical Mathematics 2007: probing, here with signs; each label's error
has mean zero and variance sum over the others in its group of (S_c)_il^2. On digits, a third labeled, alpha
= 0.99, that is 14 % of S_ii, and changes at most one hit in a hundred: a test has it.) S_c is S without its
leading eigenvectors, which are known and would cause most of the error.

Two solves differ by their tolerance. For a label that is alone in its component of the graph, this difference
alone would remain and count as if another label had reached the point. The party that solves knows the
components: there X_i is S_ii y_i and nothing else, and the remainder is set to zero (`alone`).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.kernels.components import components
from jaxfed.kernels.conjugate_gradient import PropagationMatrix, propagate_centered
from jaxfed.kernels.devices import everywhere
from jaxfed.xclp.settings.parameters import Propagation
from jaxfed.xclp.steps.class_scores import Rows, scores, weighed_by_prior, without_own
from jaxfed.xclp.steps.propagation_matrix import SolverAccuracy, accuracy_of, solved

EXACT_UP_TO = 256
NUM_PROBES = 64
_WIDTHS = (16, 64, 256)  # of columns solved for at once: few widths, few programs
_WIDE_FROM = 20_000  # points; in smaller graphs 64 columns fill a CPU's caches
_SEED = 0x100
_NEAR = 1e-3  # largest relative difference of such scores between two solves of one system
_ROUNDING = 4 * np.finfo(np.float32).eps  # of X_i and S_ii y_i, where they are the same number


class Labeled(NamedTuple):
    """Some labeled points, of one client or of all, and the inputs of their scores.

    Fields:
        rows: with all labels.
        diagonal: S_ii, the contribution of each label at its own point, float32 [m].
        labels: Y of these points, float32 [m, C]; the unbiased estimates if labels are randomized.
        answers: the labels, int [m]; the randomized ones if labels are randomized.
        client_counts: the numbers of labels of each point's client, float32 [m, C] or [C].
        cohort_counts: of all clients, float32 [C].
        accuracy: of the linear systems behind these values.
        roots: root of each point's degree, float32 [m]; used by "degree_balanced".
    """

    rows: Rows
    diagonal: np.ndarray
    labels: np.ndarray
    answers: np.ndarray
    client_counts: np.ndarray
    cohort_counts: np.ndarray
    accuracy: SolverAccuracy = SolverAccuracy()
    roots: np.ndarray | float = 0.0


def left_out_scores(points: Labeled, p: Propagation) -> np.ndarray:
    """Z of every labeled point without its own label, float32 [m, C]."""
    rows = without_own(points.rows, points.labels, points.diagonal, points.roots)
    contribution = np.abs(points.diagonal[:, None] * points.labels)
    values = np.where(np.abs(rows.values) > _ROUNDING * contribution, rows.values, np.float32(0))
    z = scores(p.label_matrix, rows._replace(values=values))
    weighed = weighed_by_prior(z, *left_out_counts(points), p.client_prior, p.client_prior_labels)
    return np.asarray(weighed)


def left_out_counts(points: Labeled) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of labels of each point's client and of the cohort without its own, float32 [m, C]."""
    return points.client_counts - points.labels, points.cohort_counts - points.labels


def half_hits(left_out: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Twice the leave-one-out hit of each point, int [m]: 2, 1 or 0.

    2 if its own class has the largest score, 1 if it ties with the largest other one, 0 otherwise and if no
    other label reaches the point. Scores within a relative difference of `_NEAR` tie: between identical
    points the order of additions would decide, and it differs between protocols.
    """
    rows = np.arange(len(answers))
    others = left_out.copy()
    others[rows, answers] = -np.inf
    true_score, other = left_out[rows, answers], others.max(axis=1, initial=-np.inf)
    with np.errstate(invalid="ignore"):  # a single class has no other score
        is_near = np.abs(true_score - other) <= _NEAR * np.maximum(
            np.abs(true_score), np.abs(other)
        )
    hits = np.where(is_near, 1, np.where(true_score > other, 2, 0))
    return np.where(left_out.max(axis=1) > 0, hits, 0)


def alone(matrix: PropagationMatrix, points: np.ndarray) -> np.ndarray:
    """bool [m]: true for points without any other of these points in their component of the graph."""
    root = np.asarray(everywhere(components(matrix.graph)).root)
    _, component, sizes = np.unique(root[points], return_inverse=True, return_counts=True)
    return np.asarray(sizes[component] == 1)


def labeled_rows(
    matrix: PropagationMatrix, y: np.ndarray, owner: np.ndarray, answers: np.ndarray
) -> Labeled:
    """`Labeled` of all labeled points in ascending order, if one party has the graph and the labels.

    `y` is Y, float32 [n, C], zero rows where unlabeled; `owner` the client of each point, int [n]; `answers`
    are int [n], -1 where unlabeled.

    Cost: C columns of S, and those that `diagonal` needs.
    """
    points = np.flatnonzero(answers >= 0)
    labels, roots = y[points], np.asarray(matrix.root_degrees)[points]
    values, accuracy = solved(matrix, y)
    of_clients = np.zeros((int(owner.max(initial=0)) + 1, y.shape[1]), np.float32)
    np.add.at(of_clients, owner[points], labels)
    # Sums on the host: each client's number of points would be a program of its own.
    counts, masses = (
        np.broadcast_to(each.sum(axis=0), labels.shape)
        for each in (labels, roots[:, None] * labels)
    )
    on_diagonal, accuracy_of_own = diagonal(matrix, points)
    is_alone = alone(matrix, points)[:, None]
    x = np.where(is_alone, on_diagonal[:, None] * labels, np.asarray(values)[points])
    return Labeled(
        Rows(x, counts, masses),
        on_diagonal,
        labels,
        answers[points],
        of_clients[owner[points]],
        of_clients.sum(axis=0),
        accuracy.worst(accuracy_of_own),
        roots,
    )


def diagonal(matrix: PropagationMatrix, points: np.ndarray) -> tuple[np.ndarray, SolverAccuracy]:
    """S_ii of some points, float32 [m], and the accuracy of the linear systems.

    Up to `EXACT_UP_TO` entries are solved for, a column each; more are estimated from `NUM_PROBES` columns.
    The same points, int [m], give the same numbers.
    """
    if len(points) <= EXACT_UP_TO:
        entries, worst = np.zeros(len(points), np.float32), SolverAccuracy()
        widths = _WIDTHS if matrix.num_points > _WIDE_FROM else _WIDTHS[:2]
        for start in range(0, len(points), widths[-1]):
            block = points[start : start + widths[-1]]
            columns = np.arange(len(block))
            width = next(width for width in widths if width >= len(block))
            unit = np.zeros((matrix.num_points, width), np.float32)
            unit[block, columns] = 1
            z, accuracy = solved(matrix, unit)
            entries[start : start + len(block)] = np.asarray(z)[block, columns]
            worst = worst.worst(accuracy)
        return entries, worst
    rng = np.random.default_rng((_SEED, len(points)))
    group = rng.permutation(len(points)) % NUM_PROBES
    sign = rng.choice(np.array([-1, 1], np.float32), len(points))
    probes = np.zeros((matrix.num_points, NUM_PROBES), np.float32)
    probes[points, group] = sign
    z, known, accuracy = _centered(matrix, probes)
    estimate = sign * np.asarray(z)[points, group] + np.asarray(known)[points]
    return np.asarray(estimate, np.float32), accuracy


def _centered(
    matrix: PropagationMatrix, y: np.ndarray
) -> tuple[jax.Array, jax.Array, SolverAccuracy]:
    """S_c Y, float32 [n, C], and the diagonal of S - S_c, float32 [n]: v_i^2 / ((1 - alpha) |v_K|^2).

    v = D^1/2 on the component K of each point. Also returns the accuracy of the linear systems.
    """
    graph, alpha, tolerance, max_steps = matrix
    parts = everywhere(components(graph))
    z, info = everywhere(
        propagate_centered(graph, parts, y, alpha, tolerance=tolerance, max_steps=max_steps)
    )
    v, volume = matrix.root_degrees, jnp.where(parts.volume > 0, parts.volume, 1.0)
    return z, v / ((1 - alpha) * volume) * v, accuracy_of(info, max_steps)
