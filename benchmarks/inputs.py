"""Synthetic inputs of XCLP: feature vectors in clusters, their codes, their graph."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.kernels import graph, knn, lsh
from jaxfed.kernels.graph import Graph

NUM_FEATURES = 128  # of the 13-layer CNN in Section 4.2
SEPARATION = 0.4  # of the classes' centers, in units of the noise


@lru_cache(maxsize=2)
def features(n: int, num_classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """float32 [n, 128] around one center a class, int32 [n] classes.

    Classes overlap as those of real features do: about eight of a point's ten nearest neighbors share its
    class. (Separate classes make components that amplify labels a hundredfold, more than a float32 residual
    can resolve.)
    """
    rng = np.random.default_rng(n)
    centers = SEPARATION * rng.standard_normal((num_classes, NUM_FEATURES))
    y = rng.integers(num_classes, size=n).astype(np.int32)
    return (centers[y] + rng.standard_normal((n, NUM_FEATURES))).astype(np.float32), y


@lru_cache(maxsize=2)
def codes(n: int, num_bits: int, kind: str) -> jax.Array:
    """uint32 [n, num_bits / 32]: codes of `features`, or "uniform" random bits."""
    if kind == "uniform":
        return jax.random.bits(jax.random.key(n), (n, num_bits // 32), jnp.uint32)
    return lsh.project_bits(jnp.asarray(features(n)[0]), jax.random.key(0), num_bits)


def packed_bytes(bits: jax.Array) -> np.ndarray:
    """uint8 [n, num_bits / 8], the same codes in the layout of other libraries."""
    return np.ascontiguousarray(np.asarray(bits).view(np.uint8))


@lru_cache(maxsize=2)
def neighbors(n: int, num_neighbors: int) -> tuple[jax.Array, jax.Array]:
    """Indices and cosine weights [n, k] of the Hamming kNN graph of `features`, L = 1024."""
    num_bits = 1024
    indices, distances = knn.hamming_knn(codes(n, num_bits, "features"), num_neighbors)
    return indices, graph.cosine_from_hamming(distances, num_bits)


@lru_cache(maxsize=2)
def joint_graph(n: int, num_neighbors: int) -> Graph:
    """The normalized graph of `neighbors`."""
    return graph.normalized_graph(*neighbors(n, num_neighbors))


def sparse_graph(indices: Any, weights: Any) -> Any:
    """The same graph by SciPy: D^-1/2 (B + B^T) D^-1/2 as float32 CSR."""
    from scipy import sparse

    w = sparse_affinity(indices, weights)
    degree = np.asarray(w.sum(axis=1)).ravel()
    scale = np.zeros_like(degree)
    scale[degree > 0] = degree[degree > 0] ** -0.5
    return sparse.csr_array(sparse.diags_array(scale) @ w @ sparse.diags_array(scale))


def sparse_affinity(indices: Any, weights: Any) -> Any:
    """B + B^T by SciPy, as float32 CSR, weights <= 0 left out."""
    from scipy import sparse

    indices, weights = np.asarray(indices), np.asarray(weights)
    n, k = indices.shape
    edge = weights.ravel() > 0
    b = sparse.csr_array(
        (weights.ravel()[edge], (np.repeat(np.arange(n), k)[edge], indices.ravel()[edge])),
        shape=(n, n),
    )
    return b + b.T


def one_hot(n: int, num_classes: int, labeled_fraction: float = 0.1) -> np.ndarray:
    """float32 [n, C]: one-hot rows for a tenth of the points, at least C of them; else zero rows."""
    rng = np.random.default_rng(0)
    y = features(n, num_classes)[1]
    labeled = rng.permutation(n)[: max(int(labeled_fraction * n), num_classes)]
    matrix = np.zeros((n, num_classes), np.float32)
    matrix[labeled, y[labeled]] = 1
    return matrix
