"""The k nearest codes to each of many queries, by kernels that write no distance to the device's memory.

    <s, s'> = L - 2 h(b, b'),    s = 2 b - 1 in {-1, +1}^L

Codes become signs, one byte a bit, which a matrix unit multiplies, or stay words whose differing bits are
counted. What XLA makes of the same search (`jaxfed.kernels.nearest`) writes every tile's products to memory
and reads them again to select from them. Which of the two is faster on a device has not been measured yet;
`python -m launch.accelerator` does. Of a GPU's kernel there is this to fear: 128 x 128 tiles of int8 read a
byte of the cache for 64 multiply-adds, where an H200's cache can hardly feed half of its tensor cores.

On a CPU the GPU's kernel is gone through step by step: slow, and meant for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxfed.errors import UsageError
from jaxfed.kernels import lsh, nearest
from jaxfed.kernels.fused import gpu, running_best, tpu
from jaxfed.kernels.nearest import Nearest

# What the operands of each kind of search are. int8 is the fastest on matrix units that have it; bfloat16 is
# for those that have not (TPUs before v5), float8 for those that have it instead (TPUs from v7 on). Sums are
# in int32 or float32, exact up to L = 2^24. For Hopper, Triton makes float16 of float8: nothing gained.
OPERANDS: dict[str, Any] = {
    "fused": jnp.int8,
    "fused_bfloat16": jnp.bfloat16,
    "fused_float8": jnp.float8_e4m3fn,
    "fused_popcount": jnp.uint32,
}

MAX_NEIGHBORS = 64

# Points, and queries, of one launch: with 4096 bits half a GiB of signs each.
_CHUNK = 2**17
_SMALLEST_CHUNK = 128


def check(backend: str, num_neighbors: int, num_words: int) -> None:
    """Raise `UsageError` where the search is beyond these kernels."""
    if num_neighbors > MAX_NEIGHBORS:
        raise UsageError(
            f"backend={backend!r} finds at most {MAX_NEIGHBORS} neighbors, got "
            f"num_neighbors={num_neighbors}; 'auto' has no limit"
        )
    if running_best.column_bits(num_words * lsh.WORD_BITS) < _SMALLEST_CHUNK.bit_length() - 1:
        raise UsageError(f"backend={backend!r} takes codes below 2^24 bits, got {num_words} words")
    if backend == "fused_popcount" and jax.default_backend() == "tpu":
        raise UsageError("backend='fused_popcount' is for GPUs; a TPU has 'fused' and 'popcount'")


def nearer(
    backend: str,
    best: Nearest,
    queries: jax.Array,
    first_query: jax.Array,
    points: jax.Array,
    valid: jax.Array,
    first_point: jax.Array,
) -> Nearest:
    """`nearest.nearer` of Hamming distances: the same neighbors, ties included.

    Args:
        backend: of `OPERANDS`.
        best: [k, m], k at most 64.
        queries: uint32 [m, W].
        first_query: int32 scalar: the ids of the queries go on from there.
        points: uint32 [n, W].
        valid: bool [n].
        first_point: int32 scalar: so do the points'; a point is not its own neighbor.

    Cost: m n L multiply-adds, or m n W population counts. Memory: signs of 131,072 queries and as many
    points (1 GiB with 4096 bits), fewer of longer codes.
    """
    m, n = len(queries), len(points)
    if not m or not n:
        return best
    num_bits = points.shape[1] * lsh.WORD_BITS
    size = min(_CHUNK, 2 ** running_best.column_bits(num_bits))
    chunks = _in_chunks(points, size), _in_chunks(valid, size)
    columns = chunks[0].shape[1]

    def of_queries(block: tuple[jax.Array, jax.Array, Nearest]) -> Nearest:
        number, codes, best = block
        first_of_block = first_query + number * codes.shape[0]
        operands = _operands(backend, codes)

        def in_chunk(
            best: Nearest, chunk: tuple[jax.Array, jax.Array, jax.Array]
        ) -> tuple[Nearest, None]:
            number, points, valid = chunk
            first = first_point + number * columns
            keys = _keys(
                operands,
                _operands(backend, points),
                ~valid,
                first_of_block - first,
                k=best[0].shape[0],
                num_bits=num_bits,
            )
            return _merged(best, keys, first, num_bits), None

        return lax.scan(in_chunk, best, (_numbers(chunks[0]), *chunks))[0]

    query_chunks = _in_chunks(queries, size)
    width = query_chunks.shape[1]

    def cut(x: jax.Array) -> jax.Array:
        """[k, m] -> [chunks, k, queries]"""
        padded = jnp.pad(x, ((0, 0), (0, len(query_chunks) * width - m)))
        return padded.reshape(len(x), -1, width).swapaxes(0, 1)

    blocks = (_numbers(query_chunks), query_chunks, (cut(best[0]), cut(best[1])))
    found = lax.map(of_queries, blocks)
    distances, ids = (x.swapaxes(0, 1).reshape(x.shape[1], -1)[:, :m] for x in found)
    return distances, ids


def _in_chunks(x: jax.Array, size: int) -> jax.Array:
    """[n, ...] -> [chunks, at most `size`, ...], as equal as they can be; the last is filled with zeros."""
    chunks = -(-len(x) // size)
    width = -(-len(x) // chunks)
    padding = [(0, chunks * width - len(x))] + [(0, 0)] * (x.ndim - 1)
    return jnp.pad(x, padding).reshape(chunks, width, *x.shape[1:])


def _numbers(chunks: jax.Array) -> jax.Array:
    return jnp.arange(len(chunks), dtype=jnp.int32)


def _operands(backend: str, codes: jax.Array) -> jax.Array:
    """Signs [n, L] of codes, or the codes words first, [W, n]."""
    dtype = OPERANDS[backend]
    if dtype == jnp.uint32:
        return codes.T
    return jnp.where(lsh.unpack_bits(codes), jnp.asarray(1, dtype), jnp.asarray(-1, dtype))


def _keys(*operands: jax.Array, k: int, num_bits: int) -> jax.Array:
    """int32 [m, k], the k smallest in order, by the kernel of the platform that is lowered for."""

    def of(kernel: Callable[..., jax.Array], **keywords: Any) -> Callable[..., jax.Array]:
        def smallest(*operands: jax.Array) -> jax.Array:
            keys = kernel(*operands, k=k, num_bits=num_bits, **keywords)
            return lax.sort(keys, dimension=1)[:, :k]

        return smallest

    kernels = {
        "cuda": of(gpu.search),
        "rocm": of(gpu.search),
        "cpu": of(gpu.search, interpret=True),
    }
    if operands[0].dtype != jnp.uint32:
        kernels["tpu"] = of(tpu.search)
    return lax.platform_dependent(*operands, **kernels)


def _merged(best: Nearest, keys: jax.Array, first_point: jax.Array, num_bits: int) -> Nearest:
    """`best` [k, m] and what keys [m, s] stand for, columns counted from `first_point`."""
    k = best[0].shape[0]
    distances, columns, is_there = running_best.decoded(keys.T, num_bits)
    ids = jnp.where(is_there, first_point + columns, -1)
    return nearest.smallest(
        jnp.concatenate([best[0], distances.astype(best[0].dtype)]),
        jnp.concatenate([best[1], ids]),
        k,
    )
