"""Statistics for normalization: mean and deviation of each entry of the last axis, by sums in one pass."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from jaxfed.data.mapped_rows import gathered


class FeatureSums(NamedTuple):
    """Sums over examples and all axes but the last; what one client needs to send of its own.

    Fields:
        total: float64 [c], the sums.
        square: float64 [c], the sums of squares.
        values: number of values that each is a sum of.
    """

    total: np.ndarray
    square: np.ndarray
    values: int


def feature_sums(x: np.ndarray, rows: np.ndarray) -> FeatureSums:
    """Sum each entry of the last axis over these rows, int [m], of x [n, ..., c], numbers or bytes.

    Cost: m examples are copied, a few at a time. Bytes take some 0.5 ns each: they are summed as integers,
    over examples first, along contiguous memory (float64 sums entry by entry would take ten times as long).
    Their sums are exact in any order.
    """
    total, square = (_sums_of_bytes if x.dtype == np.uint8 else _sums)(x, rows)
    return FeatureSums(total, square, len(rows) * math.prod(x.shape[1:-1]))


def added(parts: Iterable[FeatureSums]) -> FeatureSums:
    """Add the sums of several parties."""
    total, square, number = zip(*parts, strict=True)
    return FeatureSums(np.sum(total, axis=0), np.sum(square, axis=0), sum(number))


def mean_and_deviation(sums: FeatureSums, *, of_bytes: bool) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each entry of the last axis, two float32 [c].

    Bytes are read as [0, 1]. Constant entries get deviation 1: those whose deviation is at most a millionth
    of their root mean square. Rounding alone makes 1e-8 of it.
    """
    count = max(1, sums.values)
    mean, square = sums.total / count, sums.square / count
    deviation = np.sqrt(np.maximum(square - np.square(mean), 0))
    unit = 255 if of_bytes else 1
    least = np.maximum(1e-6 * np.sqrt(square), np.finfo(np.float32).tiny)
    deviation = np.where(deviation > least, deviation, unit)
    return (mean / unit).astype(np.float32), (deviation / unit).astype(np.float32)


def _sums(x: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sum and the sum of squares, float64 [c]."""
    total, square = np.zeros(x.shape[-1]), np.zeros(x.shape[-1])
    axes = tuple(range(x.ndim - 1))
    for part in gathered(x, _parts(rows, 4096)):
        values = part.astype(np.float64)
        total += values.sum(axis=axes)
        square += np.square(values).sum(axis=axes)
    return total, square


def _sums_of_bytes(x: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    per_example = math.prod(x.shape[1:])
    total, square = np.zeros(per_example, np.uint64), np.zeros(per_example, np.uint64)
    for part in gathered(x, _parts(rows, 256)):  # small enough for the caches
        values = part.reshape(len(part), per_example)
        total += values.sum(axis=0, dtype=np.uint64)
        square += np.square(values, dtype=np.uint16).sum(axis=0, dtype=np.uint64)
    by_entry = -1, x.shape[-1]
    return (
        total.reshape(by_entry).sum(axis=0).astype(np.float64),
        square.reshape(by_entry).sum(axis=0).astype(np.float64),
    )


def _parts(rows: np.ndarray, size: int) -> list[np.ndarray]:
    """Split rows into parts of about `size` each."""
    return np.array_split(rows, max(1, len(rows) // size))
