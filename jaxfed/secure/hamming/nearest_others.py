"""Each point's nearest others from blocks of H, without storing H.

Stored are every point's k nearest among each other client's points, and among those of its own client. The
final set of clients is not known in advance: a client that drops out is removed with its distances, as if it
had never taken part.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jaxfed.secure.primitives.blocks import Block

_INDEX_BITS = 32
_NOTHING = np.int64(1) << 62  # marks a missing neighbor: above every distance and index


class NearestPoints:
    """The k nearest points to each query point, over the clients that stay.

    Args:
        asking: number of query points of every client, by address.
        sizes: number of points of the same clients that are searched.
        num_bits: L.
        num_neighbors: k.

    Memory: 8 k bytes for each pair of a query point and a client.
    """

    def __init__(
        self,
        asking: Mapping[int, int],
        sizes: Mapping[int, int],
        num_bits: int,
        num_neighbors: int,
    ) -> None:
        self._asking, self._sizes = dict(sorted(asking.items())), dict(sorted(sizes.items()))
        self._num_bits, self._num_neighbors = num_bits, num_neighbors
        # By client, by other: distance 2^32 + number of other's point, int64 [n_client, k at most].
        self._nearest: dict[int, dict[int, np.ndarray]] = {client: {} for client in self._asking}

    @property
    def clients(self) -> list[int]:
        """Addresses of the clients that take part."""
        return list(self._sizes)

    def add(self, block: Block) -> None:
        """Add a block of distances from query points of `first` to points of `second`.

        Cost: half of that of `NearestOthers.add`.
        """
        self._take((block.first, block.second), block.rows, block.columns, block.distances)

    def remove(self, client: int) -> None:
        """Forget a client that dropped out."""
        del self._asking[client], self._sizes[client], self._nearest[client]
        for others in self._nearest.values():
            others.pop(client, None)

    def found(self) -> tuple[np.ndarray, np.ndarray]:
        """The nearest points to each query point, in the format of `jaxfed.kernels.knn.hamming_knn_among`.

        Returns:
            (indices, distances), int32 [m, k], sorted by (distance, index); index -1 and distance L + 1
            where fewer than k exist. Query points and searched points are each numbered consecutively, in
            the order of the addresses of the clients that take part.
        """
        askers, points = (_rows_of(sizes) for sizes in (self._asking, self._sizes))
        shape = sum(self._asking.values()), self._num_neighbors
        indices, distances = (
            np.full(shape, -1, np.int32),
            np.full(shape, self._num_bits + 1, np.int32),
        )
        for client, rows in askers.items():
            parts = [kept + points[other].start for other, kept in self._nearest[client].items()]
            if not parts:
                continue
            keys = np.sort(np.concatenate(parts, axis=1), axis=1)[:, : self._num_neighbors]
            filled = keys < _NOTHING
            columns = slice(keys.shape[1])
            indices[rows, columns][filled] = keys[filled] & (1 << _INDEX_BITS) - 1
            distances[rows, columns][filled] = keys[filled] >> _INDEX_BITS
        return indices, distances

    def _take(
        self,
        pair: tuple[int, int],
        points: range,
        others: range,
        distances: np.ndarray,
        *,
        are_same: bool = False,
    ) -> None:
        """Merge distances of some points of the pair's first client to some of its second client's."""
        client, other = pair
        count = min(self._num_neighbors, self._sizes[other])
        if not count:
            return
        nearest = self._nearest[client]
        if other not in nearest:
            nearest[other] = np.full((self._asking[client], count), _NOTHING)
        known = nearest[other][points.start : points.stop]
        keys = (distances.astype(np.int64) << _INDEX_BITS) + np.asarray(others)
        if are_same:
            np.fill_diagonal(keys, _NOTHING)  # the point itself
        candidates = np.concatenate([known, keys], axis=1)
        known[:] = np.partition(candidates, count - 1, axis=1)[:, :count]


class NearestOthers(NearestPoints):
    """The k nearest others of every point of the clients that stay, without the point itself.

    Args:
        sizes: number of points of every client, by address.
        num_bits: L.
        num_neighbors: k.
    """

    def __init__(self, sizes: Mapping[int, int], num_bits: int, num_neighbors: int) -> None:
        super().__init__(sizes, sizes, num_bits, num_neighbors)

    def add(self, block: Block) -> None:
        """Add a block of distances of two clients, or of one client, without blocks below its diagonal.

        Cost: 8 ns a pair of points.
        """
        first, second, rows, columns, distances = block
        is_diagonal = (first, rows) == (second, columns)
        self._take((first, second), rows, columns, distances, are_same=is_diagonal)
        if not is_diagonal:
            self._take((second, first), columns, rows, distances.T)


def _rows_of(sizes: Mapping[int, int]) -> dict[int, slice]:
    """Slices of each client's points in a consecutive numbering."""
    ends = np.cumsum(list(sizes.values()), dtype=np.int64).tolist()
    return {j: slice(end - sizes[j], end) for j, end in zip(sizes, ends, strict=True)}
