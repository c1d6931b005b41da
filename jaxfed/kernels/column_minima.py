"""The k smallest entries of every column, by passes over whole rows, which suit a CPU's vector units.

A reduction of each row, or `lax.top_k`, takes one column at a time and seven times as long.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxfed.kernels.nearest import Nearest

# Rows scanned in one vectorized loop.
_ROWS_PER_PASS = 32

# Rows of a group, if there are many rows.
_GROUP = 8

# Above every distance combined with a row number.
LARGEST = jnp.iinfo(jnp.int32).max


def first_numbered(distances: jax.Array, k: int) -> Nearest:
    """The k first of each column by (distance, row), as int32, [m, queries] -> [k, queries], and their rows.

    Successive minima of distance * 2^b + row, which must fit into 31 bits.
    """
    num_rows, num_queries = distances.shape
    bits = num_rows.bit_length()

    def next_first(last: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        first = _next_numbered(distances, last)
        return first, first

    _, packed = lax.scan(next_first, jnp.full(num_queries, -1, jnp.int32), length=k)
    return packed >> bits, packed & (2**bits - 1)


def _next_numbered(distances: jax.Array, last: jax.Array) -> jax.Array:
    """The first distance * 2^b + row of each column above `last`, int32 [queries]; `LARGEST` if none is."""
    num_rows, num_queries = distances.shape
    bits, rows_per_pass = num_rows.bit_length(), math.gcd(num_rows, _ROWS_PER_PASS)

    def look_at_rows(number: jax.Array, least: jax.Array) -> jax.Array:
        for offset in range(rows_per_pass):
            row = number * rows_per_pass + offset
            distance = lax.dynamic_index_in_dim(distances, row, keepdims=False)
            numbered = (distance.astype(jnp.int32) << bits) | row
            least = jnp.minimum(least, jnp.where(numbered > last, numbered, LARGEST))
        return least

    none = jnp.full(num_queries, LARGEST, jnp.int32)
    return lax.fori_loop(0, num_rows // rows_per_pass, look_at_rows, none)


def first(distances: jax.Array, k: int) -> Nearest:
    """The k first of each column by (distance, row), float [m, queries] -> [k, queries], and their rows.

    Like `first_numbered`, for distances without spare bits for a row number. Entries beyond the last one are
    infinite, and NaN is never selected. With many rows, the k first groups of 8 by (least distance, group)
    contain the k first rows.
    """
    num_rows, num_queries = distances.shape
    if num_rows % _GROUP or num_rows < 2 * _GROUP * k:
        return _first_of_few(distances, k)
    groups = distances.reshape(-1, _GROUP, num_queries)
    least = jnp.full_like(groups[:, 0], jnp.inf)
    for offset in range(_GROUP):
        least = jnp.where(groups[:, offset] < least, groups[:, offset], least)
    # Sorted by group number, so that rows are sorted as well.
    chosen = ascending(_first_of_few(lax.optimization_barrier(least), k)[1])
    offsets = jnp.arange(_GROUP, dtype=jnp.int32)[None, :, None]
    queries = jnp.arange(num_queries, dtype=jnp.int32)[None, None, :]
    at = jnp.minimum(chosen, len(groups) - 1)[:, None]
    candidates = groups.at[at, offsets, queries].get(mode="promise_in_bounds")
    candidates = jnp.where((chosen < LARGEST)[:, None], candidates, jnp.inf)
    least, number = _first_of_few(candidates.reshape(-1, num_queries), k)
    rank = jnp.arange(k, dtype=jnp.int32)[:, None, None]
    group = jnp.where(number[None] // _GROUP == rank, chosen[:, None], 0).sum(axis=0)
    return least, group * _GROUP + number % _GROUP


def _first_of_few(distances: jax.Array, k: int) -> Nearest:
    """Like `first`; row `LARGEST` beyond the last entry.

    There is one pass for a distance and one for its row. In a joint pass XLA would compute everything twice.
    """
    num_rows, num_queries = distances.shape
    rows_per_pass = math.gcd(num_rows, _ROWS_PER_PASS)

    def over_rows(look_at: Callable[..., jax.Array], start: jax.Array) -> jax.Array:
        def look_at_rows(number: jax.Array, nearest: jax.Array) -> jax.Array:
            for offset in range(rows_per_pass):
                row = number * rows_per_pass + offset
                nearest = look_at(
                    lax.dynamic_index_in_dim(distances, row, keepdims=False), row, nearest
                )
            return nearest

        return lax.fori_loop(0, num_rows // rows_per_pass, look_at_rows, start)

    def next_first(last: Nearest, _: None) -> tuple[Nearest, Nearest]:
        last_distance, last_row = last

        def nearer(distance: jax.Array, row: jax.Array, least: jax.Array) -> jax.Array:
            later = (distance > last_distance) | ((distance == last_distance) & (row > last_row))
            return jnp.where(later & (distance < least), distance, least)

        least = over_rows(nearer, jnp.full_like(last_distance, jnp.inf))
        before = jnp.where(least > last_distance, -1, last_row)

        def earlier(distance: jax.Array, row: jax.Array, first: jax.Array) -> jax.Array:
            is_first = (distance == least) & (row > before) & (row < first)
            return jnp.where(is_first, row, first)

        first = least, over_rows(earlier, jnp.full_like(last_row, LARGEST))
        return first, first

    before_all = (
        jnp.full(num_queries, -jnp.inf, distances.dtype),
        jnp.full(num_queries, -1, jnp.int32),
    )
    return lax.scan(next_first, before_all, length=k)[1]


def ascending(x: jax.Array) -> jax.Array:
    """Each column of [k, queries] sorted: k is small, and a sort takes one column at a time."""
    k = x.shape[0]
    number = jnp.arange(k, dtype=jnp.int32)[:, None, None]
    equal_before = (x[None] == x[:, None]) & (number.swapaxes(0, 1) < number)
    rank = ((x[None] < x[:, None]) | equal_before).astype(jnp.int32).sum(axis=1)
    return jnp.where(rank[None] == number, x[None], 0).sum(axis=1)


def less(x: jax.Array, least: jax.Array) -> jax.Array:
    """The smaller one, `least` if x is NaN: one instruction, while `jnp.minimum` of floats checks for NaN."""
    return jnp.where(x < least, x, least)
