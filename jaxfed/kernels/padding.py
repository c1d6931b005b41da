"""Lengths that arrays on the host are padded to, so that few programs are compiled for many lengths.

A program is compiled for shapes. Where the number of points differs from call to call (groups of
clients, methods side by side, sweeps over the number of clients), seconds of compilation for every new
number would outweigh the work itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

_SMALLEST_STEP = 256
_ON_CPU, _ELSEWHERE = 100, 500


def padded_length(n: int) -> int:
    """The next multiple of 256, and from 8192 on of a 32nd of the next power of two.

    Small lengths share programs freely, since their work is nothing beside a compilation; large ones
    grow by a sixteenth at most, an eighth of what is quadratic in n. An octave has 16 lengths.
    """
    step = max(_SMALLEST_STEP, 1 << max(0, n.bit_length() - 5))
    return max(step, -(-n // step) * step)


def padded_rows(array: np.ndarray, fill: float = 0) -> np.ndarray:
    """The array [n, ...] with rows of `fill` added up to `padded_length(n)`, on the host."""
    return padded_to(array, padded_length(len(array)), fill)


def padded_to(array: np.ndarray, length: int, fill: float = 0) -> np.ndarray:
    """The array [n, ...] with rows of `fill` added up to this length, on the host."""
    array = np.asarray(array)
    missing = length - len(array)
    if not missing:
        return array
    return np.concatenate([array, np.full((missing, *array.shape[1:]), fill, array.dtype)])


def rows_at_once() -> int:
    """How many examples a network is given at a time where it only answers.

    On a CPU so many that activations of small networks stay in its caches: 10,000 images of 28 x 28 through
    convolutions of 32 and 64 channels take 0.66, 0.72 and 1.31 s by 50, 100 and 500, through 784-512-512-10
    0.09 s each way. An accelerator wants more.
    """
    return _ON_CPU if jax.default_backend() == "cpu" else _ELSEWHERE


def in_batches(function: Callable[[Any], Any], x: jax.Array | np.ndarray, size: int) -> Any:
    """function(x) row by row, for `size` rows of x [n, ...] at a time, all batches of one shape.

    Returns what the function returns, arrays [n, ...] or trees of them, on the host.
    """
    examples = x if len(x) else np.zeros((1, *x.shape[1:]), x.dtype)
    parts = []
    for start in range(0, len(examples), size):
        # The last batch repeats examples.
        rows = np.resize(np.arange(start, min(start + size, len(examples))), size)
        parts.append(jax.device_get(function(examples[rows])))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(x)], *parts)
