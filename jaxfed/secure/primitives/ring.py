"""Integers modulo 2^w, w = 1 ... 16, and their dense form on the wire.

A Hamming distance of L bits lies in [0, L], so the ring must have L + 1 elements at least: w =
`bit_length(L)`. In Z_L, the ring of the paper, the distances L and 0 would be the same.

Dense form: the values, zero-padded to 16 m, are cut into 16 rows of m values, and the bits of a column
(row 0 lowest) fill w 16-bit words. Shifts run along rows, so packing takes a few vector instructions
a value, and 16 m values take 2 w m bytes without gaps.
"""

from __future__ import annotations

import numpy as np

from jaxfed.errors import ProtocolError, UsageError

_ROWS = 16  # values per column, and bits per word
MAX_BITS = 16


def ring_bits(num_bits: int) -> int:
    """w of the smallest ring that holds every distance 0 ... `num_bits`."""
    if not 1 <= num_bits < 1 << MAX_BITS:
        raise UsageError(f"num_bits={num_bits}: secure Hamming allows 1 to {(1 << MAX_BITS) - 1}")
    return num_bits.bit_length()


def packed_size(count: int, width: int) -> int:
    """Bytes that `count` values modulo 2^width take on the wire."""
    return 2 * width * -(-count // _ROWS)


def pack(values: np.ndarray, width: int) -> bytes:
    """uint16 values of any shape, each below 2^width, in `packed_size(values.size, width)` bytes."""
    flat = np.ascontiguousarray(values, "<u2").reshape(-1)
    if width < MAX_BITS and flat.size and int(flat.max()) >> width:
        raise ValueError(f"a value exceeds {width} bits")
    columns = -(-flat.size // _ROWS)
    if flat.size != _ROWS * columns:
        flat = np.concatenate([flat, np.zeros(_ROWS * columns - flat.size, "<u2")])
    rows = flat.reshape(_ROWS, columns)
    words = np.zeros((width, columns), "<u2")
    for row in range(_ROWS):
        word, shift = divmod(row * width, MAX_BITS)
        words[word] |= rows[row] << shift
        if shift + width > MAX_BITS:
            words[word + 1] |= rows[row] >> (MAX_BITS - shift)
    return words.tobytes()


def unpack(message: bytes | memoryview, count: int, width: int) -> np.ndarray:
    """The uint16 [count] values of a packed message."""
    if len(message) != packed_size(count, width):
        raise ProtocolError(
            f"{count} values of {width} bits take {packed_size(count, width)} bytes, "
            f"got {len(message)}"
        )
    words = np.frombuffer(message, "<u2").reshape(width, -1)
    rows = np.empty((_ROWS, words.shape[1]), "<u2")
    mask = np.uint16((1 << width) - 1)
    for row in range(_ROWS):
        word, shift = divmod(row * width, MAX_BITS)
        np.right_shift(words[word], shift, out=rows[row])
        if shift + width > MAX_BITS:
            rows[row] |= words[word + 1] << (MAX_BITS - shift)
        rows[row] &= mask
    flat = rows.reshape(-1)
    if flat[count:].any():
        raise ProtocolError("padding is not zero")
    return flat[:count]
