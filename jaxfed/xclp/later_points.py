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

With `head="ridge"` (`jaxfed.xclp.heads`) Y_x is the head's answer P_x, at the client, and Z is Z':
Z_x = P_x + alpha' sum_l W_xl Z'_l. The head alone, `Result.head`, labels a point without the graph.

Privacy. In the clear, the client with x sends its codes. The server, which has all codes of the graph and Z,
answers with Z_x, from which lines 15 and 16 follow: L / 8 bytes up and 4 C down per point. The client need
not have taken part; it needs Pi. It learns a weighted sum of at most k points' scores. With points of its own
choice it can probe single points of others, as with every method that answers any input. With `bit_epsilon`
later codes are randomized, too: a repeated code gets the same noise, another code independent noise.

With protocols no party has both codes and Z, so later points are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.kernels.devices import in_batches, padded_rows
from jaxfed.privacy import randomized_response
from jaxfed.random_streams import Stream
from jaxfed.xclp.inputs import checked
from jaxfed.xclp.result import Result, ServerArtifacts
from jaxfed.xclp.settings.parameters import Parameters
from jaxfed.xclp.steps.codes import client_codes, rows_of, setup
from jaxfed.xclp.steps.hamming import LATER_BATCH, nearest_in_graph
from jaxfed.xclp.steps.knn_graph import edge_weights
from jaxfed.xclp.steps.prediction import Prediction, predicted
from jaxfed.xclp.steps.row_sums import with_prior


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


def label_later(result: Result, vectors: Sequence[np.ndarray], p: Parameters) -> list[Prediction]:
    """Label points that come after a labeling.

    Args:
        result: of `jaxfed.xclp.cross_client_label_propagation`. The bytes that are sent are added to its
            `communication`.
        vectors: one float [m_j, d] array a client: the labeling's clients in their order; clients beyond the
            end of the list have none. Newcomers may follow; their order matters for `client_prior` alone,
            and they have the cohort's frequencies.
        p: the settings that the labeling was given.

    Returns:
        One `Prediction` for each of the arrays. Label -1, confidence 0: no label reaches any of the point's
        neighbors. A point's prediction does not depend on the other later points.

    Raises:
        UsageError: a step is a protocol; vectors that are not finite or of another d.

    Cost: m (d L + n L / 64 + n k) operations, 4 n bytes for each of 256 points.
    """
    if p.has_session:
        raise UsageError(
            f"labels for later points: with xclp.hamming={p.hamming!r}, xclp.row_sums={p.row_sums!r} no "
            "party has both codes and scores; set both to 'plaintext', or label all points anew with "
            "`propagate_labels`"
        )
    vectors, _ = checked(vectors, None, p.num_classes)
    artifacts, dim = result.artifacts, vectors[0].shape[1]
    if artifacts is not None and dim != (allowed := artifacts.planes.shape[1]):
        raise UsageError(
            f"labels for later points: vectors have {dim} entries; use {allowed}, as in the graph"
        )
    scores = [np.zeros((len(v), p.num_classes), np.float32) for v in vectors]
    if artifacts is not None and any(len(v) for v in vectors):
        scores = _of_clients(artifacts, vectors)
        num_later, settings = sum(map(len, vectors)), artifacts.p
        result.communication.up("codes", num_later * settings.num_bits // 8)
        result.communication.down("row_sums", 4 * num_later * settings.num_classes)
    predictions = predicted(scores, result.choice.sharpness if result.choice else None)
    if not p.relative_confidence or artifacts is None:
        return predictions
    largest = artifacts.largest or np.float32(1)
    return [
        one._replace(confidences=np.minimum(one.confidences / largest, 1)) for one in predictions
    ]


def _of_clients(artifacts: ServerArtifacts, vectors: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Z of later points, f32 [m_j, C] a client, weighted by its prior; newcomers have the cohort's."""
    p, codes = artifacts.p, later_codes(artifacts, vectors)
    indices, distances = nearest_in_graph(codes, artifacts.codes, p.num_neighbors)
    weights = induction_weights(indices, distances, artifacts.root_degrees, p)
    z = weighted_sums(padded_rows(artifacts.scores), indices, weights)
    if artifacts.head is not None:
        z = z * np.float32(p.head_alpha / p.alpha) + np.concatenate(
            [artifacts.head(v) for v in vectors]
        )
    parts = [z[rows] for rows in rows_of(vectors)]
    counts = np.stack([y.sum(axis=0) for y in artifacts.points.labels.values()])
    cohort = counts.sum(axis=0)
    known = [*counts, *(np.zeros_like(cohort) for _ in vectors)]
    return [with_prior(part, counts, cohort, p) for part, counts in zip(parts, known, strict=False)]


def later_codes(artifacts: ServerArtifacts, vectors: Sequence[np.ndarray]) -> list[np.ndarray]:
    """CS: codes of later points, uint32 [m_j, L / 32] a client; equal ones have equal noise."""
    if artifacts.p.center:
        vectors = [v - artifacts.mean for v in vectors]
    p, codes = artifacts.p, client_codes(vectors, artifacts.planes)
    if not p.bit_epsilon:
        return codes
    key, joint = jax.random.fold_in(setup(p.seed), Stream.LATE_POINTS), np.concatenate(codes)
    draw = randomized_response.from_content(key, joint)
    noisy = np.asarray(randomized_response.randomize_bits(jnp.asarray(joint), draw, p.bit_epsilon))
    return [noisy[rows] for rows in rows_of(vectors)]
