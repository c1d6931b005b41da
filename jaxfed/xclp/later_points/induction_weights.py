"""Induction weights: a later point's row is a weighted sum of the rows of its nearest points in the graph.

    Z_x = sum_l w_xl Z_l,    w_xl = alpha b_xl / sqrt(d_x d_l)

(`jaxfed.xclp.later_points.out_of_sample` derives it.) The same weights serve S Y and the columns of S.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.kernels.devices import in_batches, padded_rows
from jaxfed.kernels.graph import cosine_from_hamming
from jaxfed.privacy import randomized_response
from jaxfed.xclp.settings.parameters import Parameters
from jaxfed.xclp.steps.hamming import LATER_BATCH
from jaxfed.xclp.steps.knn_graph import edge_weights


class InductionWeights(NamedTuple):
    """Weights of later points on the points of the graph, as k entries a row.

    Fields:
        indices: neighbors of each later point, int32 [m, k], -1 for none.
        weights: w, float32 [m, k]; 0 where there is no neighbor.
    """

    indices: np.ndarray
    weights: np.ndarray

    def weighted_sums(self, values: jax.Array | np.ndarray) -> np.ndarray:
        """Sums of the rows of `values` [n, C] with these weights, float32 [m, C]."""
        values = jnp.asarray(values)

        def sums(rows: np.ndarray) -> jax.Array:
            return _weighted_sums(values, self.indices[rows], self.weights[rows])

        return np.asarray(in_batches(sums, np.arange(len(self.indices)), LATER_BATCH))

    def padded(self) -> InductionWeights:
        """The weights padded to the length of `padded_rows`; the last rows are empty."""
        return InductionWeights(padded_rows(self.indices, fill=-1), padded_rows(self.weights))


def induction_weights(
    indices: np.ndarray, distances: np.ndarray, root_degrees: np.ndarray, p: Parameters
) -> InductionWeights:
    """Induction weights of later points, from their nearest points in the graph.

    Args:
        indices, distances: int32 [m, k], as `jaxfed.kernels.knn.hamming_knn_among` returns them.
        root_degrees: D^1/2 of the graph, float32 [n].
        p: the settings.
    """
    if not len(indices):
        return InductionWeights(indices, np.zeros(indices.shape, np.float32))
    roots = np.append(np.asarray(root_degrees), np.float32(0))[indices]
    weights_of = partial(
        _weights,
        num_bits=p.num_bits,
        similarity_power=p.similarity_power,
        bit_epsilon=p.bit_epsilon,
        alpha=p.alpha,
    )

    def weights(rows: np.ndarray) -> jax.Array:
        return weights_of(distances[rows], roots[rows])

    return InductionWeights(
        indices, np.asarray(in_batches(weights, np.arange(len(indices)), LATER_BATCH))
    )


@jax.jit
def _weighted_sums(values: jax.Array, indices: jax.Array, weights: jax.Array) -> jax.Array:
    neighbors = values[jnp.maximum(indices, 0)]
    return jnp.einsum("mk,mkc->mc", weights, neighbors, precision=jax.lax.Precision.HIGHEST)


@partial(
    jax.jit,
    static_argnames=("num_bits", "similarity_power", "bit_epsilon", "alpha"),
)
def _weights(
    distances: jax.Array,
    roots: jax.Array,
    *,
    num_bits: int,
    similarity_power: float,
    bit_epsilon: float,
    alpha: float,
) -> jax.Array:
    """w of some points, float32 [m, k], from distances int32 and D^1/2 float32 [m, k] of their neighbors.

    A missing neighbor has a distance beyond L, and so has its unbiased estimate: no edge.
    """
    hamming: jax.Array = distances
    if bit_epsilon:
        estimates = randomized_response.unbiased_distances(distances, num_bits, bit_epsilon)
        hamming = jnp.maximum(estimates, 0)
    b = edge_weights(cosine_from_hamming(hamming, num_bits), similarity_power)
    listed = b.sum(axis=1, keepdims=True)
    listed = jnp.where(listed > 0, listed, 1)
    return alpha / jnp.sqrt(listed) * b / jnp.where(roots > 0, roots, 1)
