"""Distances between two points, in the form that the symmetric kNN search (`pairs_once`) uses.

h(i, j) = h(j, i) = sum over words w of c(i_w, j_w)
h(u, v) = -<u, v> / (|u| |v|)                         negated cosines, in (-2, 2)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxfed.kernels import column_minima, hamming, lsh
from jaxfed.kernels.nearest import Nearest

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


# Larger than any negated cosine.
MISSING = 2.0

# Added for each excluded point of a pair: the sum exceeds `MISSING` for any cosine.
_EXCLUDED = 4.0

# Points per side of a tile.
TILE = 1024


def directions(vectors: jax.Array) -> jax.Array:
    """u / |u| of float32 [n, d]; zero where u is. No square over- or underflows."""
    largest = jnp.abs(vectors).max(axis=1, keepdims=True, initial=0)
    scaled = vectors / jnp.where(largest > 0, largest, 1)
    norms = jnp.linalg.norm(scaled, axis=1, keepdims=True)
    return scaled / jnp.where(norms > 0, norms, 1)


def cosines_of_tiles(a: jax.Array, b: jax.Array, excluded: jax.Array) -> jax.Array:
    """Distances of directions [d, r] and [d, c], float32 [r, c]; `MISSING` where excluded."""
    return jnp.where(excluded, MISSING, -_product(a, b))


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return lax.dot_general(
        a,
        b,
        (((0,), (0,)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


def _words(directions: jax.Array, valid: jax.Array) -> jax.Array:
    """[n, d] -> [n, d + 2]: each direction, then 1, then 1 if the point is excluded, else 0."""
    marks = jnp.stack([jnp.ones_like(valid), ~valid], axis=1).astype(directions.dtype)
    return jnp.concatenate([directions, marks], axis=1)


def _from_tile(tile: Tile) -> ToTile:
    """-<u, v> + 4 (excluded_u 1 + 1 excluded_v) as one product, without a second pass."""
    directions, one, excluded = tile.points[:-2], tile.points[-2:-1], tile.points[-1:]
    from_here = jnp.concatenate([-directions, _EXCLUDED * excluded, _EXCLUDED * one])

    def to_tile(other: Tile, is_same: bool) -> jax.Array:
        distances = _product(from_here, other.points)
        if not is_same:
            return distances
        return jnp.where(tile.ids[:, None] == other.ids[None, :], MISSING, distances)

    return to_tile


COSINES = Distances(
    width=TILE,
    block_points=10_240,
    missing=MISSING,
    dtype=jnp.dtype(jnp.float32),
    sum_dtype=jnp.dtype(jnp.float32),
    words=_words,
    from_tile=_from_tile,
    of_words=lambda a, b: -(a * b),
    first=column_minima.first,
)
