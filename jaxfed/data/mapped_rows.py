"""A memory-mapped array of examples, whose rows are read only when needed.

    x = mapped(file)             # np.memmap, read-only
    part = gathered(x, rows)     # a copy of x[rows]

`x[rows]` would page in megabytes around each row, which count as memory of this process, and would crash it
if another process truncated the file. Rows are therefore read by file calls, one for each run of successive
rows.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_AT_ONCE = 2**22  # bytes of rows that are read together, which caches hold
# Mapping -> descriptor of its file, and the address to which the file's first byte would be mapped.
_OPENED: weakref.WeakKeyDictionary[mmap.mmap, tuple[int, int]] = weakref.WeakKeyDictionary()


def mapped(file: Path) -> np.ndarray:
    """Map the array of an `.npy` file, which stays open as long as an array refers to it."""
    if not file.is_file():
        raise ValueError(f"{file.name} is not a regular file")  # a FIFO would wait
    x = np.lib.format.open_memmap(file, mode="r")
    if not x.flags.c_contiguous:
        raise ValueError(f"{file.name} is not in the order of rows")
    buffer: mmap.mmap = x._mmap  # type: ignore[attr-defined]
    descriptor = os.open(file, os.O_RDONLY)
    weakref.finalize(buffer, os.close, descriptor)
    _OPENED[buffer] = descriptor, x.ctypes.data - x.offset
    return x


def is_mapped(x: np.ndarray) -> bool:
    """True for an array of `mapped`, or for successive rows of one."""
    return getattr(x, "_mmap", None) in _OPENED and x.flags.c_contiguous


def parts(x: np.ndarray) -> Iterator[np.ndarray]:
    """Blocks of rows of x, so that a computation over all values takes little memory."""
    rows = max(1, 2**20 // max(1, math.prod(x.shape[1:])))
    for start in range(0, len(x), rows):
        end = min(start + rows, len(x))
        yield gathered(x, np.arange(start, end)) if is_mapped(x) else x[start:end]


def gathered(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return a copy of x[rows], with one read call for each run of successive rows.

    `rows` is a number or an array of any shape.
    """
    if not is_mapped(x):
        return np.asarray(x)[rows]
    (descriptor, origin), wanted = _OPENED[x._mmap], np.ravel(rows)  # type: ignore[attr-defined]
    if wanted.size and not 0 <= wanted.min() <= wanted.max() < len(x):
        raise IndexError(f"rows {wanted.min()}..{wanted.max()} of {len(x)}")
    copied = np.empty((len(wanted), *x.shape[1:]), x.dtype)
    order = np.argsort(wanted, kind="stable")
    starts = np.flatnonzero(np.diff(wanted[order], prepend=-2) != 1)
    into, size = copied.reshape(-1).view(np.uint8).data, copied[:1].nbytes
    offsets = x.ctypes.data - origin + size * wanted[order[starts]]
    ends = [*starts.tolist(), len(wanted)][1:]
    for start, end, offset in zip(starts.tolist(), ends, offsets.tolist(), strict=True):
        part = into[start * size : end * size]
        while len(part):
            count = os.preadv(descriptor, [part], offset)
            if not count:
                wrong = "a file of examples has become shorter since it was opened"
                raise OSError(errno.EIO, wrong)
            part, offset = part[count:], offset + count
    if (np.diff(order) != 1).any():
        copied[order] = copied.copy()
    return copied.reshape(*np.shape(rows), *x.shape[1:])


def copy_rows(x: np.ndarray, rows: np.ndarray, target: np.ndarray, indices: np.ndarray) -> None:
    """Copy x[rows] to target[indices], some megabytes at a time; int [n] both.

    The target may have several leading axes; `indices` count along them together.
    """
    leading = target.shape[: target.ndim - x.ndim + 1]
    target = target.reshape(math.prod(leading), *x.shape[1:])
    step = max(1, _AT_ONCE // max(1, target[:1].nbytes))
    for start in range(0, len(rows), step):
        end = start + step
        target[indices[start:end]] = gathered(x, rows[start:end])


def adjoined(arrays: Sequence[Any]) -> np.ndarray:
    """Concatenation of arrays [n_i, ...]; without a copy if they are successive rows of a mapped array."""
    first = arrays[0]
    end = first.ctypes.data
    for each in arrays:
        if not (is_mapped(each) and each._mmap is first._mmap and each.ctypes.data == end):
            return np.concatenate(arrays) if len(arrays) > 1 else first
        end += each.nbytes
    shape = (sum(map(len, arrays)), *first.shape[1:])
    return np.lib.stride_tricks.as_strided(first, shape, first.strides, subok=True, writeable=False)


class MappedRows:
    """Lazy x[indices] [m, ...] of a memory-mapped array: rows are read when they are indexed.

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
        return gathered(self._x, self._indices[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """A copy of all rows."""
        del copy
        return self[:].astype(dtype or self.dtype, copy=False)
