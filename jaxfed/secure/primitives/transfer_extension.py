"""Extension of 128 oblivious transfers: Ishai, Kilian, Nissim, Petrank (CRYPTO 2003), semi-honest.

The 128 base transfers have swapped roles: the extension's sender chooses with a secret s in {0,1}^128 and
receives the seeds k_i^{s_i}; its receiver holds both. For m choices y in {0,1}^m, column i = 1 ... 128:

    receiver:  t^i = G(k_i^0),   u^i = t^i xor G(k_i^1) xor y             --- u, 16 m bytes --->
    sender:    q^i = G(k_i^{s_i}) xor s_i u^i,   so that row l is  q_l = t_l xor y_l s

    H(q_l) and H(q_l xor s) are the sender's two pads of transfer l; the receiver has H(t_l), the pad
    number y_l, and cannot form the other one without s.

Secure against parties that follow the protocol; there is no defense against the known attacks of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxfed.errors import ProtocolError
from jaxfed.secure.primitives.prg import Keystream

NUM_BASE = 128
_ROW_BYTES = NUM_BASE // 8


def correction_size(num_choices: int) -> int:
    """Bytes of u for `num_choices` choices (a multiple of 8)."""
    return _ROW_BYTES * num_choices


class ExtensionReceiver:
    """The side with the choices; `keys` are both seeds of every base transfer."""

    def __init__(self, keys: Sequence[tuple[bytes, bytes]]) -> None:
        self._streams = [(Keystream(zero), Keystream(one)) for zero, one in keys]
        self._rows_done = 0

    def extend(self, choices: np.ndarray) -> tuple[bytes, TransferRows]:
        """The correction u for the next choices, packed uint8 [m / 8], and the rows t."""
        columns = np.empty((NUM_BASE, len(choices)), np.uint8)
        correction = np.empty_like(columns)
        for number, (zero, one) in enumerate(self._streams):
            columns[number] = zero.take(len(choices))
            np.bitwise_xor(columns[number], one.take(len(choices)), out=correction[number])
        correction ^= choices[None, :]
        rows = TransferRows(_transposed(columns), self._rows_done)
        self._rows_done += len(rows.values)
        return correction.tobytes(), rows


class ExtensionSender:
    """The side with the payload; `keys` are the chosen seeds and `secret` is s, 128 bits of 0 or 1."""

    def __init__(self, keys: Sequence[bytes], secret: Sequence[int]) -> None:
        self._streams = [Keystream(key) for key in keys]
        self._secret = np.array(secret, np.uint8)
        self._rows_done = 0

    @property
    def secret_row(self) -> np.ndarray:
        """s as one row, uint64 [2]."""
        return np.packbits(self._secret, bitorder="little").view(np.uint64)

    def extend(self, correction: bytes, num_choices: int) -> TransferRows:
        """The rows q of the next choices."""
        if len(correction) != correction_size(num_choices):
            raise ProtocolError(
                f"{num_choices} choices need {correction_size(num_choices)} bytes, "
                f"got {len(correction)}"
            )
        columns = np.frombuffer(correction, np.uint8).reshape(NUM_BASE, -1) * self._secret[:, None]
        for number, stream in enumerate(self._streams):
            columns[number] ^= stream.take(num_choices // 8)
        rows = TransferRows(_transposed(columns), self._rows_done)
        self._rows_done += num_choices
        return rows


class TransferRows(NamedTuple):
    """Rows of the extension: uint64 [m, 2], and the number of the first in the whole extension."""

    values: np.ndarray
    first: int


def _transposed(columns: np.ndarray) -> np.ndarray:
    """Bit matrix [128, m / 8] of packed columns to rows uint64 [m, 2].

    Blocks of 8 x 8 bits, one in a 64-bit word, are transposed by three exchanges (Knuth 7.1.3).
    """
    num_bytes = columns.shape[1]
    groups = columns.reshape(_ROW_BYTES, 8, num_bytes).swapaxes(1, 2)
    x = np.ascontiguousarray(groups).view("<u8")[..., 0]
    for shift, mask in ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0xF0F0F0F0)):
        y = (x ^ (x >> shift)) & np.uint64(mask)
        x ^= y
        y <<= shift
        x ^= y
    rows = x.view(np.uint8).reshape(_ROW_BYTES, 8 * num_bytes).T
    return np.ascontiguousarray(rows).view(np.uint64)
