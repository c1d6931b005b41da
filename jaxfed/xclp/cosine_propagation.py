"""Label propagation on the exact-cosine graph of some vectors: what XCLP estimates, without a protocol.

    A_ij = cos(v_i, v_j),  B = k largest of each row (not its own),  W = D^-1/2 (B + B^T) D^-1/2,
    Z = (I - alpha W)^-1 Y, or as `label_matrix` says

(Iscen et al., CVPR 2019; lines 7 to 10, 15 and 16 of XCLP's Algorithm 1.)
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.federation.execution import HERE, Execution
from jaxfed.kernels import knn
from jaxfed.kernels.graph import Graph, normalized_graph
from jaxfed.xclp import client_prior
from jaxfed.xclp.calibration import calibrated
from jaxfed.xclp.influence import EVERYBODY
from jaxfed.xclp.leave_one_out import Labeled, labeled_rows
from jaxfed.xclp.neighborhoods import edge_weights, with_self_edges
from jaxfed.xclp.parameters import Propagation
from jaxfed.xclp.prediction import predict, relative
from jaxfed.xclp.selection import Choice, plaintext_total, select, settings_of
from jaxfed.xclp.smoother import joint_scores, smoother


def propagate_over_cosines(
    vectors: jax.Array,
    y: jax.Array,
    valid: jax.Array | None,
    p: Propagation,
    execution: Execution = HERE,
    client_counts: jax.Array | None = None,
    sharpness: float | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Labels int32 [n] (-1: no label arrives) and confidences f32 [n] of vectors [n, d].

    Args:
        vectors: float32 [n, d].
        y: float32 [n, C], one-hot, zero where unlabeled.
        valid: bool [n], False on padding; None: all are points.
        p: everything but `select`: k, `self_edges`, alpha, the edges' power, tolerance and step limit,
            `label_matrix`, `client_prior` and `relative_confidence`, the latter over these n vectors.
        execution: may remember neighbors, unless this is traced.
        client_counts: labels of every class of each point's client, [n, C]; None: all are of one client,
            whose frequencies are the cohort's, so that a prior changes nothing.
        sharpness: of calibrated confidences, as `choose_over_cosines` has found it; None: line 16's.

    Cost: n^2 d operations; memory O(n (d + k + C)).
    """
    indices, cosines = execution.once(knn.cosine_knn, vectors, p.num_neighbors, valid=valid)
    z, _ = joint_scores(_graph(indices, cosines, p), y, p)
    if client_counts is not None:
        z = jnp.asarray(
            client_prior.weighed(z, client_counts, y.sum(axis=0, keepdims=True), p.client_prior)
        )
    label, confidence = predict(z)
    if sharpness is not None:
        return label, jnp.asarray(calibrated(z, sharpness))
    return label, relative(confidence) if p.relative_confidence else confidence


def choose_over_cosines(
    vectors: jax.Array,
    y: np.ndarray,
    valid: jax.Array,
    owner: np.ndarray,
    p: Propagation,
    execution: Execution = HERE,
) -> Choice[Propagation]:
    """The settings out of `p.select`, by leave-one-out over these vectors; arguments as above.

    `owner`: the client of each point, int [n].
    """
    most = max(s.num_neighbors for s in settings_of(p))
    indices, cosines = execution.once(knn.cosine_knn, vectors, most, valid=valid)
    answers = np.where(y.any(axis=1), y.argmax(axis=1), -1)

    def evidence(s: Propagation) -> dict[int, Labeled]:
        k = s.num_neighbors
        graph = _graph(indices[:, :k], cosines[:, :k], s)
        return {EVERYBODY: labeled_rows(smoother(graph, s), y, owner, answers)}

    return select(p, evidence, plaintext_total)


def _graph(indices: jax.Array, cosines: jax.Array, p: Propagation) -> Graph:
    if p.self_edges:
        indices, cosines = with_self_edges(indices, cosines)
    return normalized_graph(indices, edge_weights(cosines, p.similarity_power))
