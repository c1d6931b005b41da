"""A versioned array [M, ...]: updates write a few rows in place, and older versions stay readable.

    table = RowTable(num_rows, first)            every row is `first`
    rows = table[indices]                        NumPy rows [K, ...], a copy
    after = table.replaced(indices, rows)        a new version; `table` still reads as before

All versions of a table share one array. The newest version is the array itself; an older one stores only the
old values of rows that have changed since. A version without references costs nothing. A state that contains
tables is immutable like any other, but a round copies the rows of its cohort, not those of all clients.

Rows of the array are in the order in which they are first written, so those of a cohort are adjacent, and
memory is allocated only for rows that have been written. A table of typed PRNG keys stores their words.

Cost: `replaced` copies K old rows and writes K new ones, for any M. Reading an old version searches the rows
that have changed since.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections.abc import Iterator
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_MERGED_FROM = 4096  # rows of patches that are merged at least
_BLOCK = 2**24  # bytes of rows that are read at a time

_Patch = tuple[np.ndarray, np.ndarray]  # indices int64 [K], rows [K, ...]


class RowTable:
    """One version of the rows; a leaf of a state.

    Attributes:
        shape: M and the shape of a row.
        dtype: type of the rows; a key type for typed keys.
    """

    def __init__(self, num_rows: int, first: Any) -> None:
        """Make a table with `first` in every row."""
        self.dtype = first.dtype
        self.is_keys = jnp.issubdtype(first.dtype, jax.dtypes.prng_key)
        self._impl = jax.random.key_impl(first) if self.is_keys else None
        words = np.asarray(jax.random.key_data(first) if self.is_keys else first)
        self.shape = (num_rows, *first.shape)
        self._array = _Array(num_rows, words)
        self._version, self._patches, self._merged = 0, list[_Patch](), _MERGED_FROM

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def first(self) -> np.ndarray:
        """The value of all rows that have not been written; for keys, its words."""
        return self._array.first

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, indices: Any) -> Any:
        """Return the rows of an integer or of an array of integers, as indexing an array does."""
        indices = np.asarray(indices)
        rows = self.words(indices.reshape(-1))
        rows = rows.reshape(*indices.shape, *rows.shape[1:])
        return self.from_words(rows)

    def from_words(self, words: np.ndarray) -> Any:
        """Return rows of words as typed keys if the table has typed keys, else the rows."""
        return (
            jax.random.wrap_key_data(jnp.asarray(words), impl=self._impl) if self.is_keys else words
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All rows, a copy; for keys, their words."""
        del copy
        return self.words(np.arange(len(self))).astype(dtype or self.first.dtype, copy=False)

    def words(self, indices: np.ndarray) -> np.ndarray:
        """Return the rows at indices [K]; for keys, their words."""
        with self._array.lock:
            rows = self._array.read(indices)
            for patched, old in reversed(self._patches):
                order = np.argsort(patched, kind="stable")
                position = np.minimum(
                    np.searchsorted(patched, indices, sorter=order), len(patched) - 1
                )
                is_patched = patched[order[position]] == indices
                rows[is_patched] = old[order[position[is_patched]]]
        return rows

    def replaced(self, indices: Any, rows: Any) -> RowTable:
        """Return the version with other rows [K, ...] at these indices, int [K]."""
        indices = np.asarray(indices, np.int64)
        rows = np.asarray(jax.random.key_data(rows) if self.is_keys else rows)
        after = object.__new__(RowTable)
        after.__dict__ |= self.__dict__
        array = self._array
        if not len(indices):
            return self
        with array.lock:
            if self._version == array.version:
                after._patches, after._merged = [], _MERGED_FROM
                before = indices, array.read(indices)
                array.older.add(self)
                for version in array.older:
                    version._add(before)
                array.write(indices, rows)
                after._version = array.version
            else:  # a second future of the same state
                after._version, after._patches = -1, [(indices, rows), *self._patches]
                after._merge()
                array.older.add(after)
        return after

    def changed(self) -> np.ndarray:
        """Return the indices of rows that may differ from `first`, ascending, int64 [W]."""
        with self._array.lock:
            return np.unique(
                np.concatenate([*self._array.written, *(indices for indices, _ in self._patches)])
            )

    def blocks(self, indices: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield indices and rows in blocks of 16 MiB; the table may be written meanwhile."""
        size = rows_at_once(self.first)
        for start in range(0, len(indices), size):
            part = indices[start : start + size]
            yield part, self.words(part)

    def anew(self, first: np.ndarray) -> RowTable:
        """Return a table of the same form with `first` (of keys, the words) in every row."""
        return RowTable(len(self), self.from_words(first))

    def _add(self, patch: _Patch) -> None:
        self._patches.append(patch)
        self._merge()

    def _merge(self) -> None:
        """Merge patches, keeping the first row of each index, if they have doubled since the last merge."""
        size = sum(len(indices) for indices, _ in self._patches)
        if len(self._patches) == 1 or size < self._merged:
            return
        indices, rows = (np.concatenate(part) for part in zip(*self._patches, strict=True))
        indices, index = np.unique(indices, return_index=True)
        self._patches = [(indices, rows[index])]
        self._merged = max(_MERGED_FROM, 2 * len(indices))


def rows_at_once(row: np.ndarray) -> int:
    """Number of such rows that are read or written at a time: 16 MiB of them."""
    return max(1, _BLOCK // max(1, row.nbytes))


class _Array:
    """The array that all versions share."""

    def __init__(self, num_rows: int, first: np.ndarray) -> None:
        self.shape, self.first = (num_rows, *first.shape), first
        self.rows: np.ndarray | None = None
        self.slots = np.zeros(0, np.int32)  # of each index one more than its row's, 0 = not written
        self.num_written, self.written = 0, [np.zeros(0, np.int64)]
        self.version = 0
        self.older: weakref.WeakSet[RowTable] = weakref.WeakSet()
        self.lock = threading.Lock()

    def read(self, indices: np.ndarray) -> np.ndarray:
        rows = np.repeat(self.first[None], len(indices), axis=0)
        if self.rows is not None:
            slots = self.slots[indices]
            is_written = slots > 0
            rows[is_written] = self.rows[slots[is_written] - 1]
        return rows

    def write(self, indices: np.ndarray, rows: np.ndarray) -> None:
        if self.rows is None:
            self.rows = _allocated(self.shape, self.first.dtype)
            self.slots = np.zeros(self.shape[0], np.int32)
        new = indices[self.slots[indices] == 0]
        if len(new):
            order = np.arange(len(new))
            self.slots[new] = order
            new = new[self.slots[new] == order]  # an index may occur twice
            self.slots[new] = self.num_written + 1 + np.arange(len(new))
            self.num_written += len(new)
            self.written.append(new)
        self.rows[self.slots[indices] - 1] = rows
        self.version += 1


def _allocated(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array whose pages are allocated when written."""
    num_bytes = max(1, prod(shape) * dtype.itemsize)
    # NumPy asks for huge pages, and a round would clear 2 MiB for each new row.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return np.ndarray(shape, dtype, mmap.mmap(-1, num_bytes, flags=flags))
