"""Labels for later points through a session: their rows of S Y, delivered to their owners.

Z_x is linear in the Z of the graph (`jaxfed.xclp.later_points.induction_weights`). Z is S Y up to the factors
of `label_matrix`, one per class. So lines 5 to 14 run once more, for the later points alone:

    5 to 7      distances of later points to the graph's; the server stores each one's k nearest, and w
    10 to 13    INFLUENCE of the server's matrix w S, [m, n], on the clients' labels
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
from jaxfed.federation.execution.settings import Execution
from jaxfed.kernels.conjugate_gradient import Convergence
from jaxfed.privacy import randomized_response
from jaxfed.xclp.later_points.induction_weights import InductionWeights, induction_weights
from jaxfed.xclp.messages import count_later_messages
from jaxfed.xclp.result import PartyArtifacts
from jaxfed.xclp.settings.exchangeable_steps import IN_GRAPH, INFLUENCE
from jaxfed.xclp.steps.codes import rows_of_clients
from jaxfed.xclp.steps.propagation_matrix import PropagationMatrix, SolverAccuracy
from jaxfed.xclp.steps.row_sums import summed_scores


class LaterRows:
    """The server's matrix w S, [m, n], one row for each later point, used in place of S.

    Args:
        matrix: S, n by n.
        weights: w of the m later points.

    Attributes:
        num_points: n, with padding.
        max_steps: maximum number of conjugate-gradient steps.
    """

    def __init__(self, matrix: PropagationMatrix, weights: InductionWeights) -> None:
        self._matrix, self._weights = matrix, weights.padded()
        self.num_points, self.max_steps = matrix.num_points, matrix.max_steps

    def solved(self, y: np.ndarray) -> tuple[jax.Array, Convergence]:
        """w S Y, float32 [m or more, C], for Y float32 [n, C]."""
        z, info = self._matrix.solved(y)
        return jnp.asarray(self._weights.weighted_sums(z)), info


def later_scores(
    artifacts: PartyArtifacts,
    codes: Mapping[int, np.ndarray],
    execution: Execution,
    communication: Communication,
) -> tuple[dict[int, np.ndarray], SolverAccuracy]:
    """Z of the later points of every client that stays to the end, float32 [m_j, C], weighted by its prior.

    Args:
        artifacts: artifacts of the labeling.
        codes: uint32 [m_j, L / 32] of later points, with their noise, of all clients in the session.
        execution: execution settings.
        communication: the bytes that are sent are added here.

    Returns:
        The scores, and the accuracy of the linear systems.

    Raises:
        ProtocolError: an unexpected message; no client gets scores then.
    """
    if not any(len(own) for own in codes.values()):
        return {}, SolverAccuracy()
    before = artifacts.session.communication()
    sizes, weights = _weights(artifacts, codes, execution)
    found: tuple[dict[int, np.ndarray], SolverAccuracy] = {}, SolverAccuracy()
    if len(weights.indices):
        found = _scores(artifacts, sizes, weights, execution, communication)
    communication.add(artifacts.session.communication().since(before))
    return found


def _weights(
    artifacts: PartyArtifacts, codes: Mapping[int, np.ndarray], execution: Execution
) -> tuple[dict[int, int], InductionWeights]:
    """Lines 5 to 7: number of later points of each client that is still there, and their weights w."""
    p = artifacts.p
    clients, indices, distances = IN_GRAPH[p.hamming](
        codes,
        {j: artifacts.codes[j] for j in codes},
        artifacts.session,
        execution,
        num_neighbors=p.num_neighbors,
        key_bits=p.key_bits,
    )
    points = [np.arange(artifacts.rows[j].start, artifacts.rows[j].stop) for j in clients]
    in_graph = np.concatenate([*points, [-1]])[indices].astype(np.int32)
    weights = induction_weights(in_graph, distances, np.asarray(artifacts.matrix.root_degrees), p)
    return {j: len(codes[j]) for j in clients}, weights


def _scores(
    artifacts: PartyArtifacts,
    sizes: Mapping[int, int],
    weights: InductionWeights,
    execution: Execution,
    communication: Communication,
) -> tuple[dict[int, np.ndarray], SolverAccuracy]:
    """Lines 10 to 14 for `sizes` later points a client, with induction weights w."""
    session, p, m = artifacts.session, artifacts.p, len(weights.indices)
    rows = rows_of_clients(sizes)
    contributions = INFLUENCE[p.influence](  # 10-SS to 13-CS
        LaterRows(artifacts.matrix, weights),
        {j: y if j in rows else np.zeros_like(y) for j, y in artifacts.labels.items()},
        artifacts.rows,
        session,
        is_secure=p.row_sums != "plaintext",
        num_outputs=m,
    )
    scores = summed_scores(contributions, artifacts.labels, rows, p, session, execution)  # 14-XS
    count_later_messages(
        communication,
        num_clients=len(rows),
        num_labeled=sum(int(artifacts.labels[j].any(axis=1).sum()) for j in rows),
        num_points=m,
        p=p,
    )
    return {j: own.weighted for j, own in scores.items()}, contributions.accuracy


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
