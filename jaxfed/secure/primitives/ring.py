"""Rings of integers modulo a power of two: distances on the wire, and numbers under masks.

Distances. They are integers modulo 2^w, w = 1 ... 16. A Hamming distance of L bits lies in [0, L], so the
ring must have L + 1 elements at least: w = `bit_length(L)`. In Z_L, the ring of the paper, the distances L
and 0 would be the same.

Dense form: the values, zero-padded to 16 m, are cut into 16 rows of m values, and the bits of a column
(row 0 lowest) fill w 16-bit words. Shifts run along rows, so packing takes a few vector instructions
a value, and 16 m values take 2 w m bytes without gaps.

Numbers. Masks modulo 2^64 hide fixed-point numbers perfectly, and their sums are exact:

    encode(z) = round(z 2^f) mod 2^64,    decode(e) = (e as a signed integer) 2^-f

Range: with p terms each |z| <= 2^(63 - f) / p, so no sum of them can wrap; a larger one is refused.
Error: at most 2^-(f + 1) a term, hence p 2^-(f + 1) for the sum of p terms, plus the rounding of
`decode` to float64 (relative 2^-53). Ring sums themselves are exact.

XCLP's class scores obey ||Z[:, c]||_2 <= sqrt(m) / (1 - alpha) for m labeled points of the class (the
spectral norm of (I - alpha W)^-1): 3.2e4 at m = 1e5, alpha = .99. The default f = 40 allows sums up to
8.4e6 in size with an error of 4.5e-13 a client.
"""

from __future__ import annotations

from dataclasses import dataclass

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


RING_BITS = 64


@dataclass(frozen=True)
class FixedPoint:
    """Numbers with `fraction_bits` = f fractional bits, in sums of at most `num_terms` = p terms."""

    num_terms: int
    fraction_bits: int = 40

    def __post_init__(self) -> None:
        if not 0 <= self.fraction_bits < RING_BITS - 1:
            raise UsageError(f"fraction_bits={self.fraction_bits}: use 0 to {RING_BITS - 2}")
        if self.num_terms < 1:
            raise UsageError(f"num_terms={self.num_terms}: use 1 or more")

    @property
    def largest(self) -> float:
        """The largest |z| that may be encoded: 2^(63 - f) / p, exclusive."""
        return 2.0 ** (RING_BITS - 1 - self.fraction_bits) / self.num_terms

    @property
    def error(self) -> float:
        """The largest error of a sum of p encoded terms: p 2^-(f + 1)."""
        return self.num_terms * 2.0 ** -(self.fraction_bits + 1)

    def encode(self, values: np.ndarray, *, out: np.ndarray | None = None) -> np.ndarray:
        """Real values of any shape as uint64, written to `out` if it is given.

        uint64 values are ring elements already, shares of a number, and are not changed.

        Raises:
            UsageError: a value is not finite or not below `largest` in size.
        """
        if out is None:
            out = np.empty(values.shape, np.uint64)
        if values.dtype == np.uint64:
            np.copyto(out, values)
            return out
        # One comparison refuses NaN as well.
        if values.size and not (-self.largest < values.min() and values.max() < self.largest):
            raise UsageError(
                f"a contribution to secure row sums is not finite or reaches {self.largest:g}, the "
                f"limit with {self.num_terms} clients and fraction_bits={self.fraction_bits}"
            )
        scaled = values.astype(np.float64)
        scaled *= 2.0**self.fraction_bits
        np.rint(scaled, out=scaled)
        np.copyto(out.view(np.int64), scaled, casting="unsafe")  # integers below 2^63
        return out

    def decode(self, encoded: np.ndarray) -> np.ndarray:
        """float64 values of uint64 ring elements."""
        return encoded.view(np.int64) * 2.0**-self.fraction_bits
