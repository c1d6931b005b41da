"""SecureHamming by oblivious transfer as the paper prints it, corrected: `ot_paper`.

XCLP, Section 3.2, one pair of points b (of client j) and b' (of client k) at a time, in Z_{2^w} with
2^w > L in place of Z_L:

    1) j draws r_1 ... r_L and offers z_l^0 = r_l + b_l or z_l^1 = r_l + (1 - b_l), l = 1 ... L;
    2) k chooses by b'_l in an oblivious transfer (Naor, Pinkas, 2001), t_l = r_l + (b_l xor b'_l);
    3) j sends R = sum_l r_l, k sends T = sum_l t_l to the server;
    4) T - R = h(b, b').

Each transfer costs three multiplications on a curve, so this is for reading and for small cases: 1 s a
pair at L = 4096, 68 L bytes a pair. `transfer` is the same idea with transfers extended.

    request   k -> j        PK_0 of L transfers                       32 L bytes
    offer     j -> k        r G, and z^0, z^1 under their keys        32 + 4 L bytes
    first_sum, second_sum   R and T to the server                     2 bytes each
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import numpy as np

from jaxfed.secure.errors import ProtocolError
from jaxfed.secure.hamming.pair import PairServer, pair_kind, until_dropout
from jaxfed.secure.hamming.transferred_sums import sums_from_bytes
from jaxfed.secure.primitives.blocks import Block, bits_of, checked_distances
from jaxfed.secure.primitives.oblivious_transfer import POINT_BYTES, TransferReceiver, transfer_keys
from jaxfed.secure.primitives.ring import ring_bits
from jaxfed.secure.session.endpoint import SERVER, Endpoint

RandomBytes = Callable[[int], bytes]


class First:
    """Client j: offers. Arguments as `transfer.First`."""

    def __init__(
        self,
        endpoint: Endpoint,
        second: int,
        codes: np.ndarray,
        run: int,
        *,
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> None:
        self._endpoint, self._second, self._bits = endpoint, second, bits_of(codes)
        self._mask = _mask(self._bits.shape[1])
        self._seed = endpoint.pair_seed(second, f"ot_paper/{run}")
        self._random_bytes = random_bytes

    def offer(self, row: int, column: int) -> None:
        """Step 1 for one pair of points, and R of step 3."""
        b = self._bits[row].astype(np.uint16)
        r = np.frombuffer(self._random_bytes(2 * len(b)), "<u2") & self._mask
        z = np.stack([r + b, r + (1 - b)], axis=1) & self._mask
        request = self._endpoint.receive(self._second, "request")
        response, keys = transfer_keys(
            request, len(b), _context(self._seed, row, column), random_bytes=self._random_bytes
        )
        hidden = z ^ np.array([[_pad(zero), _pad(one)] for zero, one in keys], np.uint16)
        self._endpoint.send(self._second, "offer", response + hidden.astype("<u2").tobytes())
        kind = pair_kind("first_sum", self._endpoint.address, self._second)
        self._endpoint.send(SERVER, kind, _sum(r, self._mask))


class Second:
    """Client k: chooses. Arguments as `transfer.Second`."""

    def __init__(
        self,
        endpoint: Endpoint,
        first: int,
        codes: np.ndarray,
        run: int,
        *,
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> None:
        self._endpoint, self._first, self._bits = endpoint, first, bits_of(codes)
        self._mask = _mask(self._bits.shape[1])
        self._seed = endpoint.pair_seed(first, f"ot_paper/{run}")
        self._random_bytes = random_bytes

    def request(self, row: int, column: int) -> None:
        """Step 2, the choices of one pair of points."""
        self._transfer = TransferReceiver(
            self._bits[column].tolist(),
            _context(self._seed, row, column),
            random_bytes=self._random_bytes,
        )
        self._endpoint.send(self._first, "request", self._transfer.request)

    def take(self, column: int) -> None:
        """Step 2, what was chosen, and T of step 3."""
        message = self._endpoint.receive(self._first, "offer")
        b = self._bits[column]
        if len(message) != POINT_BYTES + 4 * len(b):
            raise ProtocolError(
                f"an offer has {POINT_BYTES + 4 * len(b)} bytes, got {len(message)}"
            )
        keys = self._transfer.keys(message[:POINT_BYTES])
        hidden = np.frombuffer(message, "<u2", offset=POINT_BYTES).reshape(-1, 2)
        t = hidden[np.arange(len(b)), b] ^ np.array([_pad(key) for key in keys], np.uint16)
        kind = pair_kind("second_sum", self._first, self._endpoint.address)
        self._endpoint.send(SERVER, kind, _sum(t, self._mask))


class Server(PairServer):
    """Steps 3 and 4 for one pair of clients."""

    KINDS = ("first_sum", "second_sum")

    def combine(self, row: int, column: int) -> Block:
        """h of one pair of points."""
        r = sums_from_bytes(self._receive(self._first, "first_sum"), (1, 1))
        t = sums_from_bytes(self._receive(self._second, "second_sum"), (1, 1))
        distances = checked_distances((t - r) & _mask(self._num_bits), self._num_bits)
        rows, columns = range(row, row + 1), range(column, column + 1)
        return Block(self._first, self._second, rows, columns, distances)


@until_dropout
def run_pair(
    first: First, second: Second, server: Server, sizes: tuple[int, int]
) -> Iterator[Block]:
    """All pairs of points of two clients with n_j and n_k points; yields one distance at a time."""
    for row in range(sizes[0]):
        for column in range(sizes[1]):
            second.request(row, column)
            first.offer(row, column)
            second.take(column)
            yield server.combine(row, column)


def message_bytes(num_points: int, num_vectors: int, num_bits: int) -> dict[str, int]:
    """Payload bytes by kind of one run of `run_pair`."""
    pairs = num_points * num_vectors
    return {
        "request": pairs * POINT_BYTES * num_bits,
        "offer": pairs * (POINT_BYTES + 4 * num_bits),
        "first_sum": 2 * pairs,
        "second_sum": 2 * pairs,
    }


def _mask(num_bits: int) -> np.uint16:
    return np.uint16((1 << ring_bits(num_bits)) - 1)


def _context(seed: bytes, row: int, column: int) -> bytes:
    """A context that both clients know, of this pair of points alone."""
    return seed + row.to_bytes(4, "big") + column.to_bytes(4, "big")


def _pad(key: bytes) -> int:
    return int.from_bytes(key[:2], "little")


def _sum(values: np.ndarray, mask: np.uint16) -> bytes:
    return (values.sum(dtype=np.uint16) & mask).astype("<u2").tobytes()
