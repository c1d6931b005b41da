"""The search as one kernel of a GPU, by Pallas's lowering to Triton.

A program has a block of queries and goes through a strip of the points tile by tile. A tile's agreements are
summed in registers, by tensor cores or by population counts; there they become keys, and those that are
better than what their query has go into its best. Points are read by all programs in the same order at about
the same time, hence from the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from jaxfed.kernels.fused import running_best


class Tile(NamedTuple):
    """Shape of a tile and how it is worked on; `queries`, `points` and `depth` are powers of two."""

    queries: int = 128
    points: int = 128
    depth: int = 128  # signs, or words, of a pass
    warps: int = 8
    stages: int = 3
    programs: int = (
        264  # at least, where there are so many tiles: two for each of 132 multiprocessors
    )


# Compiled for Hopper, not measured: 167 registers a thread and 96 KiB of shared memory, products by `wgmma`.
# 256 points a tile, or 4 warps, spill 150 to 220 bytes; so do population counts of 128 queries.
PRODUCT = Tile()
POPCOUNT = Tile(queries=64, depth=8, stages=1)


def search(
    queries: jax.Array,
    points: jax.Array,
    is_excluded: jax.Array,
    own_column: jax.Array,
    *,
    k: int,
    num_bits: int,
    tile: Tile | None = None,
    interpret: bool = False,
) -> jax.Array:
    """Keys of each query's k nearest points, in no order (`running_best`).

    Args:
        queries: signs [m, L], int8 or a float dtype, or codes words first, uint32 [W, m].
        points: the same of n points, at most 2^b.
        is_excluded: bool [n], nobody's neighbors.
        own_column: int32 scalar, the column that is the first query's own point; following queries' follow.
        k: at most 64.
        num_bits: L.
        tile: other than the usual.
        interpret: whether to go through it step by step on any device, for tests.

    Returns:
        int32 [m, k s], k from each of s strips of the points.
    """
    is_codes = queries.dtype == jnp.uint32
    tile = tile or (POPCOUNT if is_codes else PRODUCT)
    along = 1 if is_codes else 0
    m, n = queries.shape[along], points.shape[along]
    blocks, tiles = -(-m // tile.queries), -(-n // tile.points)
    strips = min(max(1, tile.programs // blocks), tiles)
    tiles_of_strip = -(-tiles // strips)
    strip = tiles_of_strip * tile.points
    slots = max(16, pl.next_power_of_2(k))

    queries = _filled(_filled(queries, along, blocks * tile.queries), 1 - along, tile.depth)
    points = _filled(_filled(points, along, strips * strip), 1 - along, tile.depth)
    is_excluded = jnp.pad(is_excluded, (0, strips * strip - n), constant_values=True)
    depth = queries.shape[1 - along]
    if is_codes:  # Triton counts the ones of signed words only
        queries, points = (lax.bitcast_convert_type(x, jnp.int32) for x in (queries, points))

    def block(rows: int, axis: int) -> pl.BlockSpec:
        if is_codes:
            return pl.BlockSpec((depth, rows), lambda *place: (0, place[axis]))
        return pl.BlockSpec((rows, depth), lambda *place: (place[axis], 0))

    kernel = partial(
        _kernel,
        agreements=partial(_by_popcount if is_codes else _by_product, tile, depth),
        tile=tile,
        tiles=tiles_of_strip,
        k=k,
        num_bits=num_bits,
    )
    keys = pl.pallas_call(
        kernel,
        grid=(blocks, strips),
        in_specs=[
            block(tile.queries, 0),
            block(strip, 1),
            pl.BlockSpec((strip,), lambda i, j: (j,)),
            pl.BlockSpec((1,), lambda i, j: (0,)),
        ],
        out_specs=pl.BlockSpec((tile.queries, slots), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((blocks * tile.queries, strips * slots), jnp.int32),
        compiler_params=triton.CompilerParams(num_warps=tile.warps, num_stages=tile.stages),
        interpret=interpret,
        name="nearest_points",
    )(queries, points, is_excluded.astype(jnp.int32), own_column[None])
    return keys[:m].reshape(m, strips, slots)[:, :, :k].reshape(m, strips * k)


def _filled(array: jax.Array, axis: int, multiple: int) -> jax.Array:
    """Zeros up to a multiple: a sign of 0 neither agrees nor differs, words of 0 agree."""
    padding = [(0, 0)] * array.ndim
    padding[axis] = (0, -array.shape[axis] % multiple)
    return jnp.pad(array, padding)


def _kernel(
    queries: Any,
    points: Any,
    is_excluded: Any,
    own_column: Any,
    out: Any,
    *,
    agreements: Callable[..., jax.Array],
    tile: Tile,
    tiles: int,
    k: int,
    num_bits: int,
) -> None:
    first_row = pl.program_id(0) * tile.queries
    first_column = pl.program_id(1) * (tiles * tile.points)
    own = own_column[0] + first_row + lax.broadcasted_iota(jnp.int32, (tile.queries, 1), 0)

    def with_tile(number: jax.Array, best: jax.Array) -> jax.Array:
        here = pl.ds(number * tile.points, tile.points)
        distances = agreements(num_bits, queries, points, here)
        columns = (first_column + number * tile.points) + lax.broadcasted_iota(
            jnp.int32, (1, tile.points), 1
        )
        is_out = (is_excluded[here][None, :] != 0) | (columns == own)
        keys = running_best.as_keys(distances, columns, num_bits)
        return running_best.merged(jnp.where(is_out, running_best.NOBODY, keys), best)

    start = running_best.nobody(tile.queries, out.shape[1], k)
    out[...] = lax.fori_loop(0, tiles, with_tile, start)


def _by_product(
    tile: Tile, depth: int, num_bits: int, queries: Any, points: Any, here: Any
) -> jax.Array:
    """(L - <s, s'>) / 2 of a tile, the signs' products in int32 or float32: exact."""
    is_integer = jnp.issubdtype(queries.dtype, jnp.integer)
    sums = jnp.dtype(jnp.int32 if is_integer else jnp.float32)

    def further(number: jax.Array, total: jax.Array) -> jax.Array:
        signs = pl.ds(number * tile.depth, tile.depth)
        return total + lax.dot_general(
            queries[:, signs],
            points[here, signs],
            (((1,), (1,)), ((), ())),
            preferred_element_type=sums,
        )

    start = jnp.zeros((tile.queries, tile.points), sums)
    agreement = lax.fori_loop(0, depth // tile.depth, further, start)
    return (num_bits - agreement.astype(jnp.int32)) >> 1


def _by_popcount(
    tile: Tile, depth: int, num_bits: int, queries: Any, points: Any, here: Any
) -> jax.Array:
    """Differing bits of a tile, a few words a pass."""
    del num_bits

    def further(number: jax.Array, total: jax.Array) -> jax.Array:
        for offset in range(tile.depth):
            word = number * tile.depth + offset
            differing = queries[word, :][:, None] ^ points[word, here][None, :]
            total += lax.population_count(differing)
        return total

    start = jnp.zeros((tile.queries, tile.points), jnp.int32)
    return lax.fori_loop(0, depth // tile.depth, further, start)
