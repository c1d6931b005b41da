"""Labels for points that come after the graph: from their k nearest codes in it, without solving a system.

A later point x is one more row of line 10's system. It lists its k nearest among the n points of the graph,
as in line 7. No point lists x, and all other rows stay as they are. Then, Y_x being 0,

    Z_x = alpha sum_l W_xl Z_l,    W_xl = b_xl / sqrt(d_x d_l),    d_x = sum_l b_xl              line 10

with b_xl = max(cos(pi h_xl / L), 0)^similarity_power of the listed l, and degrees d_l of the graph.

It is the induction formula of Delalleau, Bengio, Le Roux, "Efficient Non-Parametric Function Induction in
Semi-Supervised Learning", AISTATS 2005, which minimizes the same energy over x alone, all else fixed, here
with XCLP's normalization. An unlabeled point that no other point lists gets its own Z back if it is removed
from the graph and labeled as a later point. A point that is still in the graph is its own nearest neighbor.
Limitation: later points do not connect other points. With many of them, far from all old ones, a new labeling
knows more.

Privacy. In the clear, the client with x sends its codes. The server, which has all codes of the graph and Z,
answers with Z_x, from which lines 15 and 16 follow: L / 8 bytes up and 4 C down per point. The client need
not have taken part; it needs Pi. It learns a weighted sum of at most k points' scores. With points of its own
choice it can probe single points of others, as with every method that answers any input. With `bit_epsilon`
later codes are randomized, too: a repeated code gets the same noise, another code independent noise.

With protocols, no party has both codes and Z, and each party stores its own artifacts (`jaxfed.xclp.result`).
The labeling's session stays open. Lines 5 to 16 run once more for the later points alone, by the same
protocols and the same code. Z_x is linear in the Z of the graph, which is S Y up to the factors of
`label_matrix`, one per class:

    5 to 7      distances of later points to the graph's; the server stores each one's k nearest, and w
    10 to 13    INFLUENCE of the server's matrix w S, [m, n], on the clients' labels
    14          ROW_SUMS: client j gets the rows of its own later points, and the counts of labels

with w_xl = alpha W_xl. Labels are those in the clear:

    line   party             learns
    5      server            distances of later points to the graph's; with "plaintext" their codes
    5      clients           nothing
    12     server            `positions` once more
    12     client j          with influence="columns": how far its labels reach each later point of everybody
    14     client j          Z_x of its own later points, and counts of labels as in the labeling
    all    everybody         the number of later points of each client

Everything else is as in the labeling, with new masks, transfers and keys. All clients that took part must be
present, even without later points: each provides its codes and labels again. The labels of a client that has
left since the labeling, or leaves meanwhile, do not count, though its points still connect others. If it left
before or in line 5, its points of the graph are no neighbors. It gets unreached predictions. With
`bit_epsilon` the operating system draws the noise, and a client stores that of each code. Under
`label_epsilon` the randomized labels are reused. So neither spends more of a budget. Clients that have not
taken part have no keys with the others and are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.communication import Communication
from jaxfed.federation.execution.settings import HERE, Execution
from jaxfed.kernels.conjugate_gradient import Convergence
from jaxfed.kernels.devices import in_batches, padded_rows
from jaxfed.privacy import randomized_response
from jaxfed.random_streams import Stream
from jaxfed.xclp.inputs import checked
from jaxfed.xclp.result import PartyArtifacts, Result, ServerArtifacts, count_messages
from jaxfed.xclp.settings.parameters import IN_GRAPH, INFLUENCE, Parameters
from jaxfed.xclp.steps.codes import client_codes, rows_of, rows_of_clients, setup
from jaxfed.xclp.steps.hamming import LATER_BATCH
from jaxfed.xclp.steps.knn_graph import edge_weights
from jaxfed.xclp.steps.prediction import Prediction, predicted
from jaxfed.xclp.steps.propagation_matrix import (
    PropagationMatrix,
    SolverAccuracy,
    warn_of_cut_short,
)
from jaxfed.xclp.steps.row_sums import Scores, summed_scores, with_prior


def induction_weights(
    indices: np.ndarray, distances: np.ndarray, root_degrees: jax.Array, p: Parameters
) -> np.ndarray:
    """w of later points, float32 [m, k], on their nearest points in the graph; 0 where there is none.

    `indices` and `distances` are int32 [m, k], as `jaxfed.kernels.knn.hamming_knn_among` returns them;
    `root_degrees` D^1/2 of the graph, float32 [n].
    """
    if not len(indices):
        return np.zeros(indices.shape, np.float32)
    roots = np.append(np.asarray(root_degrees), np.float32(0))[indices]

    def weights(rows: np.ndarray) -> jax.Array:
        settings = p.num_bits, p.similarity_power, p.bit_epsilon, p.alpha
        return _weights(distances[rows], roots[rows], *settings)

    return np.asarray(in_batches(weights, np.arange(len(indices)), LATER_BATCH))


@partial(jax.jit, static_argnums=(2, 3, 4, 5))
def _weights(
    distances: jax.Array,
    roots: jax.Array,
    num_bits: int,
    similarity_power: float,
    bit_epsilon: float,
    alpha: float,
) -> jax.Array:
    # A missing neighbor has a distance beyond L, and so has its unbiased estimate: no edge.
    b = edge_weights(distances, num_bits, bit_epsilon, similarity_power)
    listed = b.sum(axis=1, keepdims=True)
    listed = jnp.where(listed > 0, listed, 1)
    return alpha / jnp.sqrt(listed) * b / jnp.where(roots > 0, roots, 1)


def weighted_sums(
    values: jax.Array | np.ndarray, indices: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """sum_l w_xl values_l, float32 [m, C], of values [n, C], indices and weights [m, k]."""
    values = jnp.asarray(values)

    def sums(rows: np.ndarray) -> jax.Array:
        return _weighted_sums(values, indices[rows], weights[rows])

    return np.asarray(in_batches(sums, np.arange(len(indices)), LATER_BATCH))


@jax.jit
def _weighted_sums(values: jax.Array, indices: jax.Array, weights: jax.Array) -> jax.Array:
    neighbors = values[jnp.maximum(indices, 0)]
    return jnp.einsum("mk,mkc->mc", weights, neighbors, precision=jax.lax.Precision.HIGHEST)


class LaterRows:
    """The server's matrix w S, [m, n], one row for each of the m later points, used in place of S."""

    def __init__(self, matrix: PropagationMatrix, indices: np.ndarray, weights: np.ndarray) -> None:
        self._matrix = matrix
        self._indices, self._weights = padded_rows(indices, fill=-1), padded_rows(weights)
        self.num_points, self.p = matrix.num_points, matrix.p

    def solved(self, y: np.ndarray) -> tuple[jax.Array, Convergence]:
        """w S Y, float32 [m or more, C], for Y float32 [n, C]."""
        z, info = self._matrix.solved(y)
        return jnp.asarray(weighted_sums(z, self._indices, self._weights)), info


