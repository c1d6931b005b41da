"""The clients of one round, as a method sees them: padded arrays, or unpadded (ragged) examples.

Ragged storage is for cohorts with very unequal client sizes:

    rows[start_k + i] = x_ki,    i < n_k,    sum_k n_k rows in use, where the padded array has K max_k n_k

`Cohort.x` of one client with 10,000 examples among 99 with 50 has 15,000 rows, and a million if padded. It
has the padded array's shape and dtype, and NumPy and JAX convert it to that array on demand. Code that should
not pay for padding uses the rows, by `apart` and `joined` inside a client's program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from jaxfed.data.dataset import UNLABELED

Array = jax.Array | np.ndarray
R = TypeVar("R")

ROWS_AT_ONCE = 256  # lengths are its multiples
_OF_A_CLASS = 4  # the factor between two lengths that a client's own rows are cut to
_SHORTEST = 64


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("rows", "start", "size"),
    meta_fields=("capacity",),
)
@dataclass(frozen=True)
class Ragged:
    """The examples of some clients, concatenated, or those of one client.

    Attributes:
        rows: [T, ...], the clients' examples, from row 0 on without gaps; rows behind them are arbitrary.
            None inside `apart`'s second half.
        start: int32 [K], each client's first row; a scalar for one client.
        size: int32 [K], n_k, each client's number of examples; a scalar for one client.
        capacity: N, of the padded array that this represents.
    """

    rows: Any
    start: Array
    size: Array
    capacity: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the padded array: (K, N, ...), for one client (N, ...)."""
        return (*np.shape(self.start), self.capacity, *self.rows.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        """Data type of the examples."""
        return np.dtype(self.rows.dtype)

    def __len__(self) -> int:
        """Length of the padded array's first axis."""
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        """The padded array's entries; for one client in a compiled program only these rows are read."""
        if np.ndim(self.start):
            if isinstance(index, int | np.integer):
                return np.asarray(self.of(np.array([index])))[0]
            return np.asarray(self)[index]
        positions = jnp.arange(self.capacity)[index] if isinstance(index, slice) else index
        return self.rows[jnp.clip(self.start + positions, 0, len(self.rows) - 1)]

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        """The padded array, with zeros as padding."""
        del copy
        whole = np.zeros(self.shape, self.dtype)
        for row, rows in enumerate(self.of_clients()):
            whole[row, : len(rows)] = rows
        return whole if dtype is None else whole.astype(dtype)

    def __jax_array__(self) -> jax.Array:
        """The padded array, with zeros as padding; may be traced."""
        return self.padded(jnp.asarray(self.rows), 0)

    def of_clients(self) -> list[np.ndarray]:
        """Each client's own examples [n_k, ...], views of the rows on the host."""
        rows = np.asarray(self.rows)
        starts, sizes = (np.asarray(part).tolist() for part in (self.start, self.size))
        return [rows[first : first + size] for first, size in zip(starts, sizes, strict=True)]

    @property
    def num_rows(self) -> int:
        """Number of rows that are examples: sum_k n_k, on the host."""
        return int(np.sum(self.size))

    def coordinates(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Client of each of the first rows, and the example's index in it: int32 [length], 0 as padding."""
        sizes = np.asarray(self.size)
        client = np.repeat(np.arange(len(sizes)), sizes)
        number = np.arange(len(client)) - np.asarray(self.start)[client]
        room = [(0, length - len(client))]
        return np.pad(client, room).astype(np.int32), np.pad(number, room).astype(np.int32)

    def padded(self, values: Array, fill: Any) -> jax.Array:
        """Pad values of rows, [T', ...] with T' at least the number of examples, to [K, N, ...]; traced."""
        column = jnp.arange(self.capacity).reshape(*(1,) * np.ndim(self.start), self.capacity)
        start, size = (jnp.asarray(part)[..., None] for part in (self.start, self.size))
        taken = jnp.asarray(values)[jnp.clip(start + column, 0, len(values) - 1)]
        is_example = (column < size).reshape(*start.shape[:-1], -1, *(1,) * (values.ndim - 1))
        return jnp.where(is_example, taken, jnp.asarray(fill, taken.dtype))

    def of(self, clients: np.ndarray) -> Ragged:
        """Select clients, in this order, in the same number of rows if they fit; on the host."""
        of_clients = self.of_clients()
        parts = [of_clients[client] for client in clients]
        length = max(len(self.rows), sum(map(len, parts)))
        return stacked(parts, length, self.capacity)

    def with_empty(self, number: int) -> Ragged:
        """Append `number` clients without examples."""
        room = [(0, number)]
        start, size = (np.pad(np.asarray(part), room) for part in (self.start, self.size))
        return replace(self, start=start, size=size)


def stacked(parts: list[np.ndarray], length: int, capacity: int) -> Ragged:
    """Concatenate the clients' examples [n_k, ...] in `length` rows."""
    size = np.array([len(part) for part in parts], np.int32)
    rows = np.zeros((length, *parts[0].shape[1:]), parts[0].dtype)
    if size.any():
        np.concatenate(parts, out=rows[: int(size.sum())])
    return Ragged(rows, (np.cumsum(size) - size).astype(np.int32), size, capacity)


def length_for(count: int, most: int, *, parts: int = 1) -> int:
    """Number of rows for `count` of at most `most` examples: one of few lengths, so that programs are few.

    Lengths grow by the root of two, in multiples of 256 rows for each of `parts` (devices).
    """
    step = ROWS_AT_ONCE * parts
    length = -(-most // step) * step
    while (shorter := int(length * 0.7071) // step * step) >= max(count, step):
        length = shorter
    return length


def apart(x: Any) -> tuple[Any, Any]:
    """Split a cohort's examples into the array that all clients share, and each client's, on axis 0."""
    if isinstance(x, Ragged):
        return x.rows, replace(x, rows=None)
    return None, x


def joined(shared: Any, per_client: Any) -> Any:
    """One client's examples [N, ...], from the two parts that `apart` returns."""
    return replace(per_client, rows=shared) if isinstance(per_client, Ragged) else per_client


def own_examples(x: Array | Ragged) -> list[np.ndarray]:
    """Each client's examples on the host, [N, ...] of a padded array and [n_k, ...] of a ragged one."""
    return x.of_clients() if isinstance(x, Ragged) else list(np.asarray(x))


def on_device(x: Any) -> Any:
    """A cohort's examples on JAX's device; a `Ragged`'s `start` and `size` stay on the host."""
    return replace(x, rows=jnp.asarray(x.rows)) if isinstance(x, Ragged) else jnp.asarray(x)


def by_extent(x: Any, extent: jax.Array, of_length: Callable[[int], R]) -> R:
    """Return `of_length(L)` for an L that holds the client's examples, not far above their number `extent`.

    Code that sorts or draws for every row would otherwise pay for the largest client at each. Results have
    the same shape for all L, and must not depend on it; for a padded array L = N. `of_length` is traced once
    for each of a few lengths; under `vmap` all of them are computed, a third more than the longest.
    """
    if not isinstance(x, Ragged) or x.capacity <= _SHORTEST:
        return of_length(x.shape[0])
    lengths = [x.capacity]
    while lengths[-1] > _SHORTEST:
        lengths.append(-(-lengths[-1] // _OF_A_CLASS))
    which = jnp.sum(extent <= jnp.asarray(lengths), dtype=jnp.int32) - 1
    branches = [partial(of_length, length) for length in lengths]
    return jax.lax.switch(which, branches)


class Cohort(NamedTuple):
    """The sampled clients of one round, stacked and padded to the largest of them.

    Padding (rows with `mask` False) and the order of clients never change a result, except for how sums over
    all points of a cohort are rounded, such as those of XCLP's scores.

    Fields:
        client_id: int32 [K], the client of each row; -1 for a row without one. If a server that has labels
            takes part in a labeling, its examples are rows with numbers below -1.
        x: [K, N, ...], the clients' examples; a client's n_k examples are its first n_k rows. With very
            unequal client sizes a `Ragged`, which represents that array.
        y: int32 [K, N], class labels; -1 where the example is unlabeled or padding.
        mask: bool [K, N], True on examples, False on padding.
    """

    client_id: Array
    x: Array | Ragged
    y: Array
    mask: Array


def padded(cohort: Cohort, multiple: int) -> Cohort:
    """Pad the cohort with empty clients (id -1) to a multiple of clients."""
    missing = -len(cohort.client_id) % multiple
    if not missing:
        return cohort

    def pad(array: Array, fill: int) -> np.ndarray:
        return np.concatenate([array, np.full((missing, *array.shape[1:]), fill, array.dtype)])

    x = cohort.x
    return Cohort(
        client_id=pad(cohort.client_id, -1),
        x=x.with_empty(missing) if isinstance(x, Ragged) else pad(x, 0),
        y=pad(cohort.y, UNLABELED),
        mask=pad(cohort.mask, False),
    )


def without_labels(cohort: Cohort) -> Cohort:
    """The cohort without any labels."""
    return cohort._replace(y=np.full_like(np.asarray(cohort.y), UNLABELED))


def chosen(cohort: Cohort, indices: np.ndarray) -> Cohort:
    """Select the cohort's clients at these indices, in this order; on the host."""
    x = cohort.x
    ids, y, mask = (np.asarray(part)[indices] for part in (cohort.client_id, cohort.y, cohort.mask))
    return Cohort(ids, x.of(indices) if isinstance(x, Ragged) else np.asarray(x)[indices], y, mask)


def arranged(cohort: Cohort, multiple: int = 1) -> Cohort:
    """Sort the cohort by ascending ids, and pad it with empty clients (id -1), last, to a multiple.

    Sums and ties between equal distances depend on the order, so it is always the same.
    """
    ids = np.asarray(cohort.client_id)
    order = np.argsort(np.where(ids < 0, np.iinfo(np.int32).max, ids), kind="stable")
    if (order != np.arange(len(ids))).any():
        cohort = chosen(cohort, order)
    return padded(cohort, multiple)
