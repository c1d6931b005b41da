"""Negated cosines of vectors as distances in (-2, 2); the smallest is the nearest.

h(u, v) = -<u, v> / (|u| |v|)
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jaxfed.kernels.neighbors import column_minima
from jaxfed.kernels.neighbors.distances import Distances, Tile, ToTile

# Larger than any distance.
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


def of_tiles(a: jax.Array, b: jax.Array, excluded: jax.Array) -> jax.Array:
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
