"""Packed counts of up to K: digits to base K + 1, as many as fit into an element of Z_{2^64}.

A sum over K clients of marks 0 and 1 lies in [0, K], so a single count needs no more than the modulus K + 1.
S of them share an element,

    V = sum_i v_i (K + 1)^i,     0 <= v_i <= K,     S the largest with (K + 1)^S <= 2^64.

Adding elements adds digits without carries, and the sum modulo 2^64 is exact. S = 24 for K = 5, 9 for K =
100, 6 for K = 1000.
"""

from __future__ import annotations

import numpy as np

from jaxfed.errors import ProtocolError, UsageError

_RING = 1 << 64


def slots(num_terms: int) -> int:
    """S for sums of `num_terms` = K marks."""
    if not 1 <= num_terms < _RING >> 1:
        raise UsageError(f"num_terms={num_terms}: use 1 to 2^63 - 1")
    number, power = 0, num_terms + 1
    while power <= _RING:
        number, power = number + 1, power * (num_terms + 1)
    return number


def num_elements(count: int, num_terms: int) -> int:
    """Number of elements that hold `count` counts."""
    return -(-count // slots(num_terms))


def pack(marks: np.ndarray, num_terms: int) -> np.ndarray:
    """uint64 [`num_elements`] of marks 0 and 1, of any shape."""
    size = slots(num_terms)
    digits = np.zeros(num_elements(marks.size, num_terms) * size, np.uint64)
    digits[: marks.size] = marks.reshape(-1)
    powers = np.array([(num_terms + 1) ** slot for slot in range(size)], np.uint64)
    return digits.reshape(-1, size) @ powers


def unpack(elements: np.ndarray, count: int, num_terms: int) -> np.ndarray:
    """The counts, int64 [count], of a sum of packed marks."""
    radix = num_terms + 1
    rest = elements.astype(np.uint64)
    digits = np.empty((len(elements), slots(num_terms)), np.int64)
    for slot in range(digits.shape[1]):
        digits[:, slot] = rest % np.uint64(radix)
        rest //= np.uint64(radix)
    flat = digits.reshape(-1)
    if rest.any() or flat[count:].any():
        raise ProtocolError("a sum of votes that no votes have")
    return flat[:count]
