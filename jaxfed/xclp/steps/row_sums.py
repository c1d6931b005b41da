"""Line 14 of Algorithm 1, a cross step: each client's rows of the summed contributions, and its scores.

Line 14 gives client j rows R_j of S Y (`jaxfed.xclp.steps.propagation_matrix`). If the scores need them, it
also gives the sums of the clients' counts of labels (`jaxfed.xclp.steps.class_scores`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jaxfed.federation.execution import Execution
from jaxfed.privacy import randomized_response
from jaxfed.xclp.settings.parameters import ROW_SUMS, Counts, Parameters
from jaxfed.xclp.steps.class_scores import Rows, scores, weighed_by_prior
from jaxfed.xclp.steps.contributions import Contributions

if TYPE_CHECKING:
    from jaxfed.secure.session.parties import Session


class Scores(NamedTuple):
    """Z[R_j] of one client, float32 [n_j, C], without and with its client prior."""

    unweighted: np.ndarray
    weighted: np.ndarray


def summed_scores(
    contributions: Contributions,
    labels: Mapping[int, np.ndarray],
    rows: Mapping[int, slice],
    p: Parameters,
    session: Session | None,
    execution: Execution,
    roots: np.ndarray,
) -> dict[int, Scores]:
    """Line 14, XS: the scores of each client's own rows R_j, of all clients that stay.

    A client counts its labels Y^(j), float32 [n_j, C]. `roots` are D^1/2 of all points, float32 [n or more].
    """
    y = np.concatenate(list(labels.values()))
    masses = (roots[: len(y), None] * y).sum(axis=0, keepdims=True)
    counts = {j: class_counts(labels[j], are_needed=p.needs_class_counts) for j in rows}
    scores = {}
    for j, (values, cohort) in ROW_SUMS[p.row_sums](
        contributions, counts, rows, session, execution
    ).items():
        z = client_scores(values, cohort, p, masses)
        weighted = with_prior(z, labels[j].sum(axis=0), cohort.sum(axis=0), p)
        scores[j] = Scores(z, weighted)
    return scores


def class_counts(matrix: np.ndarray, *, are_needed: bool) -> np.ndarray:
    """Numbers of labels of each class in Y^(j) [n_j, C], to be summed with Z: [1, C], or no row."""
    counts = matrix.sum(axis=0, keepdims=True)
    return counts if are_needed else counts[:0]


def own_rows(
    values: np.ndarray, counts: np.ndarray, p: Parameters, masses: np.ndarray | None = None
) -> Rows:
    """CS: the inputs of a client's scores, from S times one-hot labels, f32 [n_j, C].

    `counts`: the cohort's numbers of labels, [1, C]; [0, C] if the scores do not need them. `masses`: sums of
    the roots of their degrees, [1, C]; None if nobody knows them. For randomized labels, all are replaced by
    their unbiased estimates.
    """
    masses = counts if masses is None else masses
    if p.label_epsilon:
        values, counts, masses = (
            randomized_response.unbiased(a, p.num_classes, p.label_epsilon)
            for a in (values, counts, masses)
        )
    return Rows(values, *(np.broadcast_to(a.sum(axis=0), values.shape) for a in (counts, masses)))


def client_scores(
    values: np.ndarray, counts: np.ndarray, p: Parameters, masses: np.ndarray | None = None
) -> np.ndarray:
    """CS: Z[R_j] without a client prior, f32 [n_j, C]; arguments as `own_rows`."""
    z = scores(p.label_matrix, own_rows(values, counts, p, masses))
    return np.asarray(z, np.float32)


def with_prior(z: np.ndarray, counts: np.ndarray, cohort: np.ndarray, p: Parameters) -> np.ndarray:
    """CS: scores [m, C] weighted by the client's and the cohort's label counts [C], if `p` has a prior."""
    if not p.client_prior:
        return z
    if p.label_epsilon:
        counts, cohort = randomized_response.unbiased(
            np.stack([counts, cohort]), p.num_classes, p.label_epsilon
        )
    weighed = weighed_by_prior(z, counts, cohort, p.client_prior, p.client_prior_labels)
    return np.asarray(weighed, np.float32)


def plaintext_row_sums(
    contributions: Contributions,
    counts: Counts,
    rows: Mapping[int, slice],
    session: Session | None,
    execution: Execution,
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Line 14 in the clear: client j gets rows R_j of the summed contributions, f32 [n_j, C].

    It also gets the sum of the counts [t, C], f32. A client that has left before does not count and gets
    nothing.
    """
    del execution
    staying = [client for client in rows if session is None or client in session.clients]
    if not staying:
        return {}
    first, *others = contributions.values.values()
    total = sum(others, start=first)
    summed = np.stack([counts[client] for client in staying]).sum(axis=0, dtype=np.float32)
    return {client: (total[rows[client]], summed) for client in staying}


def secure_row_sums(
    contributions: Contributions,
    counts: Counts,
    rows: Mapping[int, slice],
    session: Session | None,
    execution: Execution,
    *,
    resilient: bool = False,
    signed: bool = False,
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Line 14 by a protocol in which client j learns its rows and no party learns anything else.

    Counts are t further rows of every client. Each client learns only their sum, over exactly the clients
    whose contributions count. Returns the rows of the clients that have stayed.
    """
    from jaxfed.secure import cross_steps

    assert session is not None
    sums = cross_steps.sums_and_totals(
        session,
        contributions.values,
        counts,
        rows,
        resilient=resilient,
        signed=signed,
        progress=execution.counting("uploads for row sums"),
    )
    return {
        client: (rows.astype(np.float32), total.astype(np.float32))
        for client, (rows, total) in sums.items()
    }
