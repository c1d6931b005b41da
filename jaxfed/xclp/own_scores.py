"""From its rows of the sums of line 14 to a client's scores: what it hears of the graph, what it counts.

Line 14 gives client j rows R_j of M Y (`jaxfed.xclp.smoother`), and beside them sums of the clients' counts
of labels. With the component and the flat part of its points, which the server tells it, they make its rows
of Z as `label_matrix` wants it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import jax
import numpy as np

from jaxfed.kernels.components import Components
from jaxfed.privacy import randomized_response
from jaxfed.secure.influence import leading
from jaxfed.secure.influence.leading import Leading
from jaxfed.xclp import client_prior, label_matrix
from jaxfed.xclp.influence import Contributions, Matrix
from jaxfed.xclp.label_matrix import Rows
from jaxfed.xclp.parameters import Parameters

if TYPE_CHECKING:
    from jaxfed.secure.session.parties import Session

Array = jax.Array | np.ndarray


class Graded(Matrix, Protocol):
    """The server's matrix M, or a part of it, and what makes scores of M Y."""

    @property
    def found(self) -> Components | None:
        """Components of the points, where they are needed."""

    def flat(self, is_labeled: np.ndarray) -> tuple[Array, Array]:
        """(f, F), float32 [n] both, of bool [n]."""


def client_leading(
    matrix: Graded,
    contributions: Contributions,
    rows: Mapping[int, slice],
    session: Session | None,
    *,
    needs_counts: bool,
) -> tuple[dict[int, Leading], int]:
    """What every client hears of its own points, and how many rows of counts are summed beside Z.

    One row for each component with labels, where `label_matrix` goes by components; else there is nothing to
    hear, and one row for all points if `needs_counts`, or none.
    """
    num_rows = max(own.stop for own in rows.values())
    if matrix.found is None:
        nothing = Leading(np.zeros(num_rows, np.int32), np.zeros(num_rows, np.float32))
        own = {j: Leading(*(values[r] for values in nothing)) for j, r in rows.items()}
        return own, int(needs_counts)
    labeled = labeled_among(matrix.num_points, contributions.labeled)
    numbers, num_components = numbered(matrix.found, labeled)
    everything = Leading(numbers, np.asarray(matrix.flat(labeled)[0]))
    own = {j: Leading(*(values[r] for values in everything)) for j, r in rows.items()}
    if session is None:
        return own, num_components
    return leading.sent(session, own, num_components), num_components


def labeled_among(num_points: int, positions: Mapping[int, np.ndarray]) -> np.ndarray:
    """bool [n]: which points the server knows to be labeled, from their numbers a client."""
    labeled = np.zeros(num_points, bool)
    for own in positions.values():
        labeled[own] = True
    return labeled


def numbered(found: Components, labeled: np.ndarray) -> tuple[np.ndarray, int]:
    """The number of each point's component among those with labels, int32 [n], -1 of others; how many."""
    root = np.asarray(found.root)
    roots = np.unique(root[labeled])
    place = np.searchsorted(roots, root)
    return np.where(np.isin(root, roots), place, -1).astype(np.int32), len(roots)


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


def own_rows(values: np.ndarray, counts: np.ndarray, own: Leading, p: Parameters) -> Rows:
    """CS: what its scores are made of, out of M times one-hot answers, f32 [n_j, C].

    `counts`: the cohort's numbers of labels [t, C], by component. Randomized labels: the unbiased estimates
    of both.
    """
    if p.label_epsilon:
        values = randomized_response.unbiased(values, p.num_classes, p.label_epsilon)
        counts = randomized_response.unbiased(counts, p.num_classes, p.label_epsilon)
    none = np.zeros((1, p.num_classes), counts.dtype)  # row -1, of components without labels
    return Rows(values, np.concatenate([counts, none])[own.component], own.flat)


def client_scores(
    values: np.ndarray, counts: np.ndarray, own: Leading, p: Parameters
) -> np.ndarray:
    """CS: Z[R_j] without a client prior, f32 [n_j, C]; arguments as `own_rows`."""
    z = label_matrix.scores(p.label_matrix, own_rows(values, counts, own, p))
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
