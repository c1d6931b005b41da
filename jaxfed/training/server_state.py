"""State that a server carries from round to round to train a model, and each client's share of it.

States of clients, [M, ...], are arrays if small, else tables of which a round reads and writes few rows.

    before a round, on the host     state with `RowTable`s
    in the compiled round           state with `CohortRows`, the K rows of the cohort      (`of_cohort`)
    after the round                 the K rows are written to the tables                   (`written_back`)

`gather` and `scatter` read and write all of these forms, so methods need not distinguish them. An array is
copied as a whole if rows change; a table is updated in place (`jaxfed.host.row_table`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.errors import BeyondMemory
from jaxfed.federation.cohort import Array
from jaxfed.federation.execution import bytes_text, host_bytes
from jaxfed.host.row_table import RowTable

# If the server's own examples are rows of a cohort, these have the ids -2, -3, ...; -1 is padding.
_FIRST_OF_SERVER = -2


class ServerState(NamedTuple):
    """The state of every method that trains one model by local updates.

    Leaves that are "stacked [M, ...]" are arrays, or tables where M is large.

    Fields:
        model: parameters and running statistics; what is evaluated, and what clients receive.
        optimizer: the server optimizer's state.
        teacher: a model of an earlier round that labels (FedSem+), and who has received it; () without one.
        control: values beside the model (`Control`; SCAFFOLD's server control variate); ().
        clients: each client's state, defined by the method, stacked [M, ...]; ().
        memory: the server's store of its clients' uploads (ProtoFSSL's prototypes); ().
        client_optimizers: states of clients' optimizers if they are kept, stacked [M, ...]; ().
        round: int32, rounds done.
        num_training: float32 [2], the numbers of clients that can train in the two stages of a run, by which
            sums of `control` are divided; ().
    """

    model: nnx.State
    optimizer: Any
    teacher: Any
    control: Any
    clients: Any
    round: jax.Array
    memory: Any = ()
    client_optimizers: Any = ()
    num_training: Any = ()


def server_ids(number: int) -> np.ndarray:
    """int32 [number], ids that mark rows of a cohort as the server's own."""
    return (_FIRST_OF_SERVER - np.arange(number)).astype(np.int32)


def client_keys(key: jax.Array, client_id: Array) -> jax.Array:
    """One typed key [K] for each client, by its number alone, whatever the rest of the cohort is."""
    ids = jnp.asarray(client_id)
    # The server's rows count down from the largest number, which no client has.
    of_server = jnp.iinfo(jnp.int32).max - (_FIRST_OF_SERVER - ids)
    numbers = jnp.where(ids <= _FIRST_OF_SERVER, of_server, jnp.maximum(ids, 0))
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, numbers)


def client_draws(key: jax.Array, client_id: jax.Array) -> jax.Array:
    """A uniform number in [0, 1) for each client [K], by its number alone; -1 draws as client 0."""
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.maximum(client_id, 0))
    return jax.vmap(jax.random.uniform)(keys)


def is_finite(model: nnx.State) -> jax.Array:
    """bool scalar: True if all numbers of a model are finite."""
    leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(model)]
    return jnp.all(jnp.stack(leaves))


def with_statistics(model: nnx.State, statistics: nnx.State) -> nnx.State:
    """The model's parameters with other running statistics."""
    return nnx.merge_state(nnx.split_state(model, nnx.Param, ...)[0], statistics)


def together(**parts: nnx.State) -> nnx.State:
    """One state made of several; `state[name]` gives a part back."""
    return nnx.State({name: part.raw_mapping for name, part in parts.items()})


# Bytes of all clients' states that are copied in a tenth of a millisecond.
COPIED_ON_CPU, COPIED_ON_ACCELERATOR = 2**20, 2**27
_BLOCK = 2**25  # bytes of states that are made at a time


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CohortRows:
    """The rows [K, ...] of a cohort, in place of those of all M clients; a table's row 0 for padding."""

    rows: Any
    num_clients: int = field(metadata={"static": True})

    def __len__(self) -> int:
        return self.num_clients


def _is_rows(leaf: Any) -> bool:
    return isinstance(leaf, RowTable | CohortRows)


def _mapped(function: Callable[..., Any], *trees: Any) -> Any:
    return jax.tree.map(function, *trees, is_leaf=_is_rows)


def leaves(stacked: Any) -> list[Any]:
    """Leaves of a tree: arrays, tables and cohorts' rows; `len` of each is M."""
    return jax.tree.leaves(stacked, is_leaf=_is_rows)


