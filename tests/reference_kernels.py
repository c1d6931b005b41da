"""Reference implementations of the kernels in NumPy and float64: slow, simple, and independent of JAX.

Tests and benchmarks compare the kernels with these. Speed does not matter here, and every matrix is dense.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float64 = NDArray[np.float64]


def normalized_graph(indices: ArrayLike, weights: ArrayLike) -> Float64:
    """Return the dense D^-1/2 (B + B^T) D^-1/2 of a kNN graph, isolated points as zero rows.

    Args:
      indices: int [n, k], the neighbors of each point, -1 where there is none.
      weights: float [n, k], their weights; one that is not positive is no edge.

    Returns:
      float64 [n, n], symmetric.
    """
    indices, weights = np.asarray(indices), np.asarray(weights, np.float64)
    n = len(indices)
    b = np.zeros((n, n))
    for point in range(n):
        for neighbor, weight in zip(indices[point], weights[point], strict=True):
            if neighbor >= 0 and weight > 0:
                b[point, neighbor] += weight
    w = b + b.T
    degree = w.sum(axis=1)
    scale = np.zeros(n)
    scale[degree > 0] = degree[degree > 0] ** -0.5
    return scale[:, None] * w * scale[None, :]


def propagate(w: ArrayLike, y: ArrayLike, alpha: float) -> Float64:
    """Return (I - alpha W)^-1 Y by a dense float64 solve: w [n, n], y [n, C] -> [n, C]."""
    w = np.asarray(w, np.float64)
    z = np.linalg.solve(np.eye(len(w)) - alpha * w, np.asarray(y, np.float64))
    return z.astype(np.float64)


def project_bits(vectors: ArrayLike, planes: ArrayLike) -> NDArray[np.uint32]:
    """Return the packed signs of all projections: vectors [n, d], planes [L, d] -> [n, L / 32].

    Bit l, 1 where <v, u_l> >= 0, is bit l % 32 (least significant first) of word l // 32.
    """
    products = np.asarray(vectors, np.float64) @ np.asarray(planes, np.float64).T
    words = np.zeros((products.shape[0], products.shape[1] // 32), np.uint32)
    for bit in range(products.shape[1]):
        words[:, bit // 32] |= (products[:, bit] >= 0).astype(np.uint32) << np.uint32(bit % 32)
    return words


def hamming_distances(a: ArrayLike, b: ArrayLike) -> NDArray[np.int64]:
    """Return the number of differing bits of all pairs: uint32 [n, W], [m, W] -> [n, m]."""
    a, b = np.asarray(a, np.uint32), np.asarray(b, np.uint32)
    rows = [np.bitwise_count(x ^ b).sum(axis=1, dtype=np.int64) for x in a]
    return np.array(rows, np.int64).reshape(len(a), len(b))


def hamming_knn(
    bits: ArrayLike, num_neighbors: int, valid: ArrayLike | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (indices, distances) [n, k], sorted by (distance, index), without the point itself.

    Where fewer than k other valid points exist, and for an invalid point: index -1, distance L + 1.
    """
    bits = np.asarray(bits, np.uint32)
    return _nearest(hamming_distances(bits, bits), num_neighbors, valid, bits.shape[1] * 32 + 1)


def cosine_knn(
    vectors: ArrayLike, num_neighbors: int, valid: ArrayLike | None = None
) -> tuple[NDArray[np.int64], Float64]:
    """Return (indices, cosines) [n, k], most similar first, otherwise as `hamming_knn`.

    A zero vector has cosine 0 with every other. Missing neighbors: index -1, similarity -2.
    """
    vectors = np.asarray(vectors, np.float64)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    indices, negated = _nearest(-unit @ unit.T, num_neighbors, valid, 2.0)
    return indices, -negated


def _nearest(
    distances: NDArray, num_neighbors: int, valid: ArrayLike | None, missing: float
) -> tuple[NDArray[np.int64], NDArray]:
    n = len(distances)
    valid = np.ones(n, bool) if valid is None else np.asarray(valid, bool)
    indices = np.full((n, num_neighbors), -1, np.int64)
    values = np.full((n, num_neighbors), missing, distances.dtype)
    for point in np.flatnonzero(valid):
        others = np.setdiff1d(np.flatnonzero(valid), point)
        in_order = np.argsort(distances[point, others], kind="stable")  # equal ones by their index
        nearest = others[in_order[:num_neighbors]]
        indices[point, : len(nearest)] = nearest
        values[point, : len(nearest)] = distances[point, nearest]
    return indices, values
