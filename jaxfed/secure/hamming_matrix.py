"""The server's matrix H out of pairwise protocols, block by block, and who stays.

    own     client -> server   its points' distances among themselves, the upper triangle, packed

The paper leaves within-client distances open: a client computes its own and sends them. Between
clients every pair runs its protocol for itself, so a client that drops out (XCLP, Section 3.3) costs
its own rows and columns and nobody else's: before or during this step, the outcome is that of a cohort
without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import jax.numpy as jnp
import numpy as np

from jaxfed.kernels import hamming
from jaxfed.secure.blocks import Block, checked_distances
from jaxfed.secure.endpoint import SERVER, DroppedOut, Endpoint
from jaxfed.secure.ring import pack, packed_size, ring_bits, unpack

Progress = Callable[[int, int], None]  # (pairs of points done, of how many)


class Collection(Protocol):
    """What becomes of H: distances as they come, and who is in it."""

    @property
    def clients(self) -> list[int]:
        """Who is in it."""

    def add(self, block: Block) -> None:
        """Take a block of distances between two clients."""

    def add_own(self, client: int, distances: np.ndarray) -> None:
        """Take one client's distances among its own points, [n_j, n_j]."""

    def remove(self, client: int) -> None:
        """Forget a client that dropped out."""


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
    collection: Collection,
    sizes: Mapping[int, int],
    own: Callable[[int], np.ndarray],
    pair: Callable[[int, int], Iterator[Block]],
    *,
    progress: Progress | None = None,
) -> None:
    """Run everybody's own step and every pair's protocol; drop who drops out.

    Args:
        collection: gets all distances; who drops out is removed from it.
        sizes: number of points of every client, by address.
        own: the step of one client with the server; its own distances.
        pair: the protocol of a pair of clients, the lower address first.
        progress: told after every block how many pairs of points are done.

    Raises:
        ProtocolError: a message that does not belong where it arrives; there is no H then.
    """
    total, done = _cross_pairs(sizes), 0
    for client in sorted(sizes):
        try:
            collection.add_own(client, own(client))
        except DroppedOut as dropout:
            collection.remove(dropout.client)
    for first in sorted(sizes):
        for second in sorted(sizes):
            if second <= first or not {first, second} <= set(collection.clients):
                continue
            try:
                for block in pair(first, second):
                    collection.add(block)
                    done += block.distances.size
                    if progress:
                        progress(done, total)
            except DroppedOut as dropout:
                collection.remove(dropout.client)


def _cross_pairs(sizes: Mapping[int, int]) -> int:
    total = sum(sizes.values())
    return (total**2 - sum(size**2 for size in sizes.values())) // 2
