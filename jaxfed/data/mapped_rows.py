"""Examples in a memory-mapped file, read where they are needed and not kept in memory.

The system counts pages of a mapped file as this process's memory until they are dropped. What has been
copied is therefore released: another access reads it from the page cache, or from the disk.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

_AT_ONCE = 2**24  # bytes read between releases


def is_mapped(x: np.ndarray) -> bool:
    """True for an array, or a part of one, that lies in a file."""
    return isinstance(x, np.memmap) and getattr(x, "_mmap", None) is not None


def release(x: np.ndarray) -> None:
    """Drop the pages of a mapped array from this process's memory; nothing for other arrays."""
    if is_mapped(x) and hasattr(mmap, "MADV_DONTNEED"):
        x._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


def parts(x: np.ndarray) -> Iterator[np.ndarray]:
    """Some rows of x at a time, so that what is computed of all its values takes little memory."""
    rows = max(1, 2**20 // max(1, math.prod(x.shape[1:])))
    for start in range(0, len(x), rows):
        yield x[start : start + rows]
        release(x)


def gathered(x: np.ndarray, groups: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """Copies x[rows] for each of these groups of rows, releasing mapped pages in between."""
    plain, num_bytes = np.asarray(x), 0
    for rows in groups:
        part = plain[rows]
        yield part
        num_bytes += part.nbytes
        if num_bytes >= _AT_ONCE:
            release(x)
            num_bytes = 0
    release(x)


def adjoined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenation of arrays [n_i, ...]; without a copy where they are successive rows of a mapped one."""
    first = arrays[0]
    end = first.ctypes.data
    for each in arrays:
        follows = is_mapped(each) and each.ctypes.data == end and each.flags.c_contiguous
        if not (follows and each._mmap is first._mmap and each.dtype == first.dtype):  # type: ignore[attr-defined]
            return np.concatenate(arrays) if len(arrays) > 1 else first
        end += each.nbytes
    shape = (sum(map(len, arrays)), *first.shape[1:])
    return np.lib.stride_tricks.as_strided(first, shape, first.strides, subok=True, writeable=False)


class MappedRows:
    """x[indices] [m, ...] of a mapped array, of which rows are read when they are asked for.

    Attributes:
        shape, dtype: of x[indices].
    """

    def __init__(self, x: np.ndarray, indices: np.ndarray) -> None:
        self._x, self._indices = x, indices
        self.shape, self.dtype = (len(indices), *x.shape[1:]), x.dtype

    def __len__(self) -> int:
        """m."""
        return len(self._indices)

    def __getitem__(self, rows: Any) -> np.ndarray:
        """A copy of some rows."""
        (copied,) = gathered(self._x, [self._indices[rows]])
        return copied

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """A copy of all rows."""
        del copy
        return self[:].astype(dtype or self.dtype, copy=False)
