"""The server's matrix H out of pairwise protocols: who stays, and each point's nearest others.

    own     client -> server   its points' distances among themselves, the upper triangle, packed

The paper leaves within-client distances open: a client computes its own and sends them. Between
clients every pair runs its protocol for itself, so a client that drops out (XCLP, Section 3.3) costs
its own rows and columns and nobody else's: before or during this step, the outcome is that of a cohort
without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import jax.numpy as jnp
import numpy as np

from jaxfed.kernels import hamming
from jaxfed.secure.blocks import Block, checked_distances, ranges
from jaxfed.secure.endpoint import SERVER, DroppedOut, Endpoint
from jaxfed.secure.ring import pack, packed_size, ring_bits, unpack

_ROWS = 256  # of H searched at a time

Progress = Callable[[int, int], None]  # (pairs of points done, of how many)


class DistanceMatrix:
    """H of the clients that stay, in their addresses' order.

    Args:
        sizes: number of points of every client, by address.
        num_bits: L.

    Memory: 2 n^2 bytes.
    """

    def __init__(self, sizes: Mapping[int, int], num_bits: int) -> None:
        self._num_bits = num_bits
        self._rows: dict[int, slice] = {}
        position = 0
        for client, size in sorted(sizes.items()):
            self._rows[client] = slice(position, position + size)
            position += size
        self._h = np.zeros((position, position), np.uint16)

    @property
    def clients(self) -> list[int]:
        """Who is in it."""
        return list(self._rows)

    @property
    def distances(self) -> np.ndarray:
        """H, uint16 [n, n], of the clients that are in it."""
        kept = self._kept()
        return self._h[np.ix_(kept, kept)]

    def add(self, block: Block) -> None:
        """Take a block of distances between two clients."""
        rows = _part(self._rows[block.first], block.rows)
        columns = _part(self._rows[block.second], block.columns)
        self._h[rows, columns] = block.distances
        self._h[columns, rows] = block.distances.T

    def add_own(self, client: int, distances: np.ndarray) -> None:
        """Take one client's distances among its own points, [n_j, n_j]."""
        self._h[self._rows[client], self._rows[client]] = distances

    def remove(self, client: int) -> None:
        """Forget a client that dropped out."""
        del self._rows[client]

    def nearest(self, num_neighbors: int) -> tuple[np.ndarray, np.ndarray]:
        """Each point's nearest others, as `jaxfed.kernels.knn.hamming_knn` gives them.

        Returns:
            (indices, distances), int32 [n, k], sorted by (distance, index), the point itself left out;
            index -1 and distance L + 1 where fewer than k others exist.

        Cost: O(n) a point.
        """
        h = self.distances
        n = len(h)
        indices = np.full((n, num_neighbors), -1, np.int32)
        found = np.full((n, num_neighbors), self._num_bits + 1, np.int32)
        k = min(num_neighbors, n - 1)
        if k < 1:
            return indices, found
        for rows in ranges(n, _ROWS):
            keys = h[rows.start : rows.stop].astype(np.int64) * n + np.arange(n)
            keys[np.arange(len(rows)), np.asarray(rows)] = np.iinfo(np.int64).max  # itself
            smallest = np.sort(np.partition(keys, k - 1, axis=1)[:, :k], axis=1)
            found[rows.start : rows.stop, :k], indices[rows.start : rows.stop, :k] = divmod(
                smallest, n
            )
        return indices, found

    def _kept(self) -> np.ndarray:
        kept = [np.arange(rows.start, rows.stop) for rows in self._rows.values()]
        return np.concatenate(kept) if kept else np.zeros(0, np.int64)


def send_own(endpoint: Endpoint, codes: np.ndarray) -> None:
    """A client sends the distances among its own points, codes uint32 [n_j, L / 32]."""
    points = jnp.asarray(codes)
    upper = np.triu_indices(len(codes), 1)
    own = np.asarray(hamming.distances(points, points))[upper].astype(np.uint16)
    endpoint.send(SERVER, "own", pack(own, ring_bits(32 * codes.shape[1])))


def receive_own(endpoint: Endpoint, client: int, num_points: int, num_bits: int) -> np.ndarray:
    """The server takes a client's own distances, uint16 [n_j, n_j].

    Raises:
        ProtocolError: a message of another length, or a distance above L.
    """
    count = num_points * (num_points - 1) // 2
    own = unpack(endpoint.receive(client, "own"), count, ring_bits(num_bits))
    distances = np.zeros((num_points, num_points), np.uint16)
    distances[np.triu_indices(num_points, 1)] = checked_distances(own, num_bits)
    return distances + distances.T


def own_bytes(num_points: int, num_bits: int) -> int:
    """Payload bytes of one client's `own`."""
    return packed_size(num_points * (num_points - 1) // 2, ring_bits(num_bits))


def collect(
    sizes: Mapping[int, int],
    num_bits: int,
    own: Callable[[int], np.ndarray],
    pair: Callable[[int, int], Iterator[Block]],
    *,
    progress: Progress | None = None,
) -> DistanceMatrix:
    """Run everybody's own step and every pair's protocol; drop who drops out.

    Args:
        sizes: number of points of every client, by address.
        num_bits: L.
        own: the step of one client with the server; its own distances.
        pair: the protocol of a pair of clients, the lower address first.
        progress: told after every block how many pairs of points are done.

    Returns:
        H of the clients that stayed.

    Raises:
        ProtocolError: a message that does not belong where it arrives; there is no H then.
    """
    matrix = DistanceMatrix(sizes, num_bits)
    total, done = _cross_pairs(sizes), 0
    for client in sorted(sizes):
        try:
            matrix.add_own(client, own(client))
        except DroppedOut as dropout:
            matrix.remove(dropout.client)
    for first in sorted(sizes):
        for second in sorted(sizes):
            if second <= first or not {first, second} <= set(matrix.clients):
                continue
            try:
                for block in pair(first, second):
                    matrix.add(block)
                    done += block.distances.size
                    if progress:
                        progress(done, total)
            except DroppedOut as dropout:
                matrix.remove(dropout.client)
    return matrix


def _cross_pairs(sizes: Mapping[int, int]) -> int:
    total = sum(sizes.values())
    return (total**2 - sum(size**2 for size in sizes.values())) // 2


def _part(rows: slice, block: range) -> slice:
    return slice(rows.start + block.start, rows.start + block.stop)
