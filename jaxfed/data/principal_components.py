"""Principal components of examples.

    C = 1/n sum_i (x_i - m) (x_i - m)^T = U diag(l) U^T,   l_1 >= l_2 >= ..,   z = (x - m) U[:, :k]

m is the mean. Both m and C are sums over examples, [d] and [d, d], which clients could add without showing
theirs; a simulation counts no bytes for them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Projection(NamedTuple):
    """Projection z = (x - mean) directions: float32 mean [d] and directions [d, k], columns orthonormal."""

    mean: np.ndarray
    directions: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return float32 [n, k] of x [n, d], NumPy's or JAX's."""
        return (x - self.mean[None]) @ self.directions


def principal_components(x: np.ndarray, number: int) -> Projection:
    """Return the projection onto the directions in which x [n, d] varies most, the largest variance first.

    Of the two signs of a direction the one is taken in which its largest entry is positive. Computed in
    float64: n d^2 multiplications and an eigendecomposition.
    """
    mean = x.mean(axis=0, dtype=np.float64)
    centered = x - mean
    _, vectors = np.linalg.eigh(centered.T @ centered)
    directions = vectors[:, ::-1][:, :number]
    largest = np.take_along_axis(directions, np.abs(directions).argmax(axis=0)[None], axis=0)
    directions = directions * np.sign(largest)
    return Projection(mean.astype(np.float32), directions.astype(np.float32))
