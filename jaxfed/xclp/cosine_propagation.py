"""Label propagation on the exact-cosine graph of some vectors: what XCLP estimates, without a protocol.

    A_ij = cos(v_i, v_j),  B = k largest of each row (not its own),  W = D^-1/2 (B + B^T) D^-1/2,
    Z = (I - alpha W)^-1 Y, or as `label_matrix` says

(Iscen et al., CVPR 2019; lines 7 to 10, 15 and 16 of XCLP's Algorithm 1.)
"""

from __future__ import annotations

import jax

from jaxfed.federation.execution import HERE, Execution
from jaxfed.kernels import knn
from jaxfed.kernels.graph import normalized_graph
from jaxfed.xclp import Propagation, edge_weights, predict, relative, with_self_edges
from jaxfed.xclp.smoother import joint_scores


def propagate_over_cosines(
    vectors: jax.Array,
    y: jax.Array,
    valid: jax.Array | None,
    p: Propagation,
    execution: Execution = HERE,
) -> tuple[jax.Array, jax.Array]:
    """Labels int32 [n] (-1: no label arrives) and confidences f32 [n] of vectors [n, d].

    Args:
        vectors: float32 [n, d].
        y: float32 [n, C], one-hot, zero where unlabeled.
        valid: bool [n], False on padding; None: all are points.
        p: k, `self_edges`, alpha, the edges' power, tolerance and step limit, `label_matrix` and
            `relative_confidence`, both over these n vectors.
        execution: may remember neighbors, unless this is traced.

    Cost: n^2 d operations; memory O(n (d + k + C)).
    """
    indices, cosines = execution.once(knn.cosine_knn, vectors, p.num_neighbors, valid=valid)
    if p.self_edges:
        indices, cosines = with_self_edges(indices, cosines)
    graph = normalized_graph(indices, edge_weights(cosines, p.similarity_power))
    z, _ = joint_scores(graph, y, p)
    label, confidence = predict(z)
    return label, relative(confidence) if p.relative_confidence else confidence
