"""Products of many subsets of the same numbers: prod_{l: x_l = 1} c_l mod m for every row x of a matrix.

One row alone takes L / 2 multiplications. Here g rows are processed together. The column of their bits at l
is a number of g bits, which selects one of 2^g buckets. Each c_l is multiplied into its bucket, with L
multiplications for all g rows. Row i's product is that of the buckets with bit i. The buckets are folded from
the top: the upper half's product is that of the highest row, and the halves multiplied entry by entry are the
buckets of the other rows. Folding takes 2^(g + 1) multiplications; the first one into each bucket is free. In
total that is (L + 2^g) / g per row: 512 instead of 2,048 at L = 4096, g = 9.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from gmpy2 import mpz

from jaxfed.secure.primitives.blocks import ranges

_MAX_GROUP = 12


def subset_products(rows: np.ndarray, numbers: Sequence[mpz], modulus: mpz) -> list[mpz]:
    """prod_{l: rows[i, l] = 1} numbers[l] mod `modulus` for every i; rows uint8 [V, L] of 0 and 1.

    Cost: about V (L + 2^g) / g multiplications, g the best size of a group; memory 2^g numbers.
    """
    num_rows, num_columns = rows.shape
    if not num_rows:
        return []
    size = min(
        range(1, _MAX_GROUP + 1),
        key=lambda size: -(-num_rows // size) * (num_columns + 2**size),
    )
    products = []
    for group in ranges(num_rows, size):
        bits = rows[group.start : group.stop].astype(np.int64)
        patterns = (1 << np.arange(len(group))) @ bits
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
