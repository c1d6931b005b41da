"""Numbers about all clients' examples that one side of a network knows.

    census = census_of([counts_of(x, labels) for x, labels in clients])
    Federation(x, y, partition, num_classes, census=census)  # own examples, and numbers about everybody's

Batch sizes, sampling, padded shapes and the normalization of inputs depend on these numbers. On a network
each client sends `ClientCounts` to the server before the first round, and receives the `Census` of all.

The sums of a single example are that example, and two sums before and after one example was added differ by
it. A client therefore sends sums of enough examples only, and only if a method normalizes inputs by them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from jaxfed.data.mapped_rows import gathered


class FeatureSums(NamedTuple):
    """Sums and sums of squares over examples and all axes but the last, float64 [c], of `values` each."""

    total: np.ndarray
    square: np.ndarray
    values: int


class ClientCounts(NamedTuple):
    """Numbers of one client's examples and labels, and `sums` if the method needs them; they leave it."""

    examples: int
    labels: int
    sums: FeatureSums | None


class Census(NamedTuple):
    """Numbers about all clients' examples.

    Fields:
        capacity: the size of the largest client.
        max_labels: the largest number of labels of a client.
        sums: of each feature, over all clients; None if a client has sent none.
        labels: the number of labels of each client, which the server alone knows; () at a client.
        examples: the number of all examples of each client, likewise.
    """

    capacity: int
    max_labels: int
    sums: FeatureSums | None
    labels: tuple[int, ...] = ()
    examples: tuple[int, ...] = ()

    def shared(self) -> Census:
        """Return the part that clients receive, without counts of single clients."""
        return self._replace(labels=(), examples=())


def counts_of(x: np.ndarray, labels: np.ndarray, *, sums: bool = True) -> ClientCounts:
    """Count a client's examples [n, ...] and the labels that it has, int [m]; `sums`: sum its features."""
    return ClientCounts(len(x), len(labels), feature_sums(x, np.arange(len(x))) if sums else None)


def census_of(clients: Sequence[ClientCounts]) -> Census:
    """Join the counts of all clients, in the order of their numbers."""
    examples, labels, sums = zip(*clients, strict=True)
    known = [each for each in sums if each is not None]
    total = added(known) if len(known) == len(clients) else None
    return Census(max(examples), max(labels), total, labels, examples)


def feature_sums(x: np.ndarray, rows: np.ndarray) -> FeatureSums:
    """Sum each entry of the last axis over these rows, int [m], of x [n, ..., c], numbers or bytes.

    Examples are copied a few at a time. Bytes take some 0.5 ns each: they are summed as integers, over
    examples first, along contiguous memory (float64 sums entry by entry would take ten times as long).
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
    total, square = np.zeros(x.shape[-1]), np.zeros(x.shape[-1])
    axes = tuple(range(x.ndim - 1))
    for part in np.array_split(rows, max(1, len(rows) // 4096)):
        values = gathered(x, part).astype(np.float64)
        total += values.sum(axis=axes)
        square += np.square(values).sum(axis=axes)
    return total, square


def _sums_of_bytes(x: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    per_example = math.prod(x.shape[1:])
    sums = np.zeros((2, per_example), np.uint64)
    for part in np.array_split(rows, max(1, len(rows) // 256)):  # fits the caches
        values = gathered(x, part).reshape(len(part), per_example)
        sums[0] += values.sum(axis=0, dtype=np.uint64)
        sums[1] += np.square(values, dtype=np.uint16).sum(axis=0, dtype=np.uint64)
    total, square = sums.reshape(2, -1, x.shape[-1]).sum(axis=1).astype(np.float64)
    return total, square
