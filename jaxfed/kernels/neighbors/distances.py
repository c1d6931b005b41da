"""Distances between two points, in the form that the symmetric kNN search (`pairs_once`) uses.

h(i, j) = h(j, i) = sum over words w of c(i_w, j_w)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxfed.kernels import hamming, lsh
from jaxfed.kernels.neighbors import column_minima
from jaxfed.kernels.neighbors.nearest import Nearest

_HAMMING_BLOCK = 16384  # points: minima of 2 bytes x 16384 x 1024 strips, two times


class Tile(NamedTuple):
    """Some points, or T tiles of them with T for the first axis.

    Attributes:
      points: [words, width].
      ids: int32 [width].
      allowed: bool [width], False for padding.
    """

    points: jax.Array
    ids: jax.Array
    allowed: jax.Array


# (the other tile, true if it is the same one) -> [width, width]; `missing` or more where a point is not
# allowed, or is paired with itself.
ToTile = Callable[[Tile, bool], jax.Array]


class Distances(NamedTuple):
    """A distance function and its parameters for the search.

    Attributes:
      width: largest number of points per side of a tile.
      block_points: points of a block; the search holds the strip minima of two blocks at a time.
      missing: a value above every distance.
      dtype: of a tile's distances.
      sum_dtype: of a distance that is counted separately.
      words: ([n, W], valid bool [n]) -> [n, words], points as tiles hold them.
      from_tile: the distances from the points of a tile.
      of_words: c, in `sum_dtype`.
      first: (distances [m, queries], k) -> the k first of each column by (distance, row), in `sum_dtype`, and
        their rows.
    """

    width: int
    block_points: int
    missing: float
    dtype: jnp.dtype
    sum_dtype: jnp.dtype
    words: Callable[[jax.Array, jax.Array], jax.Array]
    from_tile: Callable[[Tile], ToTile]
    of_words: Callable[[jax.Array, jax.Array], jax.Array]
    first: Callable[[jax.Array, int], Nearest]


def no_distance(num_words: int) -> int:
    """L + 1, the Hamming distance of a neighbor that does not exist."""
    return num_words * lsh.WORD_BITS + 1


def hamming_distances(kernel: hamming.TileKernel, num_words: int) -> Distances:
    """Hamming distances of codes, uint32 [n, num_words]; `missing` is L + 1."""
    missing, dtype = no_distance(num_words), hamming.distance_dtype(num_words)

    def from_tile(tile: Tile) -> ToTile:
        def to_tile(other: Tile, is_same: bool) -> jax.Array:
            excluded = ~tile.allowed[:, None] | ~other.allowed[None, :]
            if is_same:
                excluded |= tile.ids[:, None] == other.ids[None, :]
            start = jnp.where(excluded, missing, 0).astype(dtype)
            return kernel.distances(tile.points, other.points, start)

        return to_tile

    return Distances(
        width=kernel.width,
        block_points=_HAMMING_BLOCK,
        missing=missing,
        dtype=dtype,
        sum_dtype=jnp.dtype(jnp.int32),
        words=lambda codes, _: kernel.words(codes),
        from_tile=from_tile,
        of_words=lambda a, b: lax.population_count(a ^ b).astype(jnp.int32),
        first=column_minima.first_numbered,
    )


def can_number(num_words: int, k: int, tile_width: int) -> bool:
    """True if 31 bits hold a Hamming distance, up to 2 L + 1 for excluded points, and a row number."""
    numbers = max((_HAMMING_BLOCK + 32 * tile_width), k * 16**2) // 16
    return (2 * num_words * lsh.WORD_BITS + 1).bit_length() + numbers.bit_length() <= 31
