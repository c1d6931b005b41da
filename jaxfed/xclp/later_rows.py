"""Labels for later points through a session: their rows of M Y, and how each client gets its own.

Z_x is linear in the Z of the graph (`jaxfed.xclp.mixture`), which is M Y but for what `label_matrix` makes of
it. So lines 5 to 14 are gone through once more, for the later points alone:

    5 to 7      distances of later points to the graph's; the server keeps each one's k nearest, and w
    10 to 13    INFLUENCE of the server's matrix w M, [m, n], on the clients' labels
    14          ROW_SUMS: client j gets the rows of its own later points, and the counts of labels
    15, 16      as ever

by the same protocols and the same code. Where labels go by components ("centered", "poisson"), the scores of
l are made of M Y, f and counts of l's component, and neighbors of x may lie in several: x then has one row
for each, r rows if r is the most that any point has, and Z_x is the sum of what becomes of them. Which
component a row is of, and its flat part, the owner hears (`jaxfed.secure.influence.leading`).

Cost: of the systems that the labeling solved, all once more; of distances, m n pairs.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.federation.communication import Communication
from jaxfed.federation.execution import Execution
from jaxfed.kernels.conjugate_gradient import Convergence
from jaxfed.privacy import randomized_response
from jaxfed.secure.influence import leading
from jaxfed.secure.influence.leading import Leading
from jaxfed.xclp.cross_steps import IN_GRAPH, ROW_SUMS
from jaxfed.xclp.influence import INFLUENCE, Accuracy
from jaxfed.xclp.kept import KeptApart
from jaxfed.xclp.messages import count_later_messages
from jaxfed.xclp.mixture import Mixture, mixture
from jaxfed.xclp.neighborhoods import rows_of
from jaxfed.xclp.own_scores import (
    class_counts,
    client_scores,
    labeled_among,
    numbered,
    with_prior,
)
from jaxfed.xclp.smoother import Smoother


class LaterRows:
    """The server's matrix w M, [m r, n]: what takes the place of M for later points.

    Args:
        matrix: M, n by n.
        near: w, of the m later points.
        numbers: of every point's component, int32 [n], -1 for those without labels; None where labels do
            not go by components.

    Attributes:
        num_points: n, with padding.
        max_steps: of conjugate gradients, at most.
        rows_per_point: r.
        component: of every row, int32 [m r], -1 for rows of nothing.
    """

    def __init__(self, matrix: Smoother, near: Mixture, numbers: np.ndarray | None) -> None:
        self._matrix = matrix
        self.num_points, self.max_steps = matrix.num_points, matrix.max_steps
        self.rows_per_point, self.component = 1, np.zeros(len(near.indices), np.int32)
        if numbers is not None:
            near, parts = _by_component(near, numbers)
            self.rows_per_point, self.component = parts.shape[1], parts.reshape(-1)
        self._mixture = near.padded()

    def solved(self, y: np.ndarray) -> tuple[jax.Array, Convergence]:
        """w M Y, float32 [m r or more, C], for Y float32 [n, C]."""
        z, info = self._matrix.solved(y)
        return jnp.asarray(self._mixture.of(z)), info

    def flat(self, is_labeled: np.ndarray) -> np.ndarray:
        """w f, float32 [m r], f the flat parts with these labels, bool [n]."""
        f = np.asarray(self._matrix.flat(is_labeled)[0])
        return self._mixture.of(f[:, None])[: len(self.component), 0]


def later_scores(
    kept: KeptApart,
    codes: Mapping[int, np.ndarray],
    execution: Execution,
    communication: Communication,
) -> tuple[dict[int, np.ndarray], Accuracy]:
    """Z of the later points of every client that stays to the end, float32 [m_j, C], by its own prior.

    Args:
        kept: of the labeling.
        codes: uint32 [m_j, L / 32] of later points, with their noise, of all clients in the session.
        execution: as everywhere.
        communication: gets what is sent.

    Returns:
        The scores, and how accurate the linear systems are.

    Raises:
        ProtocolError: a message that does not belong where it arrives; nobody gets scores then.
    """
    if not any(len(own) for own in codes.values()):
        return {}, Accuracy()
    before = kept.session.communication()
    sizes, near = _near(kept, codes, execution)
    found: tuple[dict[int, np.ndarray], Accuracy] = {}, Accuracy()
    if len(near.indices):
        found = _scores(kept, sizes, near, execution, communication)
    communication.add(kept.session.communication().since(before))
    return found


def _near(
    kept: KeptApart, codes: Mapping[int, np.ndarray], execution: Execution
) -> tuple[dict[int, int], Mixture]:
    """Lines 5 to 7: how many later points each client has that is still there, and w of these points."""
    p = kept.p
    clients, indices, distances = IN_GRAPH[p.hamming](
        codes,
        {j: kept.codes[j] for j in codes},
        kept.session,
        execution,
        num_neighbors=p.num_neighbors - p.self_edges,
        key_bits=p.key_bits,
    )
    points = [np.arange(kept.rows[j].start, kept.rows[j].stop) for j in clients]
    in_graph = np.concatenate([*points, [-1]])[indices].astype(np.int32)
    near = mixture(in_graph, distances, np.asarray(kept.matrix.root_degrees), p)
    return {j: len(codes[j]) for j in clients}, near


def _scores(
    kept: KeptApart,
    sizes: Mapping[int, int],
    near: Mixture,
    execution: Execution,
    communication: Communication,
) -> tuple[dict[int, np.ndarray], Accuracy]:
    """Lines 10 to 14 of `sizes` later points a client, whose neighbors are `near`."""
    session, p, m = kept.session, kept.p, len(near.indices)
    found, n = kept.matrix.found, kept.matrix.num_points
    numbers, num_counts = None, int(p.label_matrix != "plain" or p.client_prior > 0)
    if found is not None:
        numbers, num_counts = numbered(found, labeled_among(n, kept.labeled))
    matrix = LaterRows(kept.matrix, near, numbers)
    r = matrix.rows_per_point
    rows = dict(zip(sizes, rows_of([r * size for size in sizes.values()]), strict=True))
    contributions = INFLUENCE[p.influence](  # 10-SS to 13-CS
        matrix,
        {j: y if j in rows else np.zeros_like(y) for j, y in kept.labels.items()},
        kept.rows,
        session,
        is_secure=p.row_sums != "plaintext",
        num_outputs=r * m,
    )
    flat = np.zeros(r * m, np.float32)
    if found is not None:
        flat = matrix.flat(labeled_among(n, contributions.labeled))
    heard = {j: Leading(matrix.component[own], flat[own]) for j, own in rows.items()}
    if found is not None:
        heard = leading.sent(session, heard, num_counts)
    counts = {j: class_counts(kept.labels[j], kept.heard[j], num_counts) for j in rows}
    sums = ROW_SUMS[p.row_sums](contributions, counts, rows, session, execution)  # 14-XS
    scores = {}
    for j, (values, cohort) in sums.items():
        by_row = client_scores(values, cohort, heard[j], p)
        z = by_row.reshape(sizes[j], r, p.num_classes).sum(axis=1)
        scores[j] = with_prior(z, kept.labels[j].sum(axis=0), cohort.sum(axis=0), p)
    count_later_messages(
        communication,
        num_clients=len(rows),
        num_labeled=sum(int(kept.labels[j].any(axis=1).sum()) for j in rows),
        num_points=m,
        num_rows=r * m,
        num_counts=num_counts,
        p=p,
    )
    return scores, contributions.accuracy


def with_noise(codes: np.ndarray, known: dict[bytes, np.ndarray], epsilon: float) -> np.ndarray:
    """CS: a client's codes of later points [m, L / 32], randomized; the operating system's noise.

    `known` has the noisy codes of those that were asked for before, and gets the others.
    """
    fresh = [own for own in np.unique(codes, axis=0) if own.tobytes() not in known]
    if fresh:
        draw = randomized_response.from_system
        noisy = randomized_response.randomize_bits(jnp.asarray(np.stack(fresh)), draw, epsilon)
        known.update(zip((own.tobytes() for own in fresh), np.asarray(noisy), strict=True))
    return np.stack([known[own.tobytes()] for own in codes]) if len(codes) else codes


def _by_component(near: Mixture, numbers: np.ndarray) -> tuple[Mixture, np.ndarray]:
    """One row for each component with labels that a point's neighbors lie in, and which one, int32 [m, r]."""
    of_neighbors = np.where(near.weights > 0, np.append(numbers, -1)[near.indices], -1)
    ordered = np.sort(of_neighbors, axis=1)
    is_new = (ordered >= 0) & (np.diff(ordered, axis=1, prepend=-1) != 0)
    place = np.cumsum(is_new, axis=1) - 1
    parts = np.full((len(ordered), max(1, int(is_new.sum(axis=1).max(initial=0)))), -1, np.int32)
    points, at = np.nonzero(is_new)
    parts[points, place[points, at]] = ordered[points, at]
    is_of = (of_neighbors[:, None] == parts[:, :, None]) & (parts >= 0)[:, :, None]
    weights = np.where(is_of, near.weights[:, None], np.float32(0))
    indices = np.broadcast_to(near.indices[:, None], weights.shape)
    shape = parts.size, near.indices.shape[1]
    return Mixture(indices.reshape(shape), weights.reshape(shape)), parts
