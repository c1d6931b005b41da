"""Each point's nearest others out of blocks of H, which as a whole never exists.

Kept are every point's k nearest among each other client's points and among its own client's. A client
that drops out leaves with what it contributed, as if it had never been there: who takes part in the
end is not known before.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jaxfed.secure.primitives.blocks import Block

_INDEX_BITS = 32
_NOTHING = np.int64(1) << 62  # where there is no neighbor: above every distance and index


class NearestOthers:
    """The k nearest others of every point of the clients that stay.

    Args:
        sizes: number of points of every client, by address.
        num_bits: L.
        num_neighbors: k.

    Memory: 8 k bytes a point and client.
    """

    def __init__(self, sizes: Mapping[int, int], num_bits: int, num_neighbors: int) -> None:
        self._sizes = dict(sorted(sizes.items()))
        self._num_bits, self._num_neighbors = num_bits, num_neighbors
        # By (client, other): distance 2^32 + number of other's point, int64 [n_client, k at most].
        self._nearest: dict[tuple[int, int], np.ndarray] = {}

    @property
    def clients(self) -> list[int]:
        """Who is in it."""
        return list(self._sizes)

    def add(self, block: Block) -> None:
        """Take a block of distances of two clients, or of one, whose blocks below the diagonal are left
        out.

        Cost: 8 ns a pair of points.
        """
        self._take((block.first, block.second), block.rows, block.columns, block.distances)
        if (block.first, block.rows) != (block.second, block.columns):
            self._take((block.second, block.first), block.columns, block.rows, block.distances.T)

    def remove(self, client: int) -> None:
        """Forget a client that dropped out."""
        del self._sizes[client]
        self._nearest = {pair: kept for pair, kept in self._nearest.items() if client not in pair}

    def found(self) -> tuple[np.ndarray, np.ndarray]:
        """Each point's nearest others, as `jaxfed.kernels.knn.hamming_knn` gives them.

        Returns:
            (indices, distances), int32 [n, k], sorted by (distance, index), the point itself left out;
            index -1 and distance L + 1 where fewer than k others exist. Points are numbered through,
            in the order of the addresses of the clients that are in it.
        """
        sizes = list(self._sizes.values())
        ends = np.cumsum(sizes)
        starts = dict(zip(self._sizes, ends - sizes, strict=True))
        shape = sum(sizes), self._num_neighbors
        indices, distances = (
            np.full(shape, -1, np.int32),
            np.full(shape, self._num_bits + 1, np.int32),
        )
        for client, size in self._sizes.items():
            parts = [
                self._nearest[client, other] + starts[other]
                for other in self._sizes
                if (client, other) in self._nearest
            ]
            if not parts:
                continue
            keys = np.sort(np.concatenate(parts, axis=1), axis=1)[:, : self._num_neighbors]
            filled = keys < _NOTHING
            rows = slice(starts[client], starts[client] + size)
            columns = slice(keys.shape[1])
            indices[rows, columns][filled] = keys[filled] & (1 << _INDEX_BITS) - 1
            distances[rows, columns][filled] = keys[filled] >> _INDEX_BITS
        return indices, distances

    def _take(
        self, pair: tuple[int, int], points: range, others: range, distances: np.ndarray
    ) -> None:
        """Distances of some points of the pair's first client to some of its second's."""
        client, other = pair
        count = min(self._num_neighbors, self._sizes[other])
        if not count:
            return
        if pair not in self._nearest:
            self._nearest[pair] = np.full((self._sizes[client], count), _NOTHING)
        known = self._nearest[pair][points.start : points.stop]
        keys = (distances.astype(np.int64) << _INDEX_BITS) + np.asarray(others)
        if client == other and points == others:
            np.fill_diagonal(keys, _NOTHING)  # the point itself
        candidates = np.concatenate([known, keys], axis=1)
        known[:] = np.partition(candidates, count - 1, axis=1)[:, :count]