def later_scores(
    artifacts: PartyArtifacts,
    codes: Mapping[int, np.ndarray],
    execution: Execution,
    communication: Communication,
) -> tuple[dict[int, np.ndarray], SolverAccuracy]:
    """Lines 5 to 14 through the session: Z of later points, float32 [m_j, C], weighted by the client's prior.

    `codes` are uint32 [m_j, L / 32], with their noise, of all clients in the session. Returns the scores of
    every client that stays to the end, and the accuracy of the linear systems. Bytes that are sent are added
    to `communication`.

    Raises:
        ProtocolError: an unexpected message; no client gets scores then.

    Cost: all linear systems of the labeling once more; distances of m n pairs.
    """
    if not any(len(own) for own in codes.values()):
        return {}, SolverAccuracy()
    session, p = artifacts.session, artifacts.p
    before = session.communication()
    clients, indices, distances = IN_GRAPH[p.hamming](
        codes,
        {j: artifacts.codes[j] for j in codes},
        session,
        execution,
        num_neighbors=p.num_neighbors,
        key_bits=p.key_bits,
    )
    points = [np.arange(artifacts.rows[j].start, artifacts.rows[j].stop) for j in clients]
    in_graph = np.concatenate([*points, [-1]])[indices].astype(np.int32)
    weights = induction_weights(in_graph, distances, artifacts.matrix.root_degrees, p)
    rows = rows_of_clients({j: codes[j] for j in clients})
    scores: dict[int, Scores] = {}
    accuracy = SolverAccuracy()
    if len(indices):
        contributions = INFLUENCE[p.influence](  # 10-SS to 13-CS
            LaterRows(artifacts.matrix, in_graph, weights),
            {j: y if j in rows else np.zeros_like(y) for j, y in artifacts.labels.items()},
            artifacts.rows,
            session,
            is_secure=p.row_sums != "plaintext",
            num_outputs=len(indices),
        )
        accuracy = contributions.accuracy
        scores = summed_scores(
            contributions, artifacts.labels, rows, p, session, execution
        )  # 14-XS
        count_messages(
            communication,
            num_clients=len(rows),
            num_labeled=sum(int(artifacts.labels[j].any(axis=1).sum()) for j in rows),
            num_points=len(indices),
            p=p,
        )
    communication.add(session.communication().since(before))
    return {j: own.weighted for j, own in scores.items()}, accuracy


