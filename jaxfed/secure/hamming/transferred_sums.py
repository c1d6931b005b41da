"""Hamming distances by oblivious transfer: SHADE (Bringer, Chabanne, Patey, 2013) on extended transfers.

The receiver has vectors y, the sender points x_i, all of L bits. Transfer l of a vector, with the pads
H(q_l), H(q_l xor s) and H(t_l) of `transfer_extension` as long as the list of points (correlated
transfers: Asharov, Lindell, Schneider, Zohner, CCS 2013), gives the two sides, modulo 2^16,

    sender:    r_{l,i} = H(q_l)_i - x_{i,l}
               tau_{l,i} = H(q_l)_i - H(q_l xor s)_i + 1 - 2 x_{i,l}                --- tau --->
    receiver:  H(t_l)_i + y_l tau_{l,i} = r_{l,i} + (x_{i,l} xor y_l)

so with R_i = sum_l r_{l,i} and T_i the receiver's sum, T_i - R_i = h(x_i, y). One choice bit serves
all points of the sender. The paper's Z_L would hold no distance L; 2^16 holds all up to L = 65,535.

tau is sent vector by vector, and a vector in chunks of transfers. A chunk's blocks of 8 points follow one
another, each with [transfers, 8] values; the last one has only the remaining points.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jaxfed.errors import ProtocolError
from jaxfed.secure.primitives.correlation_hash import VALUES_PER_BLOCK, CorrelationHash
from jaxfed.secure.primitives.transfer_extension import TransferRows

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
