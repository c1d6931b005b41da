"""SecureHamming by one message from each client to the server: `masked` (algebra: `masked_distances`).

Clients j < k form a pair, j as its first and k as its second client. With w = bit_length(L):

    points      client -> server   E of up to 512 points, packed      about w L / 8 bytes a point, once
    shares      j -> server        s of up to 512 x 512 pairs         about w / 8 bytes a pair
    shares      k -> server        t of the same pairs                about w / 8 bytes a pair

There are no messages between clients and none back. Masks come from the group seed and the number of the run,
which each client uses once: the same masks on two sets of points would reveal their difference. They also
come from the clients' numbers of points, which place the masks of pairs: clients that were told different
numbers share no masks, so a server that lies about them learns nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import numpy as np

from jaxfed.errors import ProtocolError
from jaxfed.federation.departures import DroppedOut
from jaxfed.secure.hamming import masked_distances
from jaxfed.secure.hamming.pair import pair_kind
from jaxfed.secure.primitives.blocks import (
    Block,
    SharesDisagree,
    bits_of,
    checked_distances,
    ranges,
)
from jaxfed.secure.primitives.ring import pack, packed_size, ring_bits, unpack
from jaxfed.secure.session.channel import Presence
from jaxfed.secure.session.endpoint import SERVER, Endpoint
from jaxfed.secure.session.key_agreement import RandomBytes

BLOCK_POINTS = 512


class Client:
    """One client, first or second in each of its pairs.

    `sizes` are the numbers of points of all clients that take part, `run` a number never used before in the
    session; nothing is drawn from `random_bytes`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        codes: np.ndarray,
        *,
        sizes: Mapping[int, int],
        run: int,
        random_bytes: RandomBytes | None = None,
    ) -> None:
        del random_bytes
        self._endpoint, self._codes, self._sizes = endpoint, codes, sizes
        self._own = endpoint.address
        self._num_bits = 32 * codes.shape[1]
        self._width = ring_bits(self._num_bits)
        if sizes.get(self._own) != len(codes):
            raise ProtocolError(f"{sizes.get(self._own)} points of a client that has {len(codes)}")
        endpoint.claim(f"masked hamming/{run}")
        self._label = f"masked hamming/{run}/{_agreement(sizes)}"

    def send_points(self) -> Iterator[None]:
        """Send E of the own points, a block at a time."""
        for points in ranges(len(self._codes), BLOCK_POINTS):
            self._endpoint.send(SERVER, "points", pack(self._hidden(points), self._width))
            yield

    def send_shares(self, partner: int) -> Iterator[None]:
        """Send s or t of all pairs of points with another client's, a block at a time."""
        if partner == self._own or partner not in self._sizes:
            raise ProtocolError(f"shares of clients {self._own} and {partner}: no pair")
        lower, higher = sorted((self._own, partner))
        for rows in ranges(self._sizes[lower], BLOCK_POINTS):
            for columns in ranges(self._sizes[higher], BLOCK_POINTS):
                self._send_block(partner, rows, columns)
                yield

    def _send_block(self, partner: int, rows: range, columns: range) -> None:
        is_first = self._own < partner
        first, second = (self._own, partner) if is_first else (partner, self._own)
        pair_mask = masked_distances.pair_masks(
            self._endpoint.group_seed(f"{self._label}/pairs/{first}/{second}"),
            rows,
            columns,
            self._sizes[second],
            self._width,
        )
        if is_first:
            partner_masks = self._masks(partner, columns)
            share = masked_distances.first_share(
                self._bits(rows), partner_masks, pair_mask, self._width
            )
        else:
            partner_masks = self._masks(partner, rows)
            share = masked_distances.second_share(
                self._bits(columns), self._hidden(columns), partner_masks, pair_mask, self._width
            )
        self._endpoint.send(SERVER, pair_kind("shares", first, second), pack(share, self._width))

    def _bits(self, points: range) -> np.ndarray:
        return bits_of(self._codes[points.start : points.stop]).view(np.int8)

    def _hidden(self, points: range) -> np.ndarray:
        masks = self._masks(self._own, points)
        return masked_distances.hidden_points(self._bits(points), masks, self._width)

    def _masks(self, owner: int, points: range) -> np.ndarray:
        seed = self._endpoint.group_seed(f"{self._label}/points/{owner}")
        return masked_distances.point_masks(seed, points, self._num_bits, self._width)


def _agreement(sizes: Mapping[int, int]) -> str:
    """Hash of the numbers of points, the same at all clients that were told the same."""
    text = repr([(int(client), int(size)) for client, size in sorted(sizes.items())])
    return hashlib.sha256(text.encode()).hexdigest()


class Server:
    """The server; it stores every client's E packed, as received."""

    def __init__(self, endpoint: Endpoint, num_bits: int, presence: Presence | None = None) -> None:
        self._endpoint, self._num_bits = endpoint, num_bits
        self._presence = presence or Presence()
        self._width = ring_bits(num_bits)
        self._points: dict[tuple[int, int], bytes] = {}

    def receive_points(self, client: int, points: range) -> None:
        """Receive E of some of a client's points."""
        with self._presence.losing(client):
            message = self._endpoint.receive(client, "points")
            expected = packed_size(len(points) * self._num_bits, self._width)
            if len(message) != expected:
                raise ProtocolError(
                    f"{len(points)} hidden points take {expected} bytes, got {len(message)}"
                )
        self._points[client, points.start] = message

    def abandon(self, first: int, second: int) -> None:
        """Discard the shares of a pair after one of its clients has left."""
        self._endpoint.discard(pair_kind("shares", first, second))

    def combine(self, first: int, second: int, rows: range, columns: range) -> Block:
        """Distances of a block of pairs from both clients' shares."""
        shares = []
        for client in (first, second):
            with self._presence.losing(client):
                message = self._endpoint.receive(client, pair_kind("shares", first, second))
                values = unpack(message, len(rows) * len(columns), self._width)
                shares.append(values.reshape(len(rows), len(columns)))
        distances = masked_distances.combined_distances(
            self._hidden(first, rows),
            self._hidden(second, columns),
            shares[0],
            shares[1],
            self._width,
        )
        try:
            checked = checked_distances(distances, self._num_bits)
        except ProtocolError as error:
            raise SharesDisagree(f"clients {first} and {second}: {error}") from None
        return Block(first, second, rows, columns, checked)

    def _hidden(self, client: int, points: range) -> np.ndarray:
        packed = self._points[client, points.start]
        hidden = unpack(packed, len(points) * self._num_bits, self._width)
        return hidden.reshape(len(points), self._num_bits)


def receive_points(messages: Iterator[None], server: Server, address: int, num_points: int) -> None:
    """Have a client send its points (`Client.send_points`), and receive each block."""
    for block in ranges(num_points, BLOCK_POINTS):
        next(messages)
        server.receive_points(address, block)


def run_pair(
    first: Iterator[None],
    second: Iterator[None],
    server: Server,
    addresses: tuple[int, int],
    sizes: tuple[int, int],
) -> Iterator[Block]:
    """Exchange shares of a pair of clients whose points the server has; yields finished blocks."""
    try:
        for rows in ranges(sizes[0], BLOCK_POINTS):
            for columns in ranges(sizes[1], BLOCK_POINTS):
                next(first)
                next(second)
                yield server.combine(*addresses, rows, columns)
    except (DroppedOut, SharesDisagree):
        server.abandon(*addresses)
        raise
