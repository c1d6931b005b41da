"""Many powers of one base: b^e mod m from a table, one multiplication a window of the exponent.

With windows of c bits, e = sum_i d_i 2^(c i),

    b^e = prod_i table[i][d_i],     table[i][d] = b^(d 2^(c i)) mod m,

costs ceil(|e| / c) multiplications a power and 2^c a window for the table. (Brickell, Gordon, McCurley
and Wilson, Eurocrypt 1992.) Time and memory access depend on the exponents: cache attacks by other
processes on the machine are outside the threat model.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np
from gmpy2 import mpz

_MAX_WINDOW = 10  # bits; the table has 2^10 numbers a window at most


class FixedBase:
    """Powers of one base.

    Memory: ceil(|e| / c) 2^c numbers below m, from the first power on: 20 MB for 1,500 powers of 1,152
    bits modulo 4,096 bits.
    """

    def __init__(self, base: mpz, modulus: mpz, exponent_bits: int, num_powers: int) -> None:
        self._base, self._modulus = base, modulus
        self._exponent_bits, self._num_powers = exponent_bits, num_powers
        self._window = min(
            range(1, _MAX_WINDOW + 1),
            key=lambda window: -(-exponent_bits // window) * (2**window + num_powers),
        )

    def digits(self, exponents: bytes) -> list[list[int]]:
        """The windows of exponents of |e| / 8 little-endian bytes each, lowest first."""
        size = self._exponent_bits // 8
        octets = np.frombuffer(exponents, np.uint8).reshape(-1, size)
        bits = np.unpackbits(octets, axis=1, bitorder="little")
        bits = np.pad(bits, ((0, 0), (0, -self._exponent_bits % self._window)))
        windows = bits.reshape(len(bits), -1, self._window)
        return (windows @ (1 << np.arange(self._window))).tolist()

    def power(self, digits: Iterable[int]) -> mpz:
        """b^e mod m for the windows of e."""
        modulus, result = self._modulus, mpz(1)
        for powers, digit in zip(self._table, digits, strict=True):
            result = result * powers[digit] % modulus
        return result

    @cached_property
    def _table(self) -> list[list[mpz]]:
        table, step = [], self._base
        for _ in range(-(-self._exponent_bits // self._window)):
            powers = [mpz(1)]
            for _ in range(1 << self._window):
                powers.append(powers[-1] * step % self._modulus)
            step = powers.pop()  # b^(2^(c (i + 1)))
            table.append(powers)
        return table
