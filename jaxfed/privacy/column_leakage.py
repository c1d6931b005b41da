"""Leakage of columns of S to a client of XCLP: other clients' classes, and edges between their points.

Line 12 of Algorithm 1 gives client j the columns S_L^(j) of S = (I - alpha W)^-1 at its labeled points, n
numbers each. With the classes y_l of these points it propagates its own labels to all clients' points,

    class of i  =  argmax_c  mean over l with y_l = c of S_il,

As neighbors have similar rows of S, two points are likely to share an edge of the graph if their rows of
S_L^(j) point in the same direction:

    edge score of i and k  =  <s_i, s_k> / |s_i| |s_k|,     s_i = (S_il)_l.

No protocol that sends columns prevents this, as the columns are the client's output. With
`influence="labels"` over masked row sums the client gets Z on its own points alone
(`jaxfed.secure.influence.transfer`).
"""

from __future__ import annotations

import numpy as np

from jaxfed.errors import UsageError


def classes_from_columns(columns: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """The likeliest class of every point.

    Args:
        columns: S_L^(j), real [n, m].
        labels: the classes y_l of the client's labeled points, int [m].
        num_classes: C.

    Returns:
        int [n]; the smaller class for ties and unreached points.

    Raises:
        UsageError: shapes that do not fit together, or a label outside 0 ... C - 1.
    """
    _check(columns, labels.shape)
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise UsageError(f"column leakage: use labels from 0 to {num_classes - 1}")
    one_hot = np.eye(num_classes)[labels]
    means = columns @ one_hot / np.maximum(one_hot.sum(axis=0), 1)
    return means.argmax(axis=1)


def edge_scores(columns: np.ndarray) -> np.ndarray:
    """Cosine similarity of two points' rows: float64 [n, n], 1 for parallel rows, 0 without overlap.

    Args:
        columns: S_L^(j), real [n, m].

    Cost: n^2 m operations, 8 n^2 bytes.
    """
    _check(columns, columns.shape[1:])
    rows = np.asarray(columns, np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    directions = rows / np.where(lengths > 0, lengths, 1)
    return directions @ directions.T


def _check(columns: np.ndarray, expected: tuple[int, ...]) -> None:
    if columns.ndim != 2 or columns.shape[1:] != expected:
        raise UsageError(
            f"column leakage: columns {list(columns.shape)} and labels {list(expected)}: "
            "use [n, m] and [m]"
        )
