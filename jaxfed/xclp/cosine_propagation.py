"""Label propagation on the exact-cosine graph of some vectors: what XCLP estimates, without a protocol.

    A_ij = cos(v_i, v_j),  B = k largest of each row (not its own),  W = D^-1/2 (B + B^T) D^-1/2,
    Z = (I - alpha W)^-1 Y

(Iscen et al., CVPR 2019; lines 7 to 10, 15 and 16 of XCLP's Algorithm 1.)
"""

from __future__ import annotations

import jax

from jaxfed.federation.execution import HERE, Execution
from jaxfed.kernels import conjugate_gradient, knn
from jaxfed.kernels.graph import normalized_graph
from jaxfed.xclp import Propagation, balanced, edge_weights, predict, relative, with_self_edges


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
        p: k, `self_edges`, alpha, the edges' power, tolerance and step limit, `class_balanced` and
            `relative_confidence`, both over these n vectors.
        execution: may remember neighbors, unless this is traced.

    Cost: n^2 d operations; memory O(n (d + k + C)).
    """
    indices, cosines = execution.once(knn.cosine_knn, vectors, p.num_neighbors, valid=valid)
    if p.self_edges:
        indices, cosines = with_self_edges(indices, cosines)
    graph = normalized_graph(indices, edge_weights(cosines, p.similarity_power))
    labels = balanced(y) if p.class_balanced else y
    z, _ = conjugate_gradient.propagate(
        graph, labels, p.alpha, tolerance=p.tolerance, max_steps=p.max_steps
    )
    label, confidence = predict(z)
    return label, relative(confidence) if p.relative_confidence else confidence
