"""Pi from a secret of 256 bits, the size of the seed (Algorithm 1, lines 1 to 3).

Entry (l, i) of Pi is Phi^-1((m + 1/2) / 2^53), Phi the normal distribution function and m the upper 53 bits
of word l d' + i of the keystream, d' = d rounded up to a whole number of AES blocks. If AES-256 in counter
mode is indistinguishable from random bytes, Pi is indistinguishable from independent normals (rounded to 53
bits, |z| < 8.3). A key of `jax.random` would be too short: it has 64 bits.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from jaxfed.secure.primitives.prg import Keystream

_ROWS = 256  # made at a time
_WORDS_PER_BLOCK = 2  # words of 8 bytes in an AES block


def hyperplanes(seed: bytes, num_bits: int, dim: int) -> np.ndarray:
    """Pi, float32 [num_bits, dim]: independent standard normals.

    Row l depends on the seed, l and `dim` only. Parties on different machines may differ in an entry's
    last place. This matters only to vectors that are as close to a hyperplane.

    Args:
        seed: 32 bytes, used for nothing else.
        num_bits: L.
        dim: d.

    Raises:
        ValueError: a seed of another length.

    Cost: 20 ns an entry.
    """
    stream = Keystream(seed)
    padded = -(-dim // _WORDS_PER_BLOCK) * _WORDS_PER_BLOCK
    planes = np.empty((num_bits, dim), np.float32)
    for start in range(0, num_bits, _ROWS):
        rows = planes[start : start + _ROWS]
        words = stream.words(len(rows) * padded).reshape(len(rows), padded)[:, :dim]
        rows[:] = special.ndtri(((words >> np.uint64(11)) + 0.5) * 2.0**-53)
    return planes
