"""SecureHamming by oblivious transfer (XCLP, Section 3.2, with the transfers extended): `ot`.

The paper's steps for a point b of client j and a point b' of client k, in Z_{2^w} with 2^w > L:

    1) j draws r_1 ... r_L and offers z_l^0 = r_l + b_l and z_l^1 = r_l + (1 - b_l) for l = 1 ... L;
    2) k chooses by b'_l in an oblivious transfer and receives t_l = r_l + (b_l xor b'_l);
    3) j sends R = sum_l r_l to the server, k sends T = sum_l t_l to the server;
    4) the server computes T - R = h(b, b').

Two corrections of the printed text are in these steps:

  * The printed ring is Z_L, where the distances 0 and L would be the same.
  * R and T go to the server only. With both, a client would have the distance.

This module does the same with extended transfers. Client `first` is j with points x_i, and it sends. Client
`second` is k with points y_m, and it receives. Message by message, with kappa = 128
(`oblivious_transfer`):

    request     first -> second    PK_0 of 128 base transfers                    32 kappa bytes
    response    second -> first    r G                                           32 bytes
  for every block of V of second's vectors:
    correction  second -> first    u, the masked choices y                       16 V L bytes
    payload     first -> second    tau, for every block of n_b <= 512 points     2 V L n_b bytes
    first_sums  first -> server    R                                             2 V n_j bytes
    second_sums second -> server   T                                             2 V n_j bytes

The server computes h = T - R mod 2^16. The paper's steps 1 and 2 move two values a transfer. Here one
correction is enough, because the pad itself serves as one of the two.

Parties that follow the protocol learn only the number of each other's points; the server learns h. (SHADE's
variant against others was broken by Kiraz, Genc and Kardas, 2015.)

The algebra is SHADE's (Bringer, Chabanne, Patey, 2013) on extended transfers. The receiver has vectors y, the
sender points x_i, all of L bits. Transfer l of a vector, with the pads H(q_l), H(q_l xor s) and H(t_l) of
`oblivious_transfer` as long as the list of points (correlated transfers: Asharov, Lindell, Schneider, Zohner,
CCS 2013), gives the two sides, modulo 2^16,

    sender:    r_{l,i} = H(q_l)_i - x_{i,l}
               tau_{l,i} = H(q_l)_i - H(q_l xor s)_i + 1 - 2 x_{i,l}                --- tau --->
    receiver:  H(t_l)_i + y_l tau_{l,i} = r_{l,i} + (x_{i,l} xor y_l)

so with R_i = sum_l r_{l,i} and T_i the receiver's sum, T_i - R_i = h(x_i, y). One choice bit serves
all points of the sender. 2^16 holds all distances up to L = 65,535.

tau is sent vector by vector, and a vector in chunks of transfers. A chunk's blocks of 8 points follow one
another, each with [transfers, 8] values; the last one has only the remaining points.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import numpy as np

from jaxfed.errors import ProtocolError
from jaxfed.secure.hamming.pair import (
    Block,
    PairServer,
    bits_of,
    checked_distances,
    pair_kind,
    ranges,
)
from jaxfed.secure.primitives import oblivious_transfer
from jaxfed.secure.primitives.oblivious_transfer import (
    VALUES_PER_BLOCK,
    CorrelationHash,
    TransferReceiver,
    TransferRows,
    transfer_keys,
)
from jaxfed.secure.primitives.ring import ring_bits
from jaxfed.secure.session.endpoint import SERVER, Endpoint

RandomBytes = Callable[[int], bytes]

PAYLOAD_BYTES = 1 << 24  # of a message, about: sets how many vectors make a block


def vectors_per_block(num_bits: int) -> int:
    """V: the number of vectors for a full payload of about `PAYLOAD_BYTES`."""
    return max(1, PAYLOAD_BYTES // payload_size(1, num_bits, MAX_POINTS))


class First:
    """The sending client; `run` is a number never used before in the session."""

    def __init__(
        self,
        endpoint: Endpoint,
        second: int,
        codes: np.ndarray,
        run: int,
        *,
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> None:
        self._endpoint, self._second = endpoint, second
        self._num_points, self._num_bits = len(codes), 32 * codes.shape[1]
        ring_bits(self._num_bits)  # refuses an L that 2^16 does not hold
        packed = random_bytes(oblivious_transfer.NUM_BASE // 8)
        self._choices = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little").tolist()
        self._base = TransferReceiver(
            self._choices,
            endpoint.pair_seed(second, f"ot/{run}"),  # a context of this run and pair alone
            random_bytes=random_bytes,
        )
        self._points = [
            SenderPoints(bits_of(codes[block.start : block.stop]), block.start)
            for block in ranges(self._num_points, MAX_POINTS)
        ]

    def request(self) -> None:
        """Send the request of the base transfers."""
        self._endpoint.send(self._second, "request", self._base.request)

    def finish_setup(self) -> None:
        """Receive the chosen seeds."""
        keys = self._base.keys(self._endpoint.receive(self._second, "response"))
        self._extension = oblivious_transfer.ExtensionSender(keys, self._choices)

    def extend(self, num_vectors: int) -> None:
        """Receive the correction for the next vectors."""
        correction = self._endpoint.receive(self._second, "correction")
        self._rows = self._extension.extend(correction, num_vectors * self._num_bits)
        self._sums: list[np.ndarray] = []

    def transfer(self, block: int) -> None:
        """Send the payload of one block of own points."""
        tau, sums = self._points[block].transfer(self._rows, self._extension.secret_row)
        self._endpoint.send(self._second, "payload", tau)
        self._sums.append(sums)

    def send_sums(self) -> None:
        """Send R of all own points to the server."""
        kind = pair_kind("first_sums", self._endpoint.address, self._second)
        self._endpoint.send(SERVER, kind, sums_to_bytes(self._sums))


class Second:
    """The receiving client; `num_points` = n_j is the number of first's points."""

    def __init__(
        self,
        endpoint: Endpoint,
        first: int,
        codes: np.ndarray,
        num_points: int,
        run: int,
        *,
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> None:
        self._endpoint, self._first, self._codes = endpoint, first, codes
        self._num_bits = 32 * codes.shape[1]
        ring_bits(self._num_bits)
        self._context = endpoint.pair_seed(first, f"ot/{run}")
        self._random_bytes = random_bytes
        self._receivers = [
            ReceiverSums(len(block), self._num_bits, block.start)
            for block in ranges(num_points, MAX_POINTS)
        ]

    def respond(self) -> None:
        """Answer the base transfers."""
        response, pairs = transfer_keys(
            self._endpoint.receive(self._first, "request"),
            oblivious_transfer.NUM_BASE,
            self._context,
            random_bytes=self._random_bytes,
        )
        self._extension = oblivious_transfer.ExtensionReceiver(pairs)
        self._endpoint.send(self._first, "response", response)

    def choose(self, vectors: range) -> None:
        """Send the correction for some of the own vectors."""
        codes = np.ascontiguousarray(self._codes[vectors.start : vectors.stop], "<u4")
        self._choices = bits_of(codes)
        correction, self._rows = self._extension.extend(codes.view(np.uint8).reshape(-1))
        self._endpoint.send(self._first, "correction", correction)
        self._sums: list[np.ndarray] = []

    def accumulate(self, block: int) -> None:
        """Receive the payload of one block of first's points."""
        tau = self._endpoint.receive(self._first, "payload")
        self._sums.append(self._receivers[block].sums(self._rows, self._choices, tau))

    def send_sums(self) -> None:
        """Send T of all of first's points to the server."""
        kind = pair_kind("second_sums", self._first, self._endpoint.address)
        self._endpoint.send(SERVER, kind, sums_to_bytes(self._sums))


class Server(PairServer):
    """The server's part for one pair of clients, with n_j and n_k points of L bits."""

    KINDS = ("first_sums", "second_sums")

    def __init__(
        self, endpoint: Endpoint, first: int, second: int, num_points: int, num_bits: int
    ) -> None:
        super().__init__(endpoint, first, second, num_bits)
        self._num_points = num_points

    def combine(self, vectors: range) -> Block:
        """Distances of all of first's points to some of second's, from R and T."""
        shape = len(vectors), self._num_points
        r = sums_from_bytes(self._receive(self._first, "first_sums"), shape)
        t = sums_from_bytes(self._receive(self._second, "second_sums"), shape)
        distances = checked_distances((t - r).T, self._num_bits)
        return Block(self._first, self._second, range(self._num_points), vectors, distances)


def run_pair(
    first: First, second: Second, server: Server, sizes: tuple[int, int, int]
) -> Iterator[Block]:
    """Run the protocol of one pair of clients with n_j and n_k points of L bits; yields finished blocks."""
    num_points, num_vectors, num_bits = sizes
    if not (num_points and num_vectors):
        return
    with server.until_dropout():
        first.request()
        second.respond()
        first.finish_setup()
        for vectors in ranges(num_vectors, vectors_per_block(num_bits)):
            second.choose(vectors)
            first.extend(len(vectors))
            for block, _ in enumerate(ranges(num_points, MAX_POINTS)):
                first.transfer(block)
                second.accumulate(block)
            first.send_sums()
            second.send_sums()
            yield server.combine(vectors)


MAX_POINTS = 512  # of the sender, in one call
_TILE_BLOCKS = 1 << 16  # of 16 bytes, hashed at a time: 1 MiB, which fits a core's cache


def payload_size(num_vectors: int, num_bits: int, num_points: int) -> int:
    """Bytes of tau."""
    return 2 * num_vectors * num_bits * num_points


class SenderPoints:
    """The sender's points, uint8 [n, L] of 0 or 1, n at most `MAX_POINTS`, in the protocol's layout.

    `first` is the number of the first among all the sender's points, a multiple of 8.
    """

    def __init__(self, bits: np.ndarray, first: int) -> None:
        num_points, num_bits = bits.shape
        self._tiles = _Tiles(num_points, num_bits, first)
        num_blocks = self._tiles.num_blocks
        padded = np.zeros((num_blocks, VALUES_PER_BLOCK, num_bits), np.uint16)
        padded.reshape(-1, num_bits)[:num_points] = 1 - 2 * bits.astype(np.uint16)
        self._signs = np.ascontiguousarray(padded.swapaxes(1, 2))  # 1 - 2 x, [blocks, L, 8]
        self._weights = bits.sum(axis=1, dtype=np.uint16)

    def transfer(self, rows: TransferRows, secret_row: np.ndarray) -> tuple[bytes, np.ndarray]:
        """tau and R for the vectors whose transfers are `rows`.

        Returns:
            The message tau, and R, uint16 [vectors, n].

        Cost: 2 L / 8 AES blocks a pair of points; 3.7 us at L = 4096.
        """
        tiles = self._tiles
        num_vectors = len(rows.values) // tiles.num_bits
        tau = np.empty(num_vectors * tiles.num_bits * tiles.num_points, np.uint16)
        sums = np.zeros((num_vectors, tiles.num_blocks * VALUES_PER_BLOCK), np.uint16)
        position = 0
        for vector, bits, q, number in tiles.walk(rows):
            pad = tiles.pads(q, number)
            other = tiles.pads(q ^ secret_row, number)
            np.subtract(pad, other, out=other)
            other += self._signs[:, bits].reshape(other.shape)
            for part in tiles.sent(other):
                tau[position : position + part.size].reshape(part.shape)[:] = part
                position += part.size
            sums[vector] += _sum_over_rows(pad)
        return tau.tobytes(), sums[:, : tiles.num_points] - self._weights


class ReceiverSums:
    """The receiver's side against `num_points` points of the sender, numbered from `first` on."""

    def __init__(self, num_points: int, num_bits: int, first: int) -> None:
        self._tiles = _Tiles(num_points, num_bits, first)

    def sums(self, rows: TransferRows, choices: np.ndarray, tau: bytes | memoryview) -> np.ndarray:
        """T, uint16 [vectors, n], for rows t and choices uint8 [vectors, L].

        Cost: L / 8 AES blocks a pair of points; 2.4 us at L = 4096.
        """
        tiles = self._tiles
        expected = payload_size(len(choices), tiles.num_bits, tiles.num_points)
        if len(tau) != expected:
            raise ProtocolError(f"the payload has {expected} bytes, got {len(tau)}")
        values = np.frombuffer(tau, "<u2")
        sums = np.zeros((len(choices), tiles.num_blocks * VALUES_PER_BLOCK), np.uint16)
        masks = (0 - choices.astype(np.uint16)).repeat(VALUES_PER_BLOCK, axis=1)  # y as 0 or ~0
        position = 0
        for vector, bits, t, number in tiles.walk(rows):
            pad = tiles.pads(t, number)
            mask = masks[vector].reshape(-1, VALUES_PER_BLOCK)[bits]
            for part in tiles.sent(pad):
                received = values[position : position + part.size].reshape(part.shape)
                part += received & mask[:, : part.shape[-1]]
                position += part.size
            sums[vector] += _sum_over_rows(pad)
        return sums[:, : tiles.num_points]


class _Tiles:
    """Tiles that are hashed at a time, for n points and vectors of L bits."""

    def __init__(self, num_points: int, num_bits: int, first: int) -> None:
        self.num_points, self.num_bits = num_points, num_bits
        self.num_blocks = -(-num_points // VALUES_PER_BLOCK)
        self._first_block = first // VALUES_PER_BLOCK
        self._chunk = min(num_bits, max(1, _TILE_BLOCKS // max(self.num_blocks, 1)))
        self._hash = CorrelationHash(self._chunk, self.num_blocks)

    def walk(self, rows: TransferRows) -> Iterator[tuple[int, slice, np.ndarray, int]]:
        """(vector, its bits, their rows, the number of the first row) of every chunk of transfers."""
        for begin in range(0, len(rows.values), self.num_bits):
            for bit in range(0, self.num_bits, self._chunk):
                bits = slice(bit, min(bit + self._chunk, self.num_bits))
                chunk = rows.values[begin + bits.start : begin + bits.stop]
                yield begin // self.num_bits, bits, chunk, rows.first + begin + bit

    def pads(self, rows: np.ndarray, number: int) -> np.ndarray:
        """Pads of all points: uint16 [blocks, rows, 8], valid until the next call but one."""
        hashed = self._hash(rows, number, self._first_block, self.num_blocks)
        return hashed.view(np.uint16).reshape(self.num_blocks, -1, VALUES_PER_BLOCK)

    def sent(self, values: np.ndarray) -> list[np.ndarray]:
        """Views of the entries of [blocks, rows, 8] that stand for points: full blocks, and the rest."""
        full, rest = divmod(self.num_points, VALUES_PER_BLOCK)
        return [values[:full], values[full:, :, :rest]]


def _sum_over_rows(values: np.ndarray) -> np.ndarray:
    """[blocks, rows, 8] summed over rows: [8 blocks]. Folds `values` onto itself.

    It adds halves along long lines; a plain sum would add eight values at a time.
    """
    count = values.shape[1]
    while count > 1:
        half = count // 2
        values[:, :half] += values[:, count - half : count]
        count -= half
    return values[:, 0].reshape(-1)


def sums_to_bytes(sums: list[np.ndarray]) -> bytes:
    """Sums uint16 [V, n_b] of blocks of points as one message, [V, n_j]."""
    return np.concatenate(sums, axis=1).astype("<u2", copy=False).tobytes()


def sums_from_bytes(message: bytes, shape: tuple[int, int]) -> np.ndarray:
    """Sums uint16 [V, n_j] of a message."""
    num_vectors, num_points = shape
    expected = 2 * num_vectors * num_points
    if len(message) != expected:
        raise ProtocolError(
            f"{num_vectors} x {num_points} sums take {expected} bytes, got {len(message)}"
        )
    return np.frombuffer(message, "<u2").reshape(shape)
