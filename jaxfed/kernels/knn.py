"""Exact k nearest neighbors of every point among all others, without the n x n matrix.

Distances are made a row of tiles at a time and reduced at once to each point's k best. Results are
sorted by (distance, index): among equal distances the smaller index comes first, so they are unique
and every backend returns the same.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxfed.errors import UsageError
from jaxfed.kernels import hamming, lsh

# Columns whose distances are held at a time for one tile of queries: 1024 x 16384 int16 = 32 MiB.
_CHUNK_COLUMNS = 16384

# Points a side of a tile of cosines.
_COSINE_TILE = 1024

# Further than any: cosines lie in [-1, 1], distances are their negatives.
_NO_COSINE = 2.0


def hamming_knn(
    bits: jax.Array,
    num_neighbors: int,
    *,
    valid: jax.Array | None = None,
    backend: str = "auto",
) -> tuple[jax.Array, jax.Array]:
    """Each point's `num_neighbors` nearest others in Hamming distance, exactly.

    Args:
      bits: uint32 [n, W], packed codes (`lsh.project_bits`), L = 32 W bits.
      num_neighbors: k > 0; may exceed n - 1.
      valid: bool [n], False for padding: such a point is nobody's neighbor and has none.
      backend: "popcount", "matmul" or "auto", as for `hamming.distances`.

    Returns:
      (indices int32 [n, k], distances int32 [n, k]), rows sorted by (distance, index), the point
      itself left out. Where fewer than k other valid points exist: index -1, distance L + 1.

    Raises:
      UsageError: `num_neighbors` < 1, unknown backend, codes that are not uint32 [n, W], or `valid`
        of another length.

    Cost: n^2 W word operations, and k minima over n / s + k s values a point with s about
    sqrt(n / k), at most 32: little beside the distances for k = 10, as much for k = 100. Memory:
    two copies of the codes, the result, and distances of 1024 x 16384 pairs (32 MiB; matmul 4096 x
    16384). Under `jax.vmap` popcount searches one client after another in that memory; matmul
    searches them at once, with as many tiles. Compiled anew for each (n, W, k).
    """
    hamming.check_backend(backend)
    bits = hamming.check_codes(bits)
    valid = _check(bits.shape[0], num_neighbors, valid)
    return _hamming_knn(bits, valid, num_neighbors, backend)


def hamming_knn_among(
    queries: jax.Array,
    bits: jax.Array,
    num_neighbors: int,
    *,
    valid: jax.Array | None = None,
    backend: str = "auto",
) -> tuple[jax.Array, jax.Array]:
    """Each query's `num_neighbors` nearest points in Hamming distance, exactly; queries are no points.

    Args:
      queries: uint32 [m, W], packed codes.
      bits: uint32 [n, W], of the points, n > 0.
      num_neighbors: k > 0; may exceed n.
      valid: bool [n], False for padding: such a point is nobody's neighbor.
      backend: as for `hamming_knn`.

    Returns:
      (indices int32 [m, k], distances int32 [m, k]), rows sorted by (distance, index). Where fewer than k
      valid points exist: index -1, distance L + 1.

    Raises:
      UsageError: as `hamming_knn`.

    Cost: m n W word operations and m n k comparisons; memory for m n distances: a few hundred queries at
    a time are meant.
    """
    n = bits.shape[0]
    valid = _check(n, num_neighbors, valid)
    missing = bits.shape[1] * lsh.WORD_BITS + 1
    distances = hamming.distances(bits, queries, backend=backend)
    distances = jnp.where(valid[:, None], distances, missing)
    ids = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32)[:, None], distances.shape)
    nearest, indices = _smallest(distances, ids, num_neighbors)
    indices = jnp.where(nearest < missing, indices, -1)
    beyond = ((0, 0), (0, num_neighbors - len(nearest)))
    return (
        jnp.pad(indices.T, beyond, constant_values=-1),
        jnp.pad(nearest.T, beyond, constant_values=missing),
    )


def cosine_knn(
    vectors: jax.Array, num_neighbors: int, *, valid: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Each point's `num_neighbors` most similar others by exact cosine <u, v> / (|u| |v|).

    What `hamming_knn` on LSH codes approximates. A zero vector has cosine 0 with every point.

    Args:
      vectors: [n, d], finite, any real dtype; computed in float32 at the highest precision.
      num_neighbors: k > 0; may exceed n - 1.
      valid: bool [n], False for padding: such a point is nobody's neighbor and has none.

    Returns:
      (indices int32 [n, k], similarities float32 [n, k]), rows sorted by similarity, highest first,
      equal ones (after float32 rounding) by index, the point itself left out. Where fewer than k
      other valid points exist: index -1, similarity -2.

    Raises:
      UsageError: `num_neighbors` < 1, `vectors` that are not a matrix, `valid` of another length.

    Cost: n^2 d multiply-adds. Memory: two copies of the vectors, the result, and a tile of 64 MiB.
    """
    vectors = jnp.asarray(vectors, jnp.float32)
    if vectors.ndim != 2:
        raise UsageError(f"vectors must be a matrix [n, d], got shape {vectors.shape}")
    return _cosine_knn(vectors, _check(vectors.shape[0], num_neighbors, valid), num_neighbors)


