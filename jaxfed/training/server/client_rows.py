"""States of all clients, [M, ...]: small ones are arrays, large ones tables of which a round reads few rows.

    a round on the host          state with `RowTable`s
    its compiled program         state with `CohortRows`, the K rows of its cohort         (`of_cohort`)
    after it                     the K rows are written to the tables                      (`written_back`)

`gather` and `scatter` read and write all of these forms, so a method never tells them apart. An array is
copied whole whenever rows change. A table is written in place (`jaxfed.host.row_table`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.errors import BeyondMemory
from jaxfed.federation.cohort import Array
from jaxfed.federation.execution.memory_limit import bytes_text
from jaxfed.federation.execution.settings import Execution
from jaxfed.host.row_table import Interleaved, RowTable

# Bytes of all clients' states that are copied in a tenth of a millisecond.
COPIED_ON_CPU, COPIED_ON_ACCELERATOR = 2**20, 2**27


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CohortRows:
    """The rows [K, ...] of a cohort, in place of those of all M clients.

    Attributes:
        rows: in the cohort's order; row 0 of the table for a place without a client.
        num_clients: M.
    """

    rows: Any
    num_clients: int = field(metadata={"static": True})

    def __len__(self) -> int:
        return self.num_clients


def _is_rows(leaf: Any) -> bool:
    return isinstance(leaf, RowTable | CohortRows)


def _mapped(function: Callable[..., Any], *trees: Any) -> Any:
    return jax.tree.map(function, *trees, is_leaf=_is_rows)


def leaves(stacked: Any) -> list[Any]:
    """Arrays, tables and cohorts' rows of a tree; `len` of each is M."""
    return jax.tree.leaves(stacked, is_leaf=_is_rows)


def stacked_for(num_clients: int, state: Any) -> Any:
    """The same state for each of M clients, [M, ...]."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_clients, *leaf.shape)), state)


def rows_for(num_clients: int, state: Any, host: Execution) -> Any:
    """The same state for each of M clients; a table if that takes more memory than is quickly copied.

    Raises:
        BeyondMemory: the states fit neither into the memory nor, without a folder or room in it, on a disk.
    """
    every = jax.tree.leaves(state)
    num_bytes = num_clients * sum(map(_bytes_of, every))
    is_form = any(isinstance(leaf, jax.core.Tracer) for leaf in every)  # under `jax.eval_shape`
    if num_clients < 2 or num_bytes <= _quickly_copied() or is_form:
        return stacked_for(num_clients, state)
    folder = None if num_bytes <= host.rows_limit else _disk(num_clients, num_bytes, host)
    beside = Interleaved(num_clients, folder)
    return jax.tree.map(lambda leaf: RowTable(num_clients, leaf, folder, beside), state)


def alike(stacked: Any, state: Any) -> Any:
    """States of the form of `stacked` [M, ...] in which every client has this state."""

    def same(rows: Any, leaf: Any) -> Any:
        if isinstance(rows, RowTable):
            return rows.anew(np.asarray(leaf))
        return jnp.broadcast_to(leaf, rows.shape)

    return _mapped(same, stacked, state)


def tables_of(stacked: Any, host: Execution) -> Any:
    """States [M, ...] that differ between clients, as `rows_for` keeps them; they are copied once."""
    every = jax.tree.leaves(stacked)
    if not every or len(every[0]) < 2:
        return stacked
    kept = rows_for(len(every[0]), jax.tree.map(lambda leaf: leaf[0], stacked), host)
    return _mapped(
        lambda form, rows: (
            form.replaced(np.arange(len(rows)), rows) if isinstance(form, RowTable) else rows
        ),
        kept,
        stacked,
    )


def gather(stacked: Any, client_id: Array) -> Any:
    """The cohort's rows of states [M, ...]; a padding client (id -1) gets client 0's.

    A client that holds its own state alone, [1, ...], has it in row 0 whatever its number is.
    """

    def taken(leaf: Any) -> Any:
        if isinstance(leaf, CohortRows):
            return leaf.rows
        if isinstance(leaf, RowTable):
            return leaf[np.maximum(np.asarray(client_id), 0)]
        rows = jnp.maximum(jnp.asarray(client_id), 0)
        return leaf[rows if len(leaf) > 1 else 0 * rows]

    return _mapped(taken, stacked)


def scatter(stacked: Any, client_id: Array, updated: Any) -> Any:
    """States [M, ...] with the cohort's rows replaced; rows of padding clients are dropped."""

    def put(leaf: Any, rows: Any) -> Any:
        if isinstance(leaf, CohortRows):
            return CohortRows(rows, leaf.num_clients)
        if isinstance(leaf, RowTable):
            ids = np.asarray(client_id)
            return leaf.replaced(ids[ids >= 0], rows[np.flatnonzero(ids >= 0)])
        client = jnp.asarray(client_id)
        # Out of range rather than -1, which would mean the last client.
        return leaf.at[jnp.where(client < 0, len(leaf), client)].set(rows, mode="drop")

    return _mapped(put, stacked, updated)


