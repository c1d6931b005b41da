"""The search as one kernel of a TPU, by Pallas's lowering to Mosaic.

The grid goes through the points for one block of queries after another; while the matrix unit multiplies a
tile, the next one is fetched. A block's best stays in the core's memory until all points have passed.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu

from jaxfed.kernels.fused import running_best

_LANES = 128


class Tile(NamedTuple):
    """Shape of a tile; `queries` and `points` are multiples of 128, `depth` of 512 is cut where L is less."""

    queries: int = 256
    points: int = 512
    depth: int = 2048  # signs of a pass


# By reasoning, not measured: two of each 256 x 2048 and 512 x 2048 signs, and sums and keys of 256 x 512, are
# 4 MiB of the 16 that a kernel may have. Compiled for v5e and v6e; v4 multiplies bfloat16 only.
TILE = Tile()


def search(
    queries: jax.Array,
    points: jax.Array,
    is_excluded: jax.Array,
    own_column: jax.Array,
    *,
    k: int,
    num_bits: int,
    tile: Tile = TILE,
    interpret: bool = False,
) -> jax.Array:
    """Keys of each query's k nearest points, in no order (`running_best`), int32 [m, k].

    Arguments as of `jaxfed.kernels.fused.gpu.search`, signs only.
    """
    m, n = len(queries), len(points)
    depth = min(tile.depth, pl.cdiv(num_bits, _LANES) * _LANES)
    blocks, tiles, passes = (
        pl.cdiv(m, tile.queries),
        pl.cdiv(n, tile.points),
        pl.cdiv(num_bits, depth),
    )
    slots = _LANES

    def filled(array: jax.Array, rows: int) -> jax.Array:
        return jnp.pad(array, ((0, rows - len(array)), (0, passes * depth - num_bits)))

    is_excluded = jnp.pad(is_excluded, (0, tiles * tile.points - n), constant_values=True)
    return pl.pallas_call(
        partial(_kernel, tile=tile, passes=passes, k=k, num_bits=num_bits),
        grid=(blocks, tiles, passes),
        in_specs=[
            pl.BlockSpec(memory_space=tpu.SMEM),
            pl.BlockSpec((tile.queries, depth), lambda i, j, w: (i, w)),
            pl.BlockSpec((tile.points, depth), lambda i, j, w: (j, w)),
            pl.BlockSpec((1, tile.points), lambda i, j, w: (0, j)),
        ],
        out_specs=pl.BlockSpec((tile.queries, slots), lambda i, j, w: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((blocks * tile.queries, slots), jnp.int32),
        scratch_shapes=[
            tpu.VMEM((tile.queries, tile.points), _sums(queries.dtype)),
            tpu.VMEM((tile.queries, tile.points), jnp.int32),
        ],
        compiler_params=tpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary")
        ),
        interpret=interpret,
        name="nearest_points",
    )(
        own_column[None],
        filled(queries, blocks * tile.queries),
        filled(points, tiles * tile.points),
        is_excluded[None].astype(jnp.int32),
    )[:m, :k]


def _sums(signs: jnp.dtype) -> Any:
    return jnp.int32 if jnp.issubdtype(signs, jnp.integer) else jnp.float32


def _kernel(
    own_column: Any,
    queries: Any,
    points: Any,
    is_excluded: Any,
    out: Any,
    agreement: Any,
    keys: Any,
    *,
    tile: Tile,
    passes: int,
    k: int,
    num_bits: int,
) -> None:
    block, number, depth = (pl.program_id(axis) for axis in range(3))
    shape = tile.queries, tile.points

    @pl.when((number == 0) & (depth == 0))
    def _() -> None:
        out[...] = running_best.nobody(tile.queries, out.shape[1], k)

    @pl.when(depth == 0)
    def _() -> None:
        agreement[...] = jnp.zeros(shape, agreement.dtype)

    agreement[...] += lax.dot_general(
        queries[...],
        points[...],
        (((1,), (1,)), ((), ())),
        preferred_element_type=agreement.dtype,
    )

    @pl.when(depth == passes - 1)
    def _() -> None:
        distances = (num_bits - agreement[...].astype(jnp.int32)) >> 1
        columns = number * tile.points + lax.broadcasted_iota(jnp.int32, shape, 1)
        own = own_column[0] + block * tile.queries + lax.broadcasted_iota(jnp.int32, shape, 0)
        is_out = (is_excluded[...] != 0) | (columns == own)
        keys[...] = jnp.where(
            is_out, running_best.NOBODY, running_best.as_keys(distances, columns, num_bits)
        )

        def another(_: jax.Array) -> jax.Array:
            nearest, worst, _ = running_best.nearest_and_worst(keys[...], out[...])
            keys[...], out[...] = running_best.with_nearest(keys[...], out[...], nearest, worst)
            return running_best.nearest_and_worst(keys[...], out[...])[2]

        lax.while_loop(
            lambda more: more, another, running_best.nearest_and_worst(keys[...], out[...])[2]
        )
