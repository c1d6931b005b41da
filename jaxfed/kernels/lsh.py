"""Locality-sensitive hashing of vectors into packed bits (XCLP, Algorithm 1, lines 3-4; C.2).

    b_l(v) = 1 if <v, u_l> >= 0 else 0,      u_l ~ N(0, I_d),  l = 1 ... L

Two vectors at angle theta then differ in each bit with probability theta / pi, and their cosine is
estimated by cos(pi h / L) from the Hamming distance h of their codes.

Packed codes are uint32 words: bit l of a point is bit l % 32 (least significant first) of its word
l // 32.

Vectors on the host or on disk are coded with one block of rows on the device at a time (`streamed_bits`). n
points of d floats are 4 n d bytes, their codes L / 8 n: at d = 1280 and L = 4096 a tenth. Codes stay packed
and on the host, where searches read them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from jaxfed.errors import UsageError
from jaxfed.kernels.arrays import as_float32
from jaxfed.kernels.devices import padded_length

WORD_BITS = 32

# Points projected at a time. Every matrix product has this many rows, whatever the number of
# points, so a point's bits do not depend on how many others are projected along with it.
_BLOCK = 256


def project_bits(vectors: jax.Array, key: jax.Array, num_bits: int) -> jax.Array:
    """Signs of `num_bits` Gaussian projections of each vector, packed.

    The hyperplanes depend on `key` and `num_bits` alone: clients that share the key share Pi, and
    the same vector has the same code wherever it is projected. A zero vector gets all ones
    (<0, u> = 0 >= 0). A vector with a NaN gets all zeros, without an error: a check would cost
    a pass. Bits do not depend on a vector's scale, but entries below 1.2e-38 count as 0. Products
    are float32 at the highest precision, because the TF32 or bfloat16 that accelerators would
    otherwise use flips the bits of vectors close to a hyperplane.

    Args:
      vectors: [n, d], any real dtype; computed in float32.
      key: a typed key (`jax.random.key`).
      num_bits: L, a positive multiple of 32.

    Returns:
      uint32 [n, L / 32].

    Raises:
      UsageError: `num_bits` is not a positive multiple of 32, or `vectors` is not a real matrix.

    Cost: 2 n d L operations and L d normal deviates; holds Pi (L d floats) and 256 L floats of
    projections, never n L. To project many small sets one after another, make `hyperplanes` once
    and call `sign_bits`. Under `jax.vmap` with a shared key, Pi is made once and the points of all
    clients go through the same blocks.
    """
    vectors = _as_matrix(vectors)
    return sign_bits(vectors, hyperplanes(key, num_bits, vectors.shape[1]))


def hyperplanes(key: jax.Array, num_bits: int, dim: int) -> jax.Array:
    """Pi, float32 [num_bits, dim]: independent standard normals (Algorithm 1, line 3).

    Row l depends on (key, l) and `dim` only, so the first rows stay the same when `num_bits` grows.

    Raises:
      UsageError: `num_bits` is not a positive multiple of 32.
    """
    if num_bits <= 0 or num_bits % WORD_BITS:
        raise UsageError(f"num_bits must be a positive multiple of {WORD_BITS}, got {num_bits}")
    return _hyperplanes(key, num_bits, dim)


@functools.partial(jax.jit, static_argnames=("num_bits", "dim"))
def _hyperplanes(key: jax.Array, num_bits: int, dim: int) -> jax.Array:
    row_keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(num_bits, dtype=jnp.uint32))
    return jax.vmap(lambda row_key: jax.random.normal(row_key, (dim,), jnp.float32))(row_keys)


def sign_bits(vectors: jax.Array, planes: jax.Array) -> jax.Array:
    """Packed bits 1[<v, u> >= 0] of `vectors` [n, d] against the rows of `planes` [L, d].

    Returns:
      uint32 [n, L / 32]; see `project_bits`.
    """
    return _sign_bits(_as_matrix(vectors), planes)


@jax.jit
def _sign_bits(vectors: jax.Array, planes: jax.Array) -> jax.Array:
    return _blocked_sign_bits(vectors, planes)


@custom_vmap
def _blocked_sign_bits(vectors: jax.Array, planes: jax.Array) -> jax.Array:
    n, dim = vectors.shape
    num_words = planes.shape[0] // WORD_BITS
    num_blocks = -(-n // _BLOCK)
    blocks = jnp.pad(vectors, ((0, num_blocks * _BLOCK - n), (0, 0)))

    def project(block: jax.Array) -> jax.Array:
        projections = lax.dot_general(
            _near_one(block),
            planes,
            (((1,), (1,)), ((), ())),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
        return pack_bits(projections >= 0)

    words = lax.map(project, blocks.reshape(num_blocks, _BLOCK, dim))
    return words.reshape(num_blocks * _BLOCK, num_words)[:n]


@_blocked_sign_bits.def_vmap
def _sign_bits_of_batch(
    axis_size: int, in_batched: list[bool], vectors: jax.Array, planes: jax.Array
) -> tuple[jax.Array, bool]:
    """Project elements that share Pi as one long set of points, others one after another."""
    vectors_batched, planes_batched = in_batched
    if planes_batched:
        if not vectors_batched:
            vectors = jnp.broadcast_to(vectors, (axis_size, *vectors.shape))
        return lax.map(lambda pair: _blocked_sign_bits(*pair), (vectors, planes)), True
    words = _blocked_sign_bits(vectors.reshape(-1, vectors.shape[-1]), planes)
    return words.reshape(*vectors.shape[:2], -1), True


def _near_one(vectors: jax.Array) -> jax.Array:
    """Each row times the power of two that scales its largest entry to 1 ... 2.

    Bits do not depend on a row's scale. Products of entries near the ends of float32's range would vanish or
    become infinite. A power of two causes no rounding.
    """
    largest = jnp.abs(vectors).max(axis=1, keepdims=True, initial=0)
    exponent = lax.bitcast_convert_type(largest, jnp.uint32) & jnp.uint32(0x7F800000)
    power = lax.bitcast_convert_type(exponent, jnp.float32)
    return vectors * (1 / jnp.clip(power, 2.0**-126, 2.0**126))


def pack_bits(bits: jax.Array) -> jax.Array:
    """Boolean [..., L] to uint32 [..., L / 32], least significant bit first. L % 32 must be 0."""
    grouped = bits.reshape(*bits.shape[:-1], bits.shape[-1] // WORD_BITS, WORD_BITS)
    return jnp.where(grouped, _bit_values(grouped.ndim), jnp.uint32(0)).sum(-1, dtype=jnp.uint32)


def unpack_bits(words: jax.Array) -> jax.Array:
    """uint32 [..., W] to boolean [..., 32 W]: the inverse of `pack_bits`."""
    bits = (words[..., None] & _bit_values(words.ndim + 1)) != 0
    return bits.reshape(*words.shape[:-1], words.shape[-1] * WORD_BITS)


def _bit_values(ndim: int) -> jax.Array:
    """1, 2, 4 ... 2^31 along the last of `ndim` axes."""
    values = jnp.uint32(1) << jnp.arange(WORD_BITS, dtype=jnp.uint32)
    return values.reshape((1,) * (ndim - 1) + (WORD_BITS,))


def _as_matrix(vectors: jax.Array) -> jax.Array:
    vectors = as_float32("vectors", vectors)
    if vectors.ndim != 2:
        raise UsageError(f"vectors must be a matrix [n, d], got shape {vectors.shape}")
    return vectors


# Bytes of float32 vectors in a block: large compared with the cost of a call, small compared with a
# device's memory.
_BLOCK_BYTES = 1 << 23
_BLOCKS_AT_ONCE = 2  # one on the device, and the next one on its way there
SMALLEST_BLOCK = 256  # rows: those of one product of `sign_bits`


def streamed_bits(parts: Sequence[np.ndarray], planes: jax.Array) -> np.ndarray:
    """`sign_bits` of all parts' rows, in order, bit for bit as in one piece.

    While the device projects a block, the host reads the next, from disk if the parts are `np.memmap`s.
    Blocks may span several parts.

    Args:
      parts: real [n_i, d], on the host or on disk; computed in float32.
      planes: float32 [L, d], of `hyperplanes`.

    Returns:
      uint32 [sum n_i, L / 32], on the host.

    Cost: as `sign_bits`. Memory: on the device two blocks, Pi and their codes, on the host one block and
    the codes. One program serves all blocks of a size; fewer points than a block need one more.
    """
    num_rows, dim = sum(map(len, parts)), planes.shape[1]
    block_rows = rows_of_block(num_rows, dim)
    codes = np.empty((num_rows, planes.shape[0] // WORD_BITS), np.uint32)
    waiting: list[tuple[int, jax.Array]] = []
    for first, block in enumerate(_blocks(parts, block_rows, dim)):
        waiting.append((first * block_rows, sign_bits(jnp.asarray(block), planes)))
        if len(waiting) == _BLOCKS_AT_ONCE:
            _write(codes, *waiting.pop(0))
    for left in waiting:
        _write(codes, *left)
    return codes


def rows_of_block(num_rows: int, dim: int) -> int:
    """Rows of a block: 8 MiB of vectors with `dim` entries, a multiple of 256, and no more than there are."""
    rows = max(1, -(-(_BLOCK_BYTES // (4 * max(dim, 1))) // SMALLEST_BLOCK)) * SMALLEST_BLOCK
    return min(rows, padded_length(num_rows))


def _write(codes: np.ndarray, first: int, block: jax.Array) -> None:
    rows = codes[first : first + len(block)]
    rows[:] = np.asarray(block)[: len(rows)]


def _blocks(parts: Sequence[np.ndarray], block_rows: int, dim: int) -> Iterator[np.ndarray]:
    """float32 [block_rows, d], all rows of all parts in order; zeros after the last."""
    block, filled = np.zeros((block_rows, dim), np.float32), 0
    for part in parts:
        start = 0
        while start < len(part):
            taken = min(block_rows - filled, len(part) - start)
            block[filled : filled + taken] = part[start : start + taken]
            start, filled = start + taken, filled + taken
            if filled == block_rows:
                yield block
                # A new array: on a CPU the device may still read this one in place.
                block, filled = np.zeros((block_rows, dim), np.float32), 0
    if filled:
        yield block
