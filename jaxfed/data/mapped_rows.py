"""A memory-mapped array of examples, whose rows are read only when needed.

    x = mapped(file)                    # np.memmap, read-only
    part = next(gathered(x, [rows]))    # a copy of x[rows]

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
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_AT_ONCE = 2**24  # bytes of several groups that are read together


class _Opened(NamedTuple):
    """An open file, and the address to which its first byte would be mapped."""

    descriptor: int
    origin: int


_OPENED: weakref.WeakKeyDictionary[mmap.mmap, _Opened] = weakref.WeakKeyDictionary()


def mapped(file: Path) -> np.ndarray:
    """Map the array of an `.npy` file, which stays open as long as an array refers to it.

    Raises:
        ValueError: the file is not an `.npy` file, or is damaged.
    """
    with file.open("rb") as stream:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError(f"{file.name} has another version of NumPy's format")
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        if is_fortran or dtype.hasobject:
            raise ValueError(f"{file.name} is not in the order of rows")
        x = np.memmap(stream, dtype, "r", stream.tell(), shape)
        buffer: mmap.mmap = x._mmap  # type: ignore[attr-defined]
        descriptor = os.dup(stream.fileno())
    weakref.finalize(buffer, os.close, descriptor)
    _OPENED[buffer] = _Opened(descriptor, x.ctypes.data - x.offset)
    return x


def is_mapped(x: np.ndarray) -> bool:
    """True for an array of `mapped`, or for successive rows of one."""
    return _opened(x) is not None and x.flags.c_contiguous


def parts(x: np.ndarray) -> Iterator[np.ndarray]:
    """Blocks of rows of x, so that a computation over all values takes little memory."""
    rows = max(1, 2**20 // max(1, math.prod(x.shape[1:])))
    starts = range(0, len(x), rows)
    if is_mapped(x):
        return gathered(x, (np.arange(start, min(start + rows, len(x))) for start in starts))
    return (x[start : start + rows] for start in starts)


def gathered(x: np.ndarray, groups: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield a copy of x[rows] for each of these groups of row numbers."""
    opened, plain = _opened(x) if is_mapped(x) else None, np.asarray(x)
    if opened is None:
        yield from (plain[rows] for rows in groups)
        return
    waiting: list[np.ndarray] = []
    count, most = 0, _AT_ONCE // max(1, _row_bytes(x))
    for rows in groups:
        waiting.append(rows)
        count += np.size(rows)
        if count >= most:
            yield from _read_together(opened, plain, waiting)
            waiting, count = [], 0
    yield from _read_together(opened, plain, waiting)


def _opened(x: np.ndarray) -> _Opened | None:
    buffer = getattr(x, "_mmap", None) if isinstance(x, np.memmap) else None
    return None if buffer is None else _OPENED.get(buffer)


def _row_bytes(x: np.ndarray) -> int:
    return x.dtype.itemsize * math.prod(x.shape[1:])


def _read_together(
    opened: _Opened, x: np.ndarray, groups: Sequence[np.ndarray]
) -> Iterator[np.ndarray]:
    """x[rows] of each group."""
    copied = _read(opened, x, np.concatenate([np.zeros(0, np.int64), *map(np.ravel, groups)]))
    end = 0
    for rows in groups:
        start, end = end, end + np.size(rows)
        yield copied[start:end].reshape(*np.shape(rows), *x.shape[1:])


def _read(opened: _Opened, x: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """x[wanted], with one read call for each run of successive rows."""
    if wanted.size and not 0 <= wanted.min() <= wanted.max() < len(x):
        raise IndexError(f"rows {wanted.min()}..{wanted.max()} of {len(x)}")
    order = np.argsort(wanted, kind="stable")
    ascending = wanted[order]
    copied = np.empty((len(wanted), *x.shape[1:]), x.dtype)
    size = _row_bytes(x)
    first = x.ctypes.data - opened.origin
    starts = np.flatnonzero(np.diff(ascending, prepend=-2) != 1)
    if copied.size:
        into = copied.reshape(-1).view(np.uint8).data
        ends = [*starts[1:].tolist(), len(wanted)]
        for start, end in zip(starts.tolist(), ends, strict=True):
            place = first + size * int(ascending[start])
            _fill(opened.descriptor, into[start * size : end * size], place)
    if (np.diff(order) != 1).any():
        unsorted = np.empty_like(copied)
        unsorted[order] = copied
        copied = unsorted
    return copied


def _fill(descriptor: int, into: memoryview, place: int) -> None:
    while len(into):
        count = os.preadv(descriptor, [into], place)
        if not count:
            raise OSError(errno.EIO, "a file of examples has become shorter since it was opened")
        into, place = into[count:], place + count


def adjoined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenation of arrays [n_i, ...]; without a copy if they are successive rows of a mapped array."""
    first = arrays[0]
    end = first.ctypes.data
    for each in arrays:
        follows = is_mapped(each) and each.ctypes.data == end and each.flags.c_contiguous
        if not (follows and _opened(each) is _opened(first) and each.dtype == first.dtype):
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
        (copied,) = gathered(self._x, [self._indices[rows]])
        return copied

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """A copy of all rows."""
        del copy
        return self[:].astype(dtype or self.dtype, copy=False)
