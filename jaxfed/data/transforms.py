"""Transforms of features that training rows determine: standardization and principal components.

    scale = standardization(x_train)
    x = scale(x_train, x_test)          # float32, one after the other

Besides x and its result a block of rows is in memory, whether x lies there or in a file.

    C = 1/n sum_i (x_i - m) (x_i - m)^T = U diag(l) U^T,   l_1 >= l_2 >= ..,   z = (x - m) U[:, :k]

m is the mean. Both m and C are sums over examples, [d] and [d, d], which clients could add without showing
theirs; a simulation counts no bytes for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jaxfed.data.mapped_rows import parts


class Standardization(NamedTuple):
    """The transform x' = (x - mean) scale, computed in float64, returned as float32."""

    mean: np.ndarray
    scale: np.ndarray

    def __call__(self, *arrays: np.ndarray) -> np.ndarray:
        """Transform arrays of examples [n_i, ...]; return all of them in one array."""
        scaled = np.empty((sum(map(len, arrays)), *arrays[0].shape[1:]), np.float32)
        done = 0
        for x in arrays:
            for part in parts(x):
                scaled[done : done + len(part)] = (part - self.mean) * self.scale
                done += len(part)
        return scaled


def standardization(x: np.ndarray, rows: np.ndarray | slice = slice(None)) -> Standardization:
    """Return the transform that scales every feature to mean 0 and variance 1 over some examples.

    x'_ij = (x_ij - mean_j) / deviation_j, in float32; a constant feature becomes 0. Other
    examples are transformed by the same mean and deviation. Without it, the feature of the largest unit
    (an area, not a radius) would dominate every cosine and distance.

    `rows` [n] of x are measured, by default all.
    """
    is_measured = np.zeros(len(x), bool)
    is_measured[rows] = True
    number = np.count_nonzero(is_measured)

    def mean_of(value: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """The mean over these rows, summed in float64 and in their order, so that blocks do not change it."""
        total, start = np.zeros(x.shape[1:]), 0
        for part in parts(x):
            measured = part[is_measured[start : start + len(part)]].astype(np.float64)
            total = np.concatenate([total[None], value(measured)]).sum(axis=0)
            start += len(part)
        return total / number

    mean = mean_of(lambda part: part)
    deviation = np.sqrt(mean_of(lambda part: (part - mean) ** 2))
    # A constant column may have a deviation of rounding errors only.
    constant = deviation <= 1e-12 * np.abs(mean)
    return Standardization(mean, np.where(constant, 0.0, 1.0 / np.where(constant, 1.0, deviation)))


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
