"""From its rows of the sums of line 14 to a client's scores: what it hears of the graph, what it counts.

Line 14 gives client j rows R_j of M Y (`jaxfed.xclp.smoother`), and beside them sums of the clients' counts
of labels. With the component and the flat part of its points, which the server tells it, they make its rows
of Z as `label_matrix` wants it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from jaxfed.privacy import randomized_response
from jaxfed.secure.influence import leading
from jaxfed.secure.influence.leading import Leading
from jaxfed.xclp import label_matrix
from jaxfed.xclp.influence import Contributions
from jaxfed.xclp.parameters import Parameters
from jaxfed.xclp.smoother import Smoother

if TYPE_CHECKING:
    from jaxfed.secure.session.parties import Session


def client_leading(
    matrix: Smoother,
    contributions: Contributions,
    rows: Mapping[int, slice],
    session: Session | None,
) -> tuple[dict[int, Leading], int]:
    """What every client hears of its own points, and how many rows of counts are summed beside Z.

    One row for each component with labels, where `label_matrix` goes by components; one for all points for
    "class_balanced", none for "plain", and nothing to hear.
    """
    num_rows = max(own.stop for own in rows.values())
    if matrix.found is None:
        nothing = Leading(np.zeros(num_rows, np.int32), np.zeros(num_rows, np.float32))
        own = {j: Leading(*(values[r] for values in nothing)) for j, r in rows.items()}
        return own, int(matrix.p.label_matrix != "plain")
    labeled = np.zeros(matrix.num_points, bool)
    for positions in contributions.labeled.values():
        labeled[positions] = True
    root = np.asarray(matrix.found.root)
    roots = np.unique(root[labeled])
    number = np.full(len(root), -1, np.int32)
    number[roots] = np.arange(len(roots))
    everything = Leading(number[root], np.asarray(matrix.flat(labeled)[0]))
    own = {j: Leading(*(values[r] for values in everything)) for j, r in rows.items()}
    if session is None:
        return own, len(roots)
    return leading.sent(session, own, len(roots)), len(roots)


def class_counts(matrix: np.ndarray, own: Leading | None, num_counts: int) -> np.ndarray:
    """What of Y^(j) [n_j, C] is summed beside Z: labels of every class in every component, [t, C].

    Of a client that has heard nothing, because it has left: zeros, which nobody reads.
    """
    counts = np.zeros((num_counts, matrix.shape[1]), np.float32)
    if own is None:
        return counts
    is_labeled = matrix.any(axis=1) & (own.component < num_counts)
    np.add.at(counts, own.component[is_labeled], matrix[is_labeled])
    return counts


def client_scores(
    values: np.ndarray, counts: np.ndarray, own: Leading, p: Parameters
) -> np.ndarray:
    """CS: Z[R_j] as `p` wants it, out of M times one-hot answers, f32 [n_j, C]; Z is linear in these.

    `counts`: the cohort's numbers of labels [t, C], by component. Randomized labels: the unbiased estimates
    of both.
    """
    if p.label_epsilon:
        values = randomized_response.unbiased(values, p.num_classes, p.label_epsilon)
        counts = randomized_response.unbiased(counts, p.num_classes, p.label_epsilon)
    none = np.zeros((1, p.num_classes), counts.dtype)  # row -1, of components without labels
    own_counts = np.concatenate([counts, none])[own.component]
    z = label_matrix.scores(p.label_matrix, label_matrix.Rows(values, own_counts, own.flat))
    return np.asarray(z, np.float32)
