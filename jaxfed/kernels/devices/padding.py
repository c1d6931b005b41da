"""Padding of host arrays to few lengths, to compile few programs for many lengths.

A program is compiled for fixed shapes. If the number of points differs from call to call (groups of
clients, several methods, sweeps over the number of clients), seconds of compilation for every new
number would outweigh the work itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

_SMALLEST_STEP = 256
_ON_CPU, _ELSEWHERE = 100, 500


def padded_length(n: int, smallest_step: int = _SMALLEST_STEP, parts: int = 32) -> int:
    """The next multiple of `smallest_step`, or of 1/`parts` of the next power of two where that is larger.

    By default these are 256 and, from 8192 on, 1/32: small lengths share programs freely, since their work is
    negligible next to a compilation. Large ones grow by a sixteenth at most, and work quadratic in n by an
    eighth. There are 16 lengths between powers of two.
    """
    step = max(smallest_step, (1 << n.bit_length()) // parts)
    return max(step, -(-n // step) * step)


def padded_rows(array: np.ndarray, fill: float = 0) -> np.ndarray:
    """The array [n, ...] with rows of `fill` added up to `padded_length(n)`, on the host."""
    return padded_to(array, padded_length(len(array)), fill)


def padded_to(array: np.ndarray, length: int, fill: float = 0) -> np.ndarray:
    """The array [n, ...] with rows of `fill` added up to `length`, on the host."""
    array = np.asarray(array)
    missing = length - len(array)
    if not missing:
        return array
    return np.concatenate([array, np.full((missing, *array.shape[1:]), fill, array.dtype)])


def rows_at_once() -> int:
    """Batch size for inference with a network.

    On a CPU activations of small networks should stay in its caches: 10,000 images of 28 x 28 through
    convolutions of 32 and 64 channels take 0.66, 0.72 and 1.31 s in batches of 50, 100 and 500, through
    784-512-512-10 0.09 s with any of them. Accelerators need larger batches.
    """
    return _ON_CPU if jax.default_backend() == "cpu" else _ELSEWHERE


def in_batches(function: Callable[[Any], Any], x: jax.Array | np.ndarray, size: int) -> Any:
    """function(x), which works row by row, in batches of `size` rows of x [n, ...], all of one shape.

    Returns the function's results, arrays [n, ...] or trees of them, on the host.
    """
    examples = x if len(x) else np.zeros((1, *x.shape[1:]), x.dtype)
    parts = []
    for start in range(0, len(examples), size):
        # The last batch repeats examples.
        rows = np.resize(np.arange(start, min(start + size, len(examples))), size)
        parts.append(jax.device_get(function(examples[rows])))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(x)], *parts)
