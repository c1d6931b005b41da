"""Packing of many small numbers into one large integer: digits to base L + 1.

Hamming distances of L bits lie in [0, L]. Those of up to S points fill one plaintext

    V = sum_i v_i (L + 1)^i,     0 <= v_i <= L,

and sums that keep every v_i in its range never carry. V < (L + 1)^S <= 2^(|N| - 1) < N: S = 170 for L =
4096 and a modulus of 2,048 bits. (Slots of whole bits, w = bit_length(L), hold 157.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import gmpy2
import numpy as np
from gmpy2 import mpz

from jaxfed.errors import ProtocolError, UsageError
from jaxfed.secure.primitives.ring import ring_bits

_GROUP = 8  # bits per table of subset sums


def balanced(count: int, size: int) -> Iterator[range]:
    """0 ... count - 1 in the fewest pieces of at most `size`, whose sizes differ by at most one."""
    num_pieces = -(-count // size)
    for piece in range(num_pieces):
        yield range(count * piece // num_pieces, count * (piece + 1) // num_pieces)


class Packing:
    """Packing of digits 0 ... L into a plaintext.

    Attributes:
        num_bits: L.
        slots: S, the number of digits in a plaintext.
    """

    def __init__(self, num_bits: int, key_bits: int) -> None:
        ring_bits(num_bits)  # distances travel as uint16
        self.num_bits = num_bits
        self._radix = mpz(num_bits + 1)
        self.slots = 0
        power, limit = self._radix, mpz(1) << (key_bits - 1)
        while power <= limit:
            self.slots += 1
            power *= self._radix
        if not self.slots:
            raise UsageError(f"key_bits={key_bits}: too few for a distance of {num_bits} bits")

    def ones(self, count: int) -> mpz:
        """sum_i (L + 1)^i, i < count: adding v of it adds v to every slot."""
        return (self._radix**count - 1) // (self._radix - 1)

    def packed_columns(self, bits: np.ndarray) -> list[mpz]:
        """sum_i bits[i, l] (L + 1)^i for every l, bits uint8 [n, L], n <= S: L integers."""
        if len(bits) > self.slots:
            raise UsageError(f"a plaintext has {self.slots} slots, got {len(bits)} points")
        groups = np.packbits(bits, axis=0, bitorder="little")
        columns = [mpz(0)] * bits.shape[1]
        for sums, patterns in zip(self._subset_sums, groups.tolist(), strict=False):
            columns = [
                column + sums[pattern] for column, pattern in zip(columns, patterns, strict=True)
            ]
        return columns

    def digits(self, values: Sequence[mpz], count: int) -> np.ndarray:
        """The digits v_0 ... v_{count - 1} of every value, count <= S: uint16 [len(values), count]."""
        limit = self._radix**count
        if any(not 0 <= value < limit for value in values):
            raise ProtocolError(f"the shares give no {count} distances: they do not fit together")
        radix = int(self._radix)
        per_word = 1
        while radix ** (per_word + 1) < 1 << 63:
            per_word += 1
        divisor = self._radix**per_word
        words = np.empty((len(values), -(-count // per_word)), np.int64)
        for row, value in zip(words, values, strict=True):
            rest = value
            for position in range(len(row)):
                rest, row[position] = gmpy2.f_divmod(rest, divisor)
        digits = words[:, :, None] // radix ** np.arange(per_word) % radix
        return digits.reshape(len(values), -1)[:, :count].astype(np.uint16)

    @cached_property
    def _subset_sums(self) -> list[list[mpz]]:
        """For every eight slots, the sums of all subsets of their powers."""
        tables = []
        for start in range(0, self.slots, _GROUP):
            sums = [mpz(0)]
            for slot in range(start, start + _GROUP):
                power = self._radix**slot
                sums += [power + value for value in sums]
            tables.append(sums)
        return tables
