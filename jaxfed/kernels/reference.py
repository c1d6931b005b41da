"""What the kernels compute, in NumPy and float64: slow, obvious, and independent of JAX.

Tests and benchmarks compare the kernels with these. Nothing here is meant to be fast, and
everything that can be a dense matrix is one.
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
    return np.linalg.solve(np.eye(len(w)) - alpha * w, np.asarray(y, np.float64))