def stacked_for(num_clients: int, state: Any) -> Any:
    """The same state for each of M clients, [M, ...]."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_clients, *leaf.shape)), state)


def rows_for(num_clients: int, state: Any) -> Any:
    """The same state for each of M clients; tables if that takes more memory than is quickly copied."""
    every = jax.tree.leaves(state)
    num_bytes = num_clients * sum(map(_bytes_of, every))
    is_form = any(isinstance(leaf, jax.core.Tracer) for leaf in every)  # under `jax.eval_shape`
    if num_clients < 2 or num_bytes <= _quickly_copied() or is_form:
        return stacked_for(num_clients, state)
    if num_bytes > (available := host_bytes()):
        raise BeyondMemory(
            f"the states of {num_clients:,} clients take {bytes_text(num_bytes)}, the host's memory is "
            f"{bytes_text(available)}; use a smaller model or fewer clients"
        )
    return jax.tree.map(lambda leaf: RowTable(num_clients, leaf), state)


def rows_of_clients(num_clients: int, make: Callable[[np.ndarray], Any]) -> Any:
    """States [M, ...] that differ between clients, stored as `rows_for` stores them.

    `make` returns the states [K, ...] of clients with these numbers, int [K]. Tables are filled some clients
    at a time, because all states together may exceed the memory.
    """
    one = jax.tree.map(lambda leaf: leaf[0], make(np.arange(1)))
    kept = rows_for(num_clients, one)
    if not any(isinstance(leaf, RowTable) for leaf in leaves(kept)):
        return make(np.arange(num_clients))
    size = max(1, _BLOCK // sum(map(_bytes_of, jax.tree.leaves(one))))
    for start in range(0, num_clients, size):
        numbers = np.arange(start, min(start + size, num_clients))
        kept = scatter(kept, numbers, make(numbers))
    return kept


def gather(stacked: Any, client_id: Array) -> Any:
    """The cohort's rows of states [M, ...]; a padding client (id -1) gets row 0.

    If a client holds only its own state, [1, ...], this is row 0 for every number.
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
    """States [M, ...] with the cohort's rows replaced, as `gather` reads them; padding is dropped."""

    def put(leaf: Any, rows: Any) -> Any:
        if isinstance(leaf, CohortRows):
            return CohortRows(rows, leaf.num_clients)
        if isinstance(leaf, RowTable):
            ids = np.asarray(client_id)
            return leaf.replaced(ids[ids >= 0], rows[np.flatnonzero(ids >= 0)])
        client = jnp.asarray(client_id)
        row = client if len(leaf) > 1 else 0 * client
        # Out of range rather than -1, which would mean the last client.
        return leaf.at[jnp.where(client < 0, len(leaf), row)].set(rows, mode="drop")

    return _mapped(put, stacked, updated)


def of_cohort(tree: Any, client_id: Array) -> Any:
    """The tree with the cohort's rows in place of its tables, as an argument of a compiled program."""

    def taken(leaf: Any) -> Any:
        return (
            CohortRows(gather(leaf, client_id), len(leaf)) if isinstance(leaf, RowTable) else leaf
        )

    return _mapped(taken, tree)


def written_back(before: Any, after: Any, client_id: Array) -> Any:
    """The named tuple `after`, returned by a program for `of_cohort(before)`, with tables again."""

    def put(table: Any, leaf: Any) -> Any:
        if isinstance(table, RowTable):
            rows = leaf.rows if table.is_keys else np.asarray(leaf.rows)
            return scatter(table, client_id, rows)
        return leaf

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


def without_tables(state: Any) -> Any:
    """The named tuple with those fields emptied that have tables."""
    large = [name for name in state._fields if has_tables(getattr(state, name))]
    return state._replace(**dict.fromkeys(large, ())) if large else state


def took_part(stacked: Any) -> np.ndarray:
    """Numbers of the clients whose rows may have changed, ascending; for an array, all clients."""
    leaf = leaves(stacked)[0]
    return leaf.changed() if isinstance(leaf, RowTable) else np.arange(len(leaf))


def _bytes_of(leaf: Any) -> int:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
    return int(leaf.size * leaf.dtype.itemsize)


def _quickly_copied() -> int:
    return COPIED_ON_CPU if jax.default_backend() == "cpu" else COPIED_ON_ACCELERATOR
