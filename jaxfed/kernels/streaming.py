"""Codes of vectors on the host or on disk, with one block of rows on the device at a time.

    B = sign(V Pi^T), packed,     V = V_1 over V_2 over ...,  rows of V in blocks, Pi as a whole

n points of d floats are 4 n d bytes, their codes L / 8 n: at d = 1280 and L = 4096 a tenth. Codes stay
packed and on the host, where searches read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.kernels import lsh
from jaxfed.kernels.devices.padding import padded_length

# Bytes of float32 vectors in a block: large compared with the cost of a call, small compared with a
# device's memory.
_BLOCK_BYTES = 1 << 23
_BLOCKS_AT_ONCE = 2  # one on the device, and the next one on its way there
SMALLEST_BLOCK = 256  # rows: those of one product of `lsh.sign_bits`


def streamed_bits(parts: Sequence[np.ndarray], planes: jax.Array) -> np.ndarray:
    """`lsh.sign_bits` of all parts' rows, in order, bit for bit as in one piece.

    While the device projects a block, the host reads the next, from disk if the parts are `np.memmap`s.
    Blocks may span several parts.

    Args:
      parts: real [n_i, d], on the host or on disk; computed in float32.
      planes: float32 [L, d], of `lsh.hyperplanes`.

    Returns:
      uint32 [sum n_i, L / 32], on the host.

    Cost: as `lsh.sign_bits`. Memory: on the device two blocks, Pi and their codes, on the host one block and
    the codes. One program serves all blocks of a size; fewer points than a block need one more.
    """
    num_rows, dim = sum(map(len, parts)), planes.shape[1]
    block_rows = rows_of_block(num_rows, dim)
    codes = np.empty((num_rows, planes.shape[0] // lsh.WORD_BITS), np.uint32)
    waiting: list[tuple[int, jax.Array]] = []
    for first, block in enumerate(_blocks(parts, block_rows, dim)):
        waiting.append((first * block_rows, lsh.sign_bits(jnp.asarray(block), planes)))
        if len(waiting) == _BLOCKS_AT_ONCE:
            _write(codes, *waiting.pop(0))
    for left in waiting:
        _write(codes, *left)
    return codes


def rows_of_block(num_rows: int, dim: int) -> int:
    """Rows of a block: 8 MiB of vectors with `dim` entries, a multiple of 256, and no more than there are."""
    rows = max(1, -(-(_BLOCK_BYTES // (4 * max(dim, 1))) // SMALLEST_BLOCK)) * SMALLEST_BLOCK
    return min(rows, padded_length(num_rows))


def codes_bytes(num_rows: int, dim: int, num_bits: int) -> int:
    """Device memory of `streamed_bits`: Pi, projections of 256 rows, and the blocks with their codes."""
    planes, projections = 4 * num_bits * dim, 4 * num_bits * SMALLEST_BLOCK
    blocks = _BLOCKS_AT_ONCE * rows_of_block(num_rows, dim) * (4 * dim + num_bits // 8)
    return planes + projections + blocks


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
