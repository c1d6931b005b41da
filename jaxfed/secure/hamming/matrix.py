"""The server's matrix H from pairwise protocols, block by block, with dropouts.

    own     client -> server   its points' distances among themselves, the upper triangle,
                               up to 512 x 512 at a time, packed

The paper does not specify within-client distances: here a client computes its own and sends them. Every pair
of clients runs its own protocol, so a client that drops out (XCLP, Section 3.3) costs only its own rows and
columns. If it leaves before or during this step, the result is that of a cohort without it.

H is not stored: `NearestOthers` takes its blocks and stores every point's k nearest among each other client's
points, and among those of its own client. The final set of clients is not known in advance: a client that
drops out is removed with its distances, as if it had never taken part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from absl import logging

from jaxfed.errors import DroppedOut, ProtocolError
from jaxfed.kernels import hamming
from jaxfed.secure.hamming.pair import Block, SharesDisagree, checked_distances, ranges
from jaxfed.secure.primitives.ring import pack, ring_bits, unpack
from jaxfed.secure.session.channel import Presence
from jaxfed.secure.session.endpoint import SERVER, Endpoint
from jaxfed.secure.session.key_agreement import RandomBytes

BLOCK_POINTS = 512

Pair = tuple[int, int]  # two clients
PairsDone = Callable[[int, int], None]  # (pairs of points done, of how many)


class OwnDistances:
    """A client that sends the distances among its own points."""

    def __init__(
        self, endpoint: Endpoint, codes: np.ndarray, *, random_bytes: RandomBytes | None = None
    ) -> None:
        del random_bytes
        self._endpoint, self._codes = endpoint, codes

    def send_own(self) -> Iterator[None]:
        """Send the distances, a block at a time."""
        for rows, columns in _own_blocks(len(self._codes)):
            left, right = (
                jnp.asarray(self._codes[part.start : part.stop]) for part in (rows, columns)
            )
            distances = np.asarray(hamming.distances(left, right)).astype(np.uint16)
            sent = distances[_upper(len(rows))] if rows == columns else distances
            self._endpoint.send(SERVER, "own", pack(sent, ring_bits(32 * self._codes.shape[1])))
            yield


def run_own(
    messages: Iterator[None], server: Endpoint, client: int, num_points: int, num_bits: int
) -> Iterator[Block]:
    """Have a client send its own distances; yields each block that the server has received."""
    for rows, columns in _own_blocks(num_points):
        next(messages)
        yield receive_own(server, client, rows, columns, num_bits)


def receive_own(
    endpoint: Endpoint, client: int, rows: range, columns: range, num_bits: int
) -> Block:
    """Receive a block of a client's own distances at the server."""
    message = endpoint.receive(client, "own")
    count = len(rows) * (len(rows) - 1) // 2 if rows == columns else len(rows) * len(columns)
    sent = checked_distances(unpack(message, count, ring_bits(num_bits)), num_bits)
    if rows != columns:
        return Block(client, client, rows, columns, sent.reshape(len(rows), len(columns)))
    distances = np.zeros((len(rows), len(rows)), np.uint16)
    distances[_upper(len(rows))] = sent
    return Block(client, client, rows, columns, distances + distances.T)


def collect(
    collection: NearestOthers,
    sizes: Mapping[int, int],
    own_blocks: Callable[[int], Iterator[Block]],
    pair: Callable[[int, int], Iterator[Block]],
    *,
    pairs: Iterable[Sequence[Pair]],
    presence: Presence | None = None,
    progress: PairsDone | None = None,
) -> None:
    """Run every client's own step and the protocol of pairs, without the clients that drop out.

    Each turn of `pairs` is read when the one before it is done. A client is lost whose own distances are
    refused, or whose shares disagree with those of two others or more while theirs agree. `progress` receives
    the number of finished pairs of points after every block.
    """
    done = total = 0
    disagreeing = list[tuple[int, int]]()
    presence, staying = presence or Presence(), set(collection.clients)
    for client in sorted(sizes):
        try:
            with presence.losing(client):
                for block in own_blocks(client):
                    collection.add(block)
        except DroppedOut as dropout:
            collection.remove(dropout.client)
            staying.remove(dropout.client)
    for turn in pairs:
        total += sum(sizes[first] * sizes[second] for first, second in turn)
        for first, second in turn:
            if not (staying.issuperset((first, second)) and sizes[first] and sizes[second]):
                continue
            try:
                for block in pair(first, second):
                    collection.add(block)
                    done += block.distances.size
                    if progress:
                        progress(done, total)
            except DroppedOut as dropout:
                collection.remove(dropout.client)
                staying.remove(dropout.client)
            except SharesDisagree as error:
                logging.warning("%s", error)
                disagreeing.append((first, second))
    _lose_liar(collection, presence, disagreeing)


def _lose_liar(
    collection: NearestOthers, presence: Presence, disagreeing: Sequence[tuple[int, int]]
) -> None:
    """Lose the client that is in all pairs whose shares disagree."""
    staying = set(collection.clients)
    pairs = [set(pair) for pair in disagreeing if staying.issuperset(pair)]
    if not pairs:
        return
    common = set.intersection(*pairs)
    if len(common) != 1:
        of_pairs = ", ".join(f"{first} and {second}" for first, second in disagreeing)
        raise ProtocolError(f"shares of clients {of_pairs} do not fit together")
    [liar] = common
    logging.warning("client %d is lost: its shares fit nobody else's", liar)
    presence.lose(liar)
    collection.remove(liar)


def _own_blocks(num_points: int) -> Iterator[tuple[range, range]]:
    """Blocks of rows and columns that cover the upper triangle."""
    for rows in ranges(num_points, BLOCK_POINTS):
        for columns in ranges(num_points, BLOCK_POINTS):
            if columns.start >= rows.start:
                yield rows, columns


def _upper(size: int) -> tuple[np.ndarray, ...]:
    return np.triu_indices(size, 1)


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

    def in_order(self) -> tuple[np.ndarray, np.ndarray]:
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
