"""Lengths that arrays on the host are padded to, so that few programs are compiled for many lengths.

A program is compiled for shapes. Where the number of points differs from call to call (groups of
clients, methods side by side, sweeps over the number of clients), seconds of compilation for every new
number would outweigh the work itself.
"""

from __future__ import annotations

import numpy as np

_SMALLEST_STEP = 256


def padded_length(n: int) -> int:
    """The next multiple of 256, and from 8192 on of a 32nd of the next power of two.

    Small lengths share programs freely, since their work is nothing beside a compilation; large ones
    grow by a sixteenth at most, an eighth of what is quadratic in n. An octave has 16 lengths.
    """
    step = max(_SMALLEST_STEP, 1 << max(0, n.bit_length() - 5))
    return max(step, -(-n // step) * step)


def padded_rows(array: np.ndarray, fill: float = 0) -> np.ndarray:
    """The array [n, ...] with rows of `fill` added up to `padded_length(n)`, on the host."""
    array = np.asarray(array)
    missing = padded_length(len(array)) - len(array)
    if not missing:
        return array
    return np.concatenate([array, np.full((missing, *array.shape[1:]), fill, array.dtype)])
