"""SecureHamming by one message from each client to the server: `masked`.

Clients j < k form a pair, j as its first and k as its second client. With w = bit_length(L):

    points      client -> server   E of up to 512 points, packed      about w L / 8 bytes a point, once
    shares      j -> server        s of up to 512 x 512 pairs         about w / 8 bytes a pair
    shares      k -> server        t of the same pairs                about w / 8 bytes a pair

There are no messages between clients and none back. Masks come from the group seed and the number of the run,
which each client uses once: the same masks on two sets of points would reveal their difference. They also
come from the clients' numbers of points, which set the offsets of pairs' masks: clients that received
different numbers share no masks, so a server that lies about them learns nothing.

The algebra is that of private simultaneous messages with correlated masks. The clients share a seed that the
server does not know (XCLP, Algorithm 1, line 1). It determines masks u_i in Z_{2^w}^L, one per point, and
r_{i,m}, one per pair. For a point x_i of one client and y_m of another, with masks u_i and v_m, each client
sends one message to the server,

    E_i = x_i - u_i,   s_{i,m} = |x_i| - 2 <x_i, v_m> + r_{i,m}          (the first client of the pair)
    F_m = y_m - v_m,   t_{i,m} = |y_m| - 2 <u_i, F_m> - r_{i,m}          (the second)

    <x, y> = <E, F> + <x, v> + <u, F>,   so that   h = s + t - 2 <E, F>   (mod 2^w, 2^w > L)

Feige, Kilian and Naor (STOC 1994) introduced the setting; the protocol is this repository's, because the
paper's two need interaction. The server's view is simulated from H alone: E, F and s are uniform and
independent, t follows from them and h. Clients receive nothing. It rests on the assumption that the shared
seed needs anyway: a server that colludes with a client learns all bits. E does not depend on the partner, so
a client sends it once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import jax.numpy as jnp
import numpy as np

from jaxfed.errors import DroppedOut, ProtocolError
from jaxfed.kernels.ring_product import ring_product
from jaxfed.secure.hamming.pair import (
    Block,
    SharesDisagree,
    bits_of,
    checked_distances,
    pair_kind,
    ranges,
)
from jaxfed.secure.primitives.prg import Keystream
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
        pair_mask = pair_masks(
            self._endpoint.group_seed(f"{self._label}/pairs/{first}/{second}"),
            rows,
            columns,
            self._sizes[second],
            self._width,
        )
        if is_first:
            partner_masks = self._masks(partner, columns)
            share = first_share(self._bits(rows), partner_masks, pair_mask, self._width)
        else:
            partner_masks = self._masks(partner, rows)
            share = second_share(
                self._bits(columns), self._hidden(columns), partner_masks, pair_mask, self._width
            )
        self._endpoint.send(SERVER, pair_kind("shares", first, second), pack(share, self._width))

    def _bits(self, points: range) -> np.ndarray:
        return bits_of(self._codes[points.start : points.stop]).view(np.int8)

    def _hidden(self, points: range) -> np.ndarray:
        masks = self._masks(self._own, points)
        return hidden_points(self._bits(points), masks, self._width)

    def _masks(self, owner: int, points: range) -> np.ndarray:
        seed = self._endpoint.group_seed(f"{self._label}/points/{owner}")
        return point_masks(seed, points, self._num_bits, self._width)


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
        distances = combined_distances(
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


_PADDING = 128  # rows of a product are padded to a multiple: few shapes, few compilations
_FEW_PAIRS = 256  # up to here a float64 product of NumPy is 10 to 40 times faster
_STRIDE = 8  # pair masks of a row start at a multiple of 16 bytes


def point_masks(seed: bytes, points: range, num_bits: int, width: int) -> np.ndarray:
    """u of consecutive points of the seed's owner: uint16 [points, L], uniform modulo 2^width.

    `num_bits` is a multiple of 8.
    """
    stream = Keystream(seed, start=2 * num_bits * points.start)
    masks = stream.words(num_bits * len(points), "<u2").reshape(len(points), num_bits)
    return np.bitwise_and(masks, _mask(width), out=masks)


def pair_masks(
    seed: bytes, rows: range, columns: range, num_columns: int, width: int
) -> np.ndarray:
    """r of rows x columns out of a pair of clients' [.., num_columns]: uint16, modulo 2^width."""
    stride = -(-num_columns // _STRIDE) * _STRIDE
    stream = Keystream(seed, start=2 * stride * rows.start)
    masks = stream.words(stride * len(rows), "<u2").reshape(len(rows), stride)
    return masks[:, columns.start : columns.stop] & _mask(width)


def hidden_points(bits: np.ndarray, masks: np.ndarray, width: int) -> np.ndarray:
    """E = x - u modulo 2^width: uint16 [n, L] from bits of any integer type."""
    return (bits.astype(np.uint16) - masks) & _mask(width)


def first_share(
    bits: np.ndarray, partner_masks: np.ndarray, pair_mask: np.ndarray, width: int
) -> np.ndarray:
    """s of a block of pairs, uint16 [n, m]: x int8 [n, L], v uint16 [m, L], r uint16 [n, m].

    Cost: 2 n m L multiply-adds of int8.
    """
    inner = _product(partner_masks, bits).T
    weight = bits.sum(axis=1, dtype=np.uint16)[:, None]
    return (weight - 2 * inner + pair_mask) & _mask(width)


def second_share(
    bits: np.ndarray,
    hidden: np.ndarray,
    partner_masks: np.ndarray,
    pair_mask: np.ndarray,
    width: int,
) -> np.ndarray:
    """t of a block of pairs, uint16 [n, m]: y int8 [m, L], F uint16 [m, L], u uint16 [n, L], r.

    Cost: 3 n m L multiply-adds of int8.
    """
    inner = _product(partner_masks, hidden)
    weight = bits.sum(axis=1, dtype=np.uint16)[None, :]
    return (weight - 2 * inner - pair_mask) & _mask(width)


def combined_distances(
    first: np.ndarray, second: np.ndarray, share: np.ndarray, other_share: np.ndarray, width: int
) -> np.ndarray:
    """h of a block of pairs, uint16 [n, m], from E [n, L], F [m, L], s and t [n, m].

    Cost: 3 n m L multiply-adds of int8.
    """
    return (share + other_share - 2 * _product(first, second)) & _mask(width)


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A B^T modulo 2^16 of NumPy arrays, on the accelerator if there is one, unless there are few rows."""
    if len(a) * len(b) <= _FEW_PAIRS:  # exact: sums stay below 2^16 2^32
        return (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.int64).astype(np.uint16)
    product = ring_product(jnp.asarray(_padded(a)), jnp.asarray(_padded(b)))
    return np.asarray(product)[: len(a), : len(b)]


def _padded(rows: np.ndarray) -> np.ndarray:
    """Zero rows added up to a multiple of `_PADDING`."""
    missing = -len(rows) % _PADDING
    if not missing:
        return rows
    return np.concatenate([rows, np.zeros((missing, rows.shape[1]), rows.dtype)])


def _mask(width: int) -> np.uint16:
    return np.uint16((1 << width) - 1)
