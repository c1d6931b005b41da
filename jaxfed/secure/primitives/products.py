"""Products of large integers modulo m: many powers of one base, and products of many subsets.

Powers b^e mod m of one base come from a table, one multiplication a window of the exponent. With windows of c
bits, e = sum_i d_i 2^(c i),

    b^e = prod_i table[i][d_i],     table[i][d] = b^(d 2^(c i)) mod m,

costs ceil(|e| / c) multiplications a power and 2^c a window for the table. (Brickell, Gordon, McCurley
and Wilson, Eurocrypt 1992.) Time and memory access depend on the exponents: cache attacks by other
processes on the machine are outside the threat model.

A matrix selects subsets of the same numbers: prod_{l: x_l = 1} c_l mod m for every row x. One row alone takes
L / 2 multiplications. Here g rows are processed together. The column of their bits at l is a number of g
bits, which selects one of 2^g buckets. Each c_l is multiplied into its bucket, with L multiplications for all
g rows. Row i's product is that of the buckets with bit i. The buckets are folded from the top: the upper
half's product is that of the highest row, and the halves multiplied entry by entry are the buckets of the
other rows. Folding takes 2^(g + 1) multiplications; the first one into each bucket is free. In total that is
(L + 2^g) / g per row: 512 instead of 2,048 at L = 4096, g = 9.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


_MAX_GROUP = 12


def subset_products(rows: np.ndarray, numbers: Sequence[mpz], modulus: mpz) -> list[mpz]:
    """prod_{l: rows[i, l] = 1} numbers[l] mod `modulus` for every i; rows uint8 [V, L] of 0 and 1.

    Cost: about V (L + 2^g) / g multiplications, g the best size of a group; memory 2^g numbers.
    """
    num_rows, num_columns = rows.shape
    if not num_rows:
        return []
    size = min(
        range(1, _MAX_GROUP + 1), key=lambda size: -(-num_rows // size) * (num_columns + 2**size)
    )
    products = []
    for start in range(0, num_rows, size):
        group = rows[start : start + size].astype(np.int64)
        patterns = (1 << np.arange(len(group))) @ group
        products += _folded(_buckets(patterns.tolist(), numbers, modulus, len(group)), modulus)
    return products


def product(numbers: Iterable[mpz], modulus: mpz) -> mpz:
    """prod_l numbers[l] mod `modulus`."""
    result = mpz(1)
    for number in numbers:
        result = result * number % modulus
    return result


def _buckets(patterns: list[int], numbers: Sequence[mpz], modulus: mpz, size: int) -> list[mpz]:
    buckets = [mpz(1)] * (1 << size)
    for pattern, number in zip(patterns, numbers, strict=True):
        buckets[pattern] = buckets[pattern] * number % modulus
    return buckets


def _folded(buckets: list[mpz], modulus: mpz) -> list[mpz]:
    """The product of the buckets with bit i, for every i, lowest first."""
    products = []
    while len(buckets) > 1:
        half = len(buckets) // 2
        products.append(product(buckets[half:], modulus))
        buckets = [
            low * high % modulus for low, high in zip(buckets[:half], buckets[half:], strict=True)
        ]
    return products[::-1]