def _check(n: int, num_neighbors: int, valid: jax.Array | None) -> jax.Array:
    if num_neighbors < 1:
        raise UsageError(f"num_neighbors must be at least 1, got {num_neighbors}")
    if valid is None:
        return jnp.ones(n, jnp.bool_)
    valid = jnp.asarray(valid)
    if valid.shape != (n,) or valid.dtype != jnp.bool_:
        raise UsageError(
            f"valid must be bool of shape ({n},), got {valid.dtype} of shape {valid.shape}"
        )
    return valid


@functools.partial(jax.jit, static_argnames=("num_neighbors", "backend"))
def _hamming_knn(
    bits: jax.Array, valid: jax.Array, num_neighbors: int, backend: str
) -> tuple[jax.Array, jax.Array]:
    num_words = bits.shape[1]
    missing = num_words * lsh.WORD_BITS + 1
    dtype = hamming.distance_dtype(num_words)

    def search(
        kernel: hamming.TileKernel, bits: jax.Array, valid: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        def tile_distances(a: jax.Array, b: jax.Array, excluded: jax.Array) -> jax.Array:
            start = jnp.where(excluded, missing, 0).astype(dtype)
            return kernel.distances(a, b, start)

        return _search(
            tile_distances,
            bits,
            valid,
            num_neighbors,
            missing=missing,
            dtype=dtype,
            tile_width=kernel.width,
        )

    indices, distances = hamming.on_platform(backend, search, bits, valid)
    return indices, distances.astype(jnp.int32)


@functools.partial(jax.jit, static_argnames="num_neighbors")
def _cosine_knn(
    vectors: jax.Array, valid: jax.Array, num_neighbors: int
) -> tuple[jax.Array, jax.Array]:
    # Scaled by the largest entry first, so that no square over- or underflows.
    largest = jnp.abs(vectors).max(axis=1, keepdims=True, initial=0)
    scaled = vectors / jnp.where(largest > 0, largest, 1)
    norms = jnp.linalg.norm(scaled, axis=1, keepdims=True)
    directions = scaled / jnp.where(norms > 0, norms, 1)

    def tile_distances(a: jax.Array, b: jax.Array, excluded: jax.Array) -> jax.Array:
        cosines = lax.dot_general(
            a,
            b,
            (((0,), (0,)), ((), ())),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
        return jnp.where(excluded, _NO_COSINE, -cosines)

    indices, distances = _search(
        tile_distances,
        directions,
        valid,
        num_neighbors,
        missing=_NO_COSINE,
        dtype=jnp.dtype(jnp.float32),
        tile_width=_COSINE_TILE,
    )
    return indices, -distances


def _search(
    tile_distances: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
    points: jax.Array,
    valid: jax.Array,
    num_neighbors: int,
    *,
    missing: float,
    dtype: jnp.dtype,
    tile_width: int,
) -> tuple[jax.Array, jax.Array]:
    """Indices and distances [n, k] of the first k other points by (distance, index).

    Args:
      tile_distances: (a [W, c], b [W, r], excluded bool [c, r]) -> [c, r], at least `missing` where
        excluded, below it elsewhere.
      points: [n, W].
      valid: bool [n].
      num_neighbors: k.
      missing: distance of a neighbor that does not exist.
      dtype: of the distances.
      tile_width: most points a side of a tile.
    """
    n = points.shape[0]
    k = max(1, min(num_neighbors, n))
    tiles = hamming.tiles(points, tile_width)
    num_tiles, _, width = tiles.shape
    ids = jnp.arange(num_tiles * width, dtype=jnp.int32).reshape(num_tiles, width)
    allowed = jnp.pad(valid, (0, ids.size - n)).reshape(ids.shape)

    num_chunks = -(-num_tiles * width // _CHUNK_COLUMNS)
    chunk_tiles = -(-num_tiles // num_chunks)
    strip = _strip_length(chunk_tiles * width, k)

    def into_chunks(x: jax.Array) -> jax.Array:
        """[tiles, ...] -> [chunks, tiles, ...]"""
        padding = [(0, num_chunks * chunk_tiles - num_tiles)] + [(0, 0)] * (x.ndim - 1)
        return jnp.pad(x, padding).reshape(num_chunks, chunk_tiles, *x.shape[1:])

    chunks = (into_chunks(tiles), into_chunks(ids), into_chunks(allowed))

    def neighbors_of_tile(query: tuple[jax.Array, jax.Array]) -> _Nearest:
        query_points, query_ids = query

        def distances_by_strip(column: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            column_points, column_ids, column_allowed = column
            excluded = (column_ids[:, None] == query_ids[None, :]) | ~column_allowed[:, None]
            distances = tile_distances(column_points, query_points, excluded)
            strips = distances.reshape(width // strip, strip, width)
            return strips, functools.reduce(jnp.minimum, [strips[:, i] for i in range(strip)])

        def search_chunk(best: _Nearest, chunk: tuple[jax.Array, ...]) -> tuple[_Nearest, None]:
            strips, minima = lax.map(distances_by_strip, chunk)
            distances, columns = _nearest_in_strips(
                strips.reshape(-1, strip, width), minima.reshape(-1, width), k
            )
            first_id = chunk[1][0, 0]
            return _smallest(
                jnp.concatenate([best[0], distances]),
                jnp.concatenate([best[1], first_id + columns]),
                k,
            ), None

        nobody = (jnp.full((k, width), missing, dtype), jnp.full((k, width), -1, jnp.int32))
        return lax.scan(search_chunk, nobody, chunks)[0]

    distances, indices = (
        x.swapaxes(1, 2).reshape(-1, k)[:n] for x in lax.map(neighbors_of_tile, (tiles, ids))
    )
    found = (distances < missing) & valid[:, None]
    beyond = ((0, 0), (0, num_neighbors - k))
    return (
        jnp.pad(jnp.where(found, indices, -1), beyond, constant_values=-1),
        jnp.pad(jnp.where(found, distances, missing), beyond, constant_values=missing),
    )


# (distances [k, queries], ids int32 [k, queries]), nearest first. Queries lie along the last axis,
# the vector lanes.
_Nearest = tuple[jax.Array, jax.Array]


def _strip_length(num_columns: int, k: int) -> int:
    """Power of two near the s that minimizes the two selections, num_columns / s + k s."""
    ideal = math.sqrt(num_columns / k)
    return 2 ** min(max(round(math.log2(ideal)), 0), int(math.log2(hamming.TILE_MULTIPLE)))


def _nearest_in_strips(distances: jax.Array, minima: jax.Array, k: int) -> _Nearest:
    """The k nearest columns of every query, exactly, by strips of consecutive columns.

    Order columns by (distance, column). A strip that holds one of the first k columns is one of the
    first k strips by (minimum, strip): the columns that realize the minima of the strips before it
    come before that column. So the first k strips hold the first k columns.

    Args:
      distances: [strips, strip, queries].
      minima: [strips, queries], over each strip.
      k: how many columns.
    """
    num_strips, strip, num_queries = distances.shape
    strip_ids = jnp.arange(num_strips, dtype=jnp.int32)[:, None]
    _, nearest_strips = _smallest(minima, jnp.broadcast_to(strip_ids, minima.shape), k)
    strips = nearest_strips[:, None, :]
    place = jnp.arange(strip, dtype=jnp.int32)[None, :, None]
    query = jnp.arange(num_queries, dtype=jnp.int32)[None, None, :]
    candidates = distances.at[strips, place, query].get(mode="promise_in_bounds")
    columns = strips * strip + place
    return _smallest(candidates.reshape(-1, num_queries), columns.reshape(-1, num_queries), k)


def _smallest(distances: jax.Array, ids: jax.Array, k: int) -> _Nearest:
    """The k first of each column by (distance, id), one minimum after another.

    For the k in use this is five times faster on CPU than `lax.top_k`, and exact in every dtype.
    """
    largest = _largest(distances.dtype)
    no_id = jnp.iinfo(jnp.int32).max

    def next_smallest(last: _Nearest, _: None) -> tuple[_Nearest, _Nearest]:
        last_distance, last_id = last[0][None, :], last[1][None, :]
        later = (distances > last_distance) | ((distances == last_distance) & (ids > last_id))
        distance = jnp.where(later, distances, largest).min(axis=0)
        of_distance = later & (distances == distance[None, :])
        found = distance, jnp.where(of_distance, ids, no_id).min(axis=0)
        return found, found

    num_queries = distances.shape[1]
    before_all = (
        jnp.full(num_queries, -largest, distances.dtype),
        jnp.full(num_queries, -2, jnp.int32),
    )
    return lax.scan(next_smallest, before_all, length=min(k, distances.shape[0]))[1]


def _largest(dtype: jnp.dtype) -> float:
    return jnp.inf if jnp.issubdtype(dtype, jnp.floating) else int(jnp.iinfo(dtype).max)
