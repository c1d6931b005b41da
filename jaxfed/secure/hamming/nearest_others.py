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


class Nearest:
    """The k nearest points of the clients that stay, of points that these clients ask for.

    Args:
        asking: number of points of every client that ask, by address.
        sizes: number of points of the same clients that are asked for.
        num_bits: L.
        num_neighbors: k.

    Memory: 8 k bytes a point that asks and client.
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
        # By (client, other): distance 2^32 + number of other's point, int64 [n_client, k at most].
        self._nearest: dict[tuple[int, int], np.ndarray] = {}

    @property
    def clients(self) -> list[int]:
        """Who is in it."""
        return list(self._sizes)

    def add(self, block: Block) -> None:
        """Take a block of distances from points of `first`, which ask, to points of `second`.

        Cost: half of what `NearestOthers.add` takes.
        """
        self._take((block.first, block.second), block.rows, block.columns, block.distances)

    def remove(self, client: int) -> None:
        """Forget a client that dropped out."""
        del self._asking[client], self._sizes[client]
        self._nearest = {pair: kept for pair, kept in self._nearest.items() if client not in pair}

    def found(self) -> tuple[np.ndarray, np.ndarray]:
        """The nearest of each point that asks, as `jaxfed.kernels.knn.hamming_knn_among` gives them.

        Returns:
            (indices, distances), int32 [m, k], sorted by (distance, index); index -1 and distance L + 1
            where fewer than k exist. Both the points that ask and the others are numbered through, in the
            order of the addresses of the clients that are in it.
        """
        askers, points = (_rows_of(sizes) for sizes in (self._asking, self._sizes))
        shape = sum(self._asking.values()), self._num_neighbors
        indices, distances = (
            np.full(shape, -1, np.int32),
            np.full(shape, self._num_bits + 1, np.int32),
        )
        for client, rows in askers.items():
            parts = [
                self._nearest[client, other] + own.start
                for other, own in points.items()
                if (client, other) in self._nearest
            ]
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
        """Distances of some points of the pair's first client to some of its second's."""
        client, other = pair
        count = min(self._num_neighbors, self._sizes[other])
        if not count:
            return
        if pair not in self._nearest:
            self._nearest[pair] = np.full((self._asking[client], count), _NOTHING)
        known = self._nearest[pair][points.start : points.stop]
        keys = (distances.astype(np.int64) << _INDEX_BITS) + np.asarray(others)
        if are_same:
            np.fill_diagonal(keys, _NOTHING)  # the point itself
        candidates = np.concatenate([known, keys], axis=1)
        known[:] = np.partition(candidates, count - 1, axis=1)[:, :count]


class NearestOthers(Nearest):
    """The k nearest others of every point of the clients that stay: `found` leaves the point itself out.

    Args:
        sizes: number of points of every client, by address.
        num_bits: L.
        num_neighbors: k.
    """

    def __init__(self, sizes: Mapping[int, int], num_bits: int, num_neighbors: int) -> None:
        super().__init__(sizes, sizes, num_bits, num_neighbors)

    def add(self, block: Block) -> None:
        """Take a block of distances of two clients, or of one, whose blocks below the diagonal are left
        out.

        Cost: 8 ns a pair of points.
        """
        first, second, rows, columns, distances = block
        is_diagonal = (first, rows) == (second, columns)
        self._take((first, second), rows, columns, distances, are_same=is_diagonal)
        if not is_diagonal:
            self._take((second, first), columns, rows, distances.T)


def _rows_of(sizes: Mapping[int, int]) -> dict[int, slice]:
    """Where each client's points are when all are numbered through."""
    ends = np.cumsum(list(sizes.values()), dtype=np.int64).tolist()
    return {j: slice(end - sizes[j], end) for j, end in zip(sizes, ends, strict=True)}
