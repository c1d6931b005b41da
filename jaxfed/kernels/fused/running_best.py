"""The k best so far of every query while points come tile by tile, in one word a neighbor.

    key = 2^b distance + column,    0 <= distance <= L,  0 <= column < 2^b,  2^b (L + 2) <= 2^31

Keys are ordered as (distance, column) is and no two of a query's are equal, so that the k smallest are found
by minima alone: no index is carried along and no tie has to be broken. Columns are numbered within a chunk
of at most 2^b points, 262,144 for codes of 4096 bits.

All of this is written for the inside of a kernel: arrays of one tile, no gathers, no sort.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

# Of no point: further than all, and never better than anything.
NOBODY = 2**31 - 1

# Of a slot beyond the k: smaller than all, hence never given up.
_CLOSED = -1


# (keys, best, nearest, worst, whether any nearest comes before its worst)
_State = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]


def column_bits(num_bits: int) -> int:
    """b for codes of `num_bits`; negative where a distance alone takes a word."""
    return 31 - (num_bits + 1).bit_length()


def as_keys(distances: jax.Array, columns: jax.Array, num_bits: int) -> jax.Array:
    """int32 keys of distances and columns that broadcast to one shape."""
    return (distances << column_bits(num_bits)) + columns


def decoded(keys: jax.Array, num_bits: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(distances, columns, whether anybody is there) of keys; distance L + 1 where nobody is."""
    shift = column_bits(num_bits)
    distances = keys >> shift
    is_there = distances <= num_bits
    return jnp.where(is_there, distances, num_bits + 1), keys & (2**shift - 1), is_there


def nobody(rows: int, slots: int, k: int) -> jax.Array:
    """Nobody in the first k of `slots`, int32 [rows, slots]: keys further than all, each its own."""
    slot = lax.broadcasted_iota(jnp.int32, (rows, slots), 1)
    return jnp.where(slot < k, NOBODY - slot, _CLOSED)


def nearest_and_worst(keys: jax.Array, best: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Of each row the smallest key and the worst of its best, [rows, 1]; whether any has the first before."""
    nearest = keys.min(axis=1, keepdims=True)
    worst = best.max(axis=1, keepdims=True)
    return nearest, worst, (nearest < worst).astype(jnp.int32).max() > 0


def with_nearest(
    keys: jax.Array, best: jax.Array, nearest: jax.Array, worst: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The tile without its nearest, and the best with it in place of the worst where it comes before that."""
    is_given_up = (best == worst) & (nearest < worst)
    return jnp.where(keys == nearest, NOBODY, keys), jnp.where(is_given_up, nearest, best)


def merged(keys: jax.Array, best: jax.Array) -> jax.Array:
    """The k best of `best` and of a tile's keys, in no order.

    Args:
        keys: int32 [rows, columns], `NOBODY` where excluded.
        best: int32 [rows, slots], of `nobody`.

    Cost: two passes over the tile where nothing in it is better than what each query has, which is
    what nearly all tiles are; one more for every neighbor that its most successful query takes. A
    query takes k ln(n / k) in all, of points in random order.
    """

    def another(state: _State) -> _State:
        keys, best, nearest, worst, _ = state
        keys, best = with_nearest(keys, best, nearest, worst)
        return keys, best, *nearest_and_worst(keys, best)

    state = (keys, best, *nearest_and_worst(keys, best))
    return lax.while_loop(lambda state: state[-1], another, state)[1]
