"""Induction weights: a later point's row is a weighted sum of the rows of its nearest points in the graph.

    Z_x = sum_l w_xl Z_l,    w_xl = alpha b_xl / sqrt(d_x d_l) / (1 - 2 alpha / d_x)

(`jaxfed.xclp.out_of_sample` derives it; the last factor applies with self_edges only.) The same weights serve
M Y and the columns of M.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.kernels.devices.padding import in_batches, padded_rows
from jaxfed.kernels.graph import cosine_from_hamming
from jaxfed.privacy import randomized_response
from jaxfed.xclp.cross_steps import LATER_BATCH
from jaxfed.xclp.neighborhoods import edge_weights
from jaxfed.xclp.parameters import Parameters


class Mixture(NamedTuple):
    """Weighted sums of rows.

    Fields:
        indices: the rows of each sum, int32 [m, k], -1 for none.
        weights: w, float32 [m, k]; 0 where there is no row.
    """

    indices: np.ndarray
    weights: np.ndarray

    def of(self, values: jax.Array | np.ndarray) -> np.ndarray:
        """Weighted sums of `values` [n, C], float32 [m, C]."""
        values = jnp.asarray(values)

        def mixed(rows: np.ndarray) -> jax.Array:
            return _mixed(values, self.indices[rows], self.weights[rows])

        return np.asarray(in_batches(mixed, np.arange(len(self.indices)), LATER_BATCH))

    def padded(self) -> Mixture:
        """The sums padded to the length of `padded_rows`; the last ones are empty."""
        return Mixture(padded_rows(self.indices, fill=-1), padded_rows(self.weights))


def mixture(
    indices: np.ndarray, distances: np.ndarray, root_degrees: np.ndarray, p: Parameters
) -> Mixture:
    """Induction weights of later points, from their nearest points in the graph.

    Args:
        indices, distances: int32 [m, k], as `jaxfed.kernels.knn.hamming_knn_among` returns them.
        root_degrees: D^1/2 of the graph, float32 [n].
        p: the settings.
    """
    if not len(indices):
        return Mixture(indices, np.zeros(indices.shape, np.float32))
    roots = np.append(np.asarray(root_degrees), np.float32(0))[indices]
    weigh = partial(
        _weights,
        num_bits=p.num_bits,
        similarity_power=p.similarity_power,
        bit_epsilon=p.bit_epsilon,
        self_edges=p.self_edges,
        alpha=p.alpha,
    )

    def weights(rows: np.ndarray) -> jax.Array:
        return weigh(distances[rows], roots[rows])

    return Mixture(indices, np.asarray(in_batches(weights, np.arange(len(indices)), LATER_BATCH)))


@jax.jit
def _mixed(values: jax.Array, indices: jax.Array, weights: jax.Array) -> jax.Array:
    neighbors = values[jnp.maximum(indices, 0)]
    return jnp.einsum("mk,mkc->mc", weights, neighbors, precision=jax.lax.Precision.HIGHEST)


@partial(
    jax.jit,
    static_argnames=("num_bits", "similarity_power", "bit_epsilon", "self_edges", "alpha"),
)
def _weights(
    distances: jax.Array,
    roots: jax.Array,
    *,
    num_bits: int,
    similarity_power: float,
    bit_epsilon: float,
    self_edges: bool,
    alpha: float,
) -> jax.Array:
    """w of some points, float32 [m, k], from distances int32 and D^1/2 float32 [m, k] of their neighbors.

    A missing neighbor has a distance beyond L, and so has its unbiased estimate: no edge.
    """
    apart: jax.Array = distances
    if bit_epsilon:
        estimates = randomized_response.unbiased_distances(distances, num_bits, bit_epsilon)
        apart = jnp.maximum(estimates, 0)
    b = edge_weights(cosine_from_hamming(apart, num_bits), similarity_power)
    listed = b.sum(axis=1, keepdims=True)
    listed = jnp.where(listed > 0, listed, 1)
    num_own = 2 * self_edges
    degree = listed + num_own
    factor = alpha / jnp.sqrt(degree) / (1 - num_own * alpha / degree)
    return factor * b / jnp.where(roots > 0, roots, 1)
