"""Neighbor lists as edges of B + B^T: those that two points give each other are merged.

    (B + B^T)_ij = B_ij + B_ji,    in row i where i lists j, in row j where j does not list i

An entry whose way back is listed stands in both rows already; every other one must be listed in its target's
row too (`jaxfed.kernels.by_target`).
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from jaxfed.kernels.lookup import looked_up
from jaxfed.kernels.spread import Rows

# Entries of neighbors' lists that are looked through for the way back at a time.
_ENTRIES_COMPARED = 2**18

# Slots of every list that are compared in one loop.
_SLOTS_AT_ONCE = 32


class Edges(NamedTuple):
    """Edges of B, told apart by where their two entries of B + B^T are stored, in m of n rows."""

    targets: Array  # int32 [m, k], valid everywhere: the point itself where there is no edge
    weights: Array  # float32 [m, k], B_ij + B_ji where j also has i for a neighbor, else B_ij
    # int32 [n k], of every edge of B the row of these under which i must be listed too; m: none of these
    under: Array
    all_weights: Array  # float32 [n, k]: `weights` of all rows


def match(indices: Array, weights: Array, rows: Rows) -> Edges:
    """Merge mutual edges, and tell under whom the others must be listed."""
    num_rows = len(indices)
    n = num_rows * rows.num_parts
    own = rows.own(jnp.arange(n, dtype=jnp.int32))[:, None]
    # An index out of range is refused outside jit; inside it must at least not reach other rows.
    is_edge = (weights > 0) & (indices >= 0) & (indices < n)
    weights = jnp.where(is_edge, weights, 0.0)
    targets = jnp.where(is_edge, indices, own)
    listed = jnp.where(is_edge, indices, -1)
    # A point that lists j twice shares the weight of the way back between the two. (Made once, not by each
    # of those that read it.)
    weight_there, num_there = lax.optimization_barrier(_sums_of_equals(listed, weights))
    all_listed, all_there = rows.of_all(listed), rows.of_all(weight_there).reshape(-1)
    back = _places_back(all_listed, targets, own)
    is_back = is_edge & (back >= 0)
    weight_back = looked_up(all_there, jnp.maximum(back, 0))
    weights = weights + jnp.where(is_back, weight_back, 0.0) / num_there
    under = rows.here(rows.of_all(jnp.where(is_edge & ~is_back, targets, n)), num_rows)
    under = jnp.where((under >= 0) & (under < num_rows), under, num_rows)
    return Edges(targets, weights, under.reshape(-1), rows.of_all(weights))


def _places_back(listed: Array, targets: Array, own: Array) -> Array:
    """Of each entry (i, j) the place of i among all of `listed` in the row of j, or -1: int32 [m, k].

    Whole rows are fetched, for so few entries at a time that they stay in the cache.
    """
    k = listed.shape[1]
    slots = jnp.arange(k, dtype=jnp.int32)[None, :]

    def of_row(row: tuple[Array, Array]) -> Array:
        targets, own = row
        theirs = looked_up(listed, targets)
        slot = jnp.where(theirs == own[:, None], slots, -1).max(axis=1)
        return jnp.where(slot >= 0, targets * k + slot, -1)

    num_rows = max(1, _ENTRIES_COMPARED // k**2)
    return lax.optimization_barrier(lax.map(of_row, (targets, own), batch_size=num_rows))


def _sums_of_equals(listed: Array, weights: Array) -> tuple[Array, Array]:
    """Of each entry, the weight of the entries of its row that are equal to it, and their number."""

    def add(slot: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        is_equal = listed == listed[:, slot, None]
        weight = jnp.where(is_equal, weights[:, slot, None], 0.0)
        return sums[0] + weight, sums[1] + is_equal.astype(weights.dtype)

    k = listed.shape[1]
    zeros = jnp.zeros_like(weights)
    return lax.fori_loop(0, k, add, (zeros, zeros), unroll=min(k, _SLOTS_AT_ONCE))
