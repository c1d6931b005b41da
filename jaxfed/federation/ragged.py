"""Examples of clients that have very different numbers of them, without room for what they do not have.

    rows[start_k + i] = x_ki,    i < n_k,    sum_k n_k rows in use, where the padded array has K max_k n_k

`Cohort.x` of one client of 10,000 examples among 99 of 50 is 15,000 rows so, and a million padded. It reads
like the padded array [K, N, ...]: it has its shape and dtype, and NumPy and JAX make that array of it where
one is asked for. What should not pay for padding takes rows instead, by `apart` and `joined` inside a
client's program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

Array = jax.Array | np.ndarray
Result = TypeVar("Result")

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
    """The examples of some clients behind one another, or of one of them.

    Attributes:
        rows: [T, ...], the clients' examples, from row 0 on without gaps; what is behind them means nothing.
            None inside `apart`'s second half.
        start: int32 [K], each client's first row; a scalar of one client.
        size: int32 [K], n_k, how many it has; likewise.
        capacity: N, of the padded array that this stands for.
    """

    rows: Any
    start: Array
    size: Array
    capacity: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the padded array: (K, N, ...), of one client (N, ...)."""
        return (*np.shape(self.start), self.capacity, *self.rows.shape[1:])

    @property
    def ndim(self) -> int:
        """Axes of the padded array."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype:
        """Of the examples."""
        return np.dtype(self.rows.dtype)

    def __len__(self) -> int:
        """The first axis of the padded array."""
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        """The padded array's entries; of one client in a compiled program these rows alone are read."""
        if np.ndim(self.start):
            if isinstance(index, int | np.integer):
                return np.asarray(self.of(np.array([index])))[0]
            return np.asarray(self)[index]
        places = jnp.arange(self.capacity)[index] if isinstance(index, slice) else index
        return self.rows[jnp.clip(self.start + places, 0, len(self.rows) - 1)]

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        """The padded array, with zeros where there is nothing."""
        del copy
        whole = np.zeros(self.shape, self.dtype)
        for row, own in enumerate(self.of_clients()):
            whole[row, : len(own)] = own
        return whole if dtype is None else whole.astype(dtype)

    def __jax_array__(self) -> jax.Array:
        """The padded array, with zeros where there is nothing; may be traced."""
        return self.padded(jnp.asarray(self.rows), 0)

    def of_clients(self) -> list[np.ndarray]:
        """Each client's own examples [n_k, ...], views of the rows on the host."""
        rows = np.asarray(self.rows)
        starts, sizes = (np.asarray(part).tolist() for part in (self.start, self.size))
        return [rows[first : first + size] for first, size in zip(starts, sizes, strict=True)]

    @property
    def num_rows(self) -> int:
        """How many rows are examples: sum_k n_k, on the host."""
        return int(np.sum(self.size))

    def places(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Whose example each of the first rows is, and which of its: int32 [length], 0 behind the last."""
        sizes = np.asarray(self.size)
        client = np.repeat(np.arange(len(sizes)), sizes)
        number = np.arange(len(client)) - np.asarray(self.start)[client]
        room = [(0, length - len(client))]
        return np.pad(client, room).astype(np.int32), np.pad(number, room).astype(np.int32)

    def padded(self, values: Array, fill: Any) -> jax.Array:
        """[K, N, ...] of one value a row, [T', ...] with T' as many rows as are examples or more; traced."""
        place = jnp.arange(self.capacity).reshape(*(1,) * np.ndim(self.start), self.capacity)
        start, size = (jnp.asarray(part)[..., None] for part in (self.start, self.size))
        taken = jnp.asarray(values)[jnp.clip(start + place, 0, len(values) - 1)]
        is_there = (place < size).reshape(*start.shape[:-1], -1, *(1,) * (values.ndim - 1))
        return jnp.where(is_there, taken, jnp.asarray(fill, taken.dtype))

    def on_device(self) -> Ragged:
        """The same with its rows on JAX's device; who has which stays on the host."""
        return replace(self, rows=jnp.asarray(self.rows))

    def of(self, clients: np.ndarray) -> Ragged:
        """These clients in this order, in as many rows if they fit; on the host."""
        own = self.of_clients()
        parts = [own[client] for client in clients]
        length = max(len(self.rows), sum(map(len, parts)))
        return stacked(parts, length, self.capacity)

    def beside(self, others: Array, sizes: np.ndarray) -> Ragged:
        """The same and the examples of further clients, [sum of sizes, ...], on the device."""
        first = self.num_rows
        room = [(0, len(others))] + [(0, 0)] * (others.ndim - 1)
        rows = jnp.pad(jnp.asarray(self.rows), room)
        rows = jax.lax.dynamic_update_slice_in_dim(rows, jnp.asarray(others), first, axis=0)
        start = first + np.cumsum(sizes) - sizes
        return Ragged(
            rows,
            np.concatenate([self.start, start]).astype(np.int32),
            np.concatenate([self.size, sizes]).astype(np.int32),
            self.capacity,
        )

    def with_empty(self, number: int) -> Ragged:
        """The same and so many clients without examples."""
        room = [(0, number)]
        start, size = (np.pad(np.asarray(part), room) for part in (self.start, self.size))
        return replace(self, start=start, size=size)


def stacked(parts: list[np.ndarray], length: int, capacity: int) -> Ragged:
    """Clients' examples [n_k, ...] behind one another, in so many rows."""
    size = np.array([len(part) for part in parts], np.int32)
    rows = np.zeros((length, *parts[0].shape[1:]), parts[0].dtype)
    if size.any():
        np.concatenate(parts, out=rows[: int(size.sum())])
    return Ragged(rows, (np.cumsum(size) - size).astype(np.int32), size, capacity)


def length_for(count: int, most: int, *, parts: int = 1) -> int:
    """Rows for so many examples where there may be `most`: one of few lengths, so that programs are few.

    Lengths grow by the root of two, and one of them is `most`, which nothing is added to but what fills 256
    rows, or as many for each of `parts` (devices).
    """
    step = ROWS_AT_ONCE * parts
    length = -(-most // step) * step
    while (shorter := int(length * 0.7071) // step * step) >= max(count, step):
        length = shorter
    return length


def apart(x: Any) -> tuple[Any, Any]:
    """What all clients of a cohort share of its examples, and what each has, stacked on axis 0."""
    if isinstance(x, Ragged):
        return x.rows, replace(x, rows=None)
    return None, x


def joined(shared: Any, own: Any) -> Any:
    """One client's examples [N, ...] of what `apart` gives it."""
    return replace(own, rows=shared) if isinstance(own, Ragged) else own


def own_examples(x: Array | Ragged) -> list[np.ndarray]:
    """Each client's examples on the host, [N, ...] of a padded array and [n_k, ...] of a ragged one."""
    return x.of_clients() if isinstance(x, Ragged) else list(np.asarray(x))


def on_device(x: Any) -> Any:
    """A cohort's examples where JAX computes."""
    return x.on_device() if isinstance(x, Ragged) else jnp.asarray(x)


def by_extent(x: Any, extent: jax.Array, of_length: Callable[[int], Result]) -> Result:
    """`of_length(L)` for an L that the client's examples fit into, not far above their number.

    What sorts or draws for every row would otherwise pay for the largest client at each. Results have one
    shape whatever L is, and must not depend on it.

    Args:
        x: the client's examples; those of a padded array have L = N.
        extent: int32 scalar, its examples are the first so many rows.
        of_length: may be traced, once for each of a few lengths.

    Cost: of the branch taken; under `vmap` of all of them, a third more than of the longest.
    """
    if not isinstance(x, Ragged) or x.capacity <= _SHORTEST:
        return of_length(x.shape[0])
    lengths = [x.capacity]
    while lengths[-1] > _SHORTEST:
        lengths.append(-(-lengths[-1] // _OF_A_CLASS))
    which = jnp.sum(extent <= jnp.asarray(lengths), dtype=jnp.int32) - 1
    branches = [partial(of_length, length) for length in lengths]
    return jax.lax.switch(jnp.clip(which, 0, len(lengths) - 1), branches)