def of_cohort(tree: Any, client_id: Array) -> Any:
    """The tree with its tables' rows of the cohort, as an argument of a compiled program."""

    def taken(leaf: Any) -> Any:
        return (
            CohortRows(gather(leaf, client_id), len(leaf)) if isinstance(leaf, RowTable) else leaf
        )

    return _mapped(taken, tree)


def written_back(before: Any, after: Any, client_id: Array) -> Any:
    """The named tuple `after` a program that received `of_cohort(before)`, with tables again."""

    def put(table: Any, found: Any) -> Any:
        if isinstance(table, RowTable):
            rows = found.rows if table.is_keys else np.asarray(found.rows)
            return scatter(table, client_id, rows)
        return found

    changed = {
        name: _mapped(put, getattr(before, name), getattr(after, name))
        for name in after._fields
        if has_tables(getattr(before, name))
    }
    return after._replace(**changed)


def whole(stacked: Any) -> Any:
    """States [M, ...] of all clients as arrays; tables are copied."""
    return _mapped(lambda leaf: leaf[np.arange(len(leaf))] if _is_rows(leaf) else leaf, stacked)


def has_tables(tree: Any) -> bool:
    """True if some leaf is a table."""
    return any(isinstance(leaf, RowTable) for leaf in leaves(tree))


def without_tables(state: Any, names: Collection[str] | None = None) -> Any:
    """The named tuple without those of these fields that have tables; None: of all fields."""
    names = state._fields if names is None else names
    large = [name for name in names if has_tables(getattr(state, name))]
    return state._replace(**dict.fromkeys(large, ())) if large else state


def took_part(stacked: Any) -> np.ndarray:
    """Numbers of the clients whose rows may have changed, ascending: all of an array's."""
    leaf = leaves(stacked)[0]
    return leaf.changed() if isinstance(leaf, RowTable) else np.arange(len(leaf))


def _bytes_of(leaf: Any) -> int:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
    return int(leaf.size * leaf.dtype.itemsize)


def _quickly_copied() -> int:
    return COPIED_ON_CPU if jax.default_backend() == "cpu" else COPIED_ON_ACCELERATOR


def _disk(num_clients: int, num_bytes: int, host: Execution) -> Path:
    """Return the folder, which has room for the states of the clients."""
    given, limit = host.memory_limit, bytes_text(host.rows_limit)
    start = (
        f"execution.memory_limit={given!r}: the states of {num_clients:,} clients take "
        f"{bytes_text(num_bytes)}, the memory for them is {limit}"
    )
    if host.folder is None:
        raise BeyondMemory(
            f"{start}; use {num_bytes} bytes or more, or give Execution a folder on a disk"
        )
    folder = Path(host.folder)
    free = _free_bytes(folder)
    if num_bytes > free:
        raise BeyondMemory(f"{start} and the disk of {folder} has {bytes_text(free)}")
    return folder


def _free_bytes(folder: Path) -> int:
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(place).free
