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


class NearestOthers:
    """The k nearest others of every point of the clients that stay, without the point itself.

    Memory: 8 k bytes for each pair of a point and a client.
    """

    def __init__(self, sizes: Mapping[int, int], num_bits: int, num_neighbors: int) -> None:
        self._sizes = dict(sorted(sizes.items()))
        self._num_bits, self._num_neighbors = num_bits, num_neighbors
        # By client, by other: distance 2^32 + number of other's point, int64 [n_client, k at most].
        self._nearest: dict[int, dict[int, np.ndarray]] = {client: {} for client in self._sizes}

    @property
    def clients(self) -> list[int]:
        """Addresses of the clients that take part."""
        return list(self._sizes)

    def add(self, block: Block) -> None:
        """Add a block of distances of two clients, or of one client, without blocks below its diagonal.

        Cost: 8 ns a pair of points.
        """
        first, second, rows, columns, distances = block
        is_diagonal = (first, rows) == (second, columns)
        self._take((first, second), rows, columns, distances, are_same=is_diagonal)
        if not is_diagonal:
            self._take((second, first), columns, rows, distances.T)

    def remove(self, client: int) -> None:
        """Forget a client that dropped out."""
        del self._sizes[client], self._nearest[client]
        for others in self._nearest.values():
            others.pop(client, None)

    def found(self) -> tuple[np.ndarray, np.ndarray]:
        """The nearest others of each point, in the format of `jaxfed.kernels.knn.hamming_knn`.

        Returns:
            (indices, distances), int32 [n, k], sorted by (distance, index); index -1 and distance L + 1
            where fewer than k exist. Points are numbered consecutively, in the order of the addresses of
            the clients that take part.
        """
        ends = np.cumsum(list(self._sizes.values()), dtype=np.int64).tolist()
        points = {
            j: slice(end - self._sizes[j], end) for j, end in zip(self._sizes, ends, strict=True)
        }
        shape = sum(self._sizes.values()), self._num_neighbors
        indices, distances = (
            np.full(shape, -1, np.int32),
            np.full(shape, self._num_bits + 1, np.int32),
        )
        for client, rows in points.items():
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
            nearest[other] = np.full((self._sizes[client], count), _NOTHING)
        known = nearest[other][points.start : points.stop]
        keys = (distances.astype(np.int64) << _INDEX_BITS) + np.asarray(others)
        if are_same:
            np.fill_diagonal(keys, _NOTHING)  # the point itself
        candidates = np.concatenate([known, keys], axis=1)
        known[:] = np.partition(candidates, count - 1, axis=1)[:, :count]