def label_later(
    result: Result,
    vectors: Sequence[np.ndarray],
    p: Parameters,
    execution: Execution = HERE,
) -> list[Prediction]:
    """Label points that come after a labeling.

    Args:
        result: of `jaxfed.xclp.cross_client_label_propagation`. The bytes that are sent are added to its
            `communication`.
        vectors: one float [m_j, d] array a client: the labeling's clients in their order; clients beyond the
            end of the list have none. With plaintext steps newcomers may follow; their order matters for
            `client_prior` alone, and they have the cohort's frequencies.
        p: the settings that the labeling was given.
        execution: worker processes and progress; no influence on the result.

    Returns:
        One `Prediction` for each of the arrays. Label -1, confidence 0: no label reaches any of the point's
        neighbors, or the client has left. A point's prediction does not depend on the other later points.

    Raises:
        UsageError: newcomers if a step is a protocol; vectors that are not finite or of another d.

    Cost: m (d L + n L / 64 + n k) operations, 4 n bytes for each of 256 points. Through a session the cost of
    `jaxfed.xclp.later_points.out_of_sample`, for any m.
    """
    vectors, _ = checked(vectors, None, p.num_classes)
    _check_clients(result, vectors, p)
    scores = [np.zeros((len(v), p.num_classes), np.float32) for v in vectors]
    largest = [np.float32(1)] * len(vectors)
    artifacts, accuracy = result.artifacts, SolverAccuracy()
    if artifacts is not None and any(len(v) for v in vectors):
        if isinstance(artifacts, PartyArtifacts):
            codes = _codes_of_parties(artifacts, vectors)
            found, accuracy = later_scores(artifacts, codes, execution, result.communication)
            scores = [found.get(j, own) for j, own in enumerate(scores)]
            largest = [artifacts.largest.get(j, own) for j, own in enumerate(largest)]
        else:
            scores = _of_clients(artifacts, vectors, execution)
            largest = [artifacts.largest] * len(vectors)
            num_later, own = sum(map(len, vectors)), artifacts.p
            result.communication.up("codes", num_later * own.num_bits // 8)
            result.communication.down("row_sums", 4 * num_later * own.num_classes)
    warn_of_cut_short(accuracy, SolverAccuracy(), p.tolerance)
    predictions = predicted(scores, result.choice.sharpness if result.choice else None)
    if not p.relative_confidence:
        return predictions
    return [
        own._replace(confidences=np.minimum(own.confidences / (most or np.float32(1)), 1))
        for own, most in zip(predictions, largest, strict=True)
    ]


def _check_clients(result: Result, vectors: Sequence[np.ndarray], p: Parameters) -> None:
    dim, num_clients = vectors[0].shape[1], len(result.predictions)
    if result.artifacts is not None and dim != (allowed := result.artifacts.planes.shape[1]):
        raise UsageError(
            f"labels for later points: vectors have {dim} entries; use {allowed}, as in the graph"
        )
    if p.has_session and len(vectors) > num_clients:
        raise UsageError(
            f"labels for later points: {len(vectors)} clients, of which {num_clients} took part in the "
            f"labeling: with xclp.hamming={p.hamming!r}, xclp.row_sums={p.row_sums!r} newcomers have no keys "
            "with the others"
        )


def _codes_of_parties(
    artifacts: PartyArtifacts, vectors: Sequence[np.ndarray]
) -> dict[int, np.ndarray]:
    """CS: codes of the later points of all clients that have not left, with their noise."""
    all_codes = client_codes(vectors, artifacts.planes)
    nothing = all_codes[0][:0]
    codes = {
        j: all_codes[j] if j < len(vectors) else nothing
        for j in artifacts.rows
        if j in artifacts.session.clients
    }
    epsilon = artifacts.p.bit_epsilon
    if not epsilon:
        return codes
    return {j: _with_noise(own, artifacts.noisy[j], epsilon) for j, own in codes.items()}


def _with_noise(codes: np.ndarray, known: dict[bytes, np.ndarray], epsilon: float) -> np.ndarray:
    """Codes randomized with the operating system's noise; `known` caches the noisy version of each code."""
    fresh = [own for own in np.unique(codes, axis=0) if own.tobytes() not in known]
    if fresh:
        draw = randomized_response.from_system
        noisy = randomized_response.randomize_bits(jnp.asarray(np.stack(fresh)), draw, epsilon)
        known.update(zip((own.tobytes() for own in fresh), np.asarray(noisy), strict=True))
    return np.stack([known[own.tobytes()] for own in codes]) if len(codes) else codes


def _of_clients(
    artifacts: ServerArtifacts, vectors: Sequence[np.ndarray], execution: Execution
) -> list[np.ndarray]:
    """Z of later points, f32 [m_j, C] a client, weighted by its prior; newcomers have the cohort's."""
    p, codes = artifacts.p, later_codes(artifacts, vectors)
    _, indices, distances = IN_GRAPH["plaintext"](
        dict(enumerate(codes)),
        dict(enumerate(artifacts.codes)),
        None,
        execution,
        num_neighbors=p.num_neighbors,
        key_bits=p.key_bits,
    )
    weights = induction_weights(indices, distances, artifacts.root_degrees, p)
    z = weighted_sums(padded_rows(artifacts.scores), indices, weights)
    parts = [z[rows] for rows in rows_of(vectors)]
    counts = np.stack([y.sum(axis=0) for y in artifacts.points.labels.values()])
    cohort = counts.sum(axis=0)
    known = [*counts, *(np.zeros_like(cohort) for _ in vectors)]
    return [with_prior(part, own, cohort, p) for part, own in zip(parts, known, strict=False)]


def later_codes(artifacts: ServerArtifacts, vectors: Sequence[np.ndarray]) -> list[np.ndarray]:
    """CS: codes of later points, uint32 [m_j, L / 32] a client; equal ones have equal noise."""
    p, codes = artifacts.p, client_codes(vectors, artifacts.planes)
    if not p.bit_epsilon:
        return codes
    key, joint = jax.random.fold_in(setup(p.seed), Stream.LATE_POINTS), np.concatenate(codes)
    draw = randomized_response.from_content(key, joint)
    noisy = np.asarray(randomized_response.randomize_bits(jnp.asarray(joint), draw, p.bit_epsilon))
    return [noisy[own] for own in rows_of(vectors)]
