"""Labels for later points through a session: their rows of M Y, delivered to their owners.

Z_x is linear in the Z of the graph (`jaxfed.xclp.mixture`). Z is M Y up to the factors of `label_matrix`, one
per class. So lines 5 to 14 run once more, for the later points alone:

    5 to 7      distances of later points to the graph's; the server stores each one's k nearest, and w
    10 to 13    INFLUENCE of the server's matrix w M, [m, n], on the clients' labels
    14          ROW_SUMS: client j gets the rows of its own later points, and the counts of labels
    15, 16      unchanged

with the same protocols and the same code.

Cost: all linear systems of the labeling once more; distances of m n pairs.
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
from jaxfed.xclp.cross_steps import IN_GRAPH, ROW_SUMS
from jaxfed.xclp.influence import INFLUENCE, Accuracy
from jaxfed.xclp.kept import KeptApart
from jaxfed.xclp.messages import count_later_messages
from jaxfed.xclp.mixture import Mixture, mixture
from jaxfed.xclp.neighborhoods import rows_of
from jaxfed.xclp.own_scores import class_counts, client_scores, with_prior
from jaxfed.xclp.smoother import Smoother


class LaterRows:
    """The server's matrix w M, [m, n], one row for each later point, used in place of M.

    Args:
        matrix: M, n by n.
        near: weights w of the m later points.

    Attributes:
        num_points: n, with padding.
        max_steps: maximum number of conjugate-gradient steps.
    """

    def __init__(self, matrix: Smoother, near: Mixture) -> None:
        self._matrix, self._mixture = matrix, near.padded()
        self.num_points, self.max_steps = matrix.num_points, matrix.max_steps

    def solved(self, y: np.ndarray) -> tuple[jax.Array, Convergence]:
        """w M Y, float32 [m or more, C], for Y float32 [n, C]."""
        z, info = self._matrix.solved(y)
        return jnp.asarray(self._mixture.of(z)), info


def later_scores(
    kept: KeptApart,
    codes: Mapping[int, np.ndarray],
    execution: Execution,
    communication: Communication,
) -> tuple[dict[int, np.ndarray], Accuracy]:
    """Z of the later points of every client that stays to the end, float32 [m_j, C], weighted by its prior.

    Args:
        kept: artifacts of the labeling.
        codes: uint32 [m_j, L / 32] of later points, with their noise, of all clients in the session.
        execution: execution settings.
        communication: the bytes that are sent are added here.

    Returns:
        The scores, and the accuracy of the linear systems.

    Raises:
        ProtocolError: an unexpected message; no client gets scores then.
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
    """Lines 5 to 7: number of later points of each client that is still there, and their weights w."""
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
    """Lines 10 to 14 for `sizes` later points a client, whose neighbors are `near`."""
    session, p, m = kept.session, kept.p, len(near.indices)
    rows = dict(zip(sizes, rows_of(list(sizes.values())), strict=True))
    contributions = INFLUENCE[p.influence](  # 10-SS to 13-CS
        LaterRows(kept.matrix, near),
        {j: y if j in rows else np.zeros_like(y) for j, y in kept.labels.items()},
        kept.rows,
        session,
        is_secure=p.row_sums != "plaintext",
        num_outputs=m,
    )
    counts = {j: class_counts(kept.labels[j], are_needed=p.needs_class_counts) for j in rows}
    sums = ROW_SUMS[p.row_sums](contributions, counts, rows, session, execution)  # 14-XS
    scores = {}
    for j, (values, cohort) in sums.items():
        z = client_scores(values, cohort, p)
        scores[j] = with_prior(z, kept.labels[j].sum(axis=0), cohort.sum(axis=0), p)
    count_later_messages(
        communication,
        num_clients=len(rows),
        num_labeled=sum(int(kept.labels[j].any(axis=1).sum()) for j in rows),
        num_points=m,
        p=p,
    )
    return scores, contributions.accuracy


def with_noise(codes: np.ndarray, known: dict[bytes, np.ndarray], epsilon: float) -> np.ndarray:
    """CS: a client's codes of later points [m, L / 32], randomized with the operating system's noise.

    `known` caches the noisy version of each code; new codes are added to it.
    """
    fresh = [own for own in np.unique(codes, axis=0) if own.tobytes() not in known]
    if fresh:
        draw = randomized_response.from_system
        noisy = randomized_response.randomize_bits(jnp.asarray(np.stack(fresh)), draw, epsilon)
        known.update(zip((own.tobytes() for own in fresh), np.asarray(noisy), strict=True))
    return np.stack([known[own.tobytes()] for own in codes]) if len(codes) else codes
