"""Exact k nearest neighbors of every point among all others, without the n x n matrix.

Distances are made a row of tiles at a time and reduced at once to each point's k best. Results are
sorted by (distance, index): among equal distances the smaller index comes first, so they are unique
and every backend returns the same.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

from jaxfed.errors import UsageError
from jaxfed.kernels import hamming, lsh

# Columns whose distances are held at a time for one tile of queries: 1024 x 16384 int16 = 32 MiB.
_CHUNK_COLUMNS = 16384


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

    Cost: n^2 W word operations, n (n / s + k s) selections with s about sqrt(n / k). Memory: two
    copies of the codes, the result, and a tile of 32 MiB; under `jax.vmap`, a tile per client.
    Compiled anew for each (n, W, k).
    """
    hamming.check_backend(backend)
    bits = hamming.check_codes(bits)
    valid = _check(bits.shape[0], num_neighbors, valid)
    return _hamming_knn(bits, valid, num_neighbors, backend)


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
    search = functools.partial(_search_tiles, num_neighbors=num_neighbors)
    return hamming.on_platform(backend, search, bits, valid)


def _search_tiles(
    kernel: hamming.TileKernel, bits: jax.Array, valid: jax.Array, *, num_neighbors: int
) -> tuple[jax.Array, jax.Array]:
    n, num_words = bits.shape
    missing = num_words * lsh.WORD_BITS + 1
    k = min(num_neighbors, n)
    if k == 0:
        empty = jnp.zeros((0, num_neighbors), jnp.int32)
        return empty, empty
    tiles = hamming.tiles(bits, kernel.width)
    num_tiles, _, width = tiles.shape
    ids = jnp.arange(num_tiles * width, dtype=jnp.int32).reshape(num_tiles, width)
    allowed = jnp.pad(valid, (0, ids.size - n)).reshape(ids.shape)

    # Distances are held a chunk of columns at a time; a key (distance, column) must fit 31 bits.
    chunk_columns = min(_CHUNK_COLUMNS, (2**31 - 1) // (missing + 1))
    num_chunks = -(-num_tiles // max(1, chunk_columns // width))
    chunk_tiles = -(-num_tiles // num_chunks)
    strip = _strip_length(chunk_tiles * width, k)

    def into_chunks(x: jax.Array) -> jax.Array:
        """[tiles, ...] -> [chunks, tiles, ...]"""
        padding = [(0, num_chunks * chunk_tiles - num_tiles)] + [(0, 0)] * (x.ndim - 1)
        return jnp.pad(x, padding).reshape(num_chunks, chunk_tiles, *x.shape[1:])

    chunks = (into_chunks(tiles), into_chunks(ids), into_chunks(allowed))

    def neighbors_of_tile(query: tuple[jax.Array, jax.Array]) -> _Nearest:
        query_words, query_ids = query

        def tile_distances(column: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            words, column_ids, column_allowed = column
            excluded = (column_ids[:, None] == query_ids[None, :]) | ~column_allowed[:, None]
            start = jnp.where(excluded, missing, 0).astype(hamming.distance_dtype(num_words))
            distances = kernel.distances(words, query_words, start)
            strips = distances.reshape(width // strip, strip, width)
            return strips, functools.reduce(jnp.minimum, [strips[:, i] for i in range(strip)])

        def search_chunk(
            best: _Nearest, chunk: tuple[jax.Array, ...]
        ) -> tuple[_Nearest, None]:
            strips, minima = lax.map(tile_distances, chunk)
            distances, columns = _nearest_in_strips(
                strips.reshape(-1, strip, width), minima.reshape(-1, width), k, missing
            )
            first_id = chunk[1][0, 0]
            return _merge(best, (distances, first_id + columns), k), None

        nobody = (jnp.full((width, k), missing, jnp.int32), jnp.full((width, k), -1, jnp.int32))
        return lax.scan(search_chunk, nobody, chunks)[0]

    distances, indices = (x.reshape(-1, k)[:n] for x in lax.map(neighbors_of_tile, (tiles, ids)))
    found = (distances < missing) & valid[:, None]
    return (
        _padded(jnp.where(found, indices, -1), num_neighbors, -1),
        _padded(jnp.where(found, distances, missing), num_neighbors, missing),
    )


# (distances or similarities [rows, k], indices int32 [rows, k]), best first.
_Nearest = tuple[jax.Array, jax.Array]


def _strip_length(num_columns: int, k: int) -> int:
    """Power of two near the s that minimizes the two selections, num_columns / s + k s."""
    ideal = math.sqrt(num_columns / k)
    return 2 ** min(max(round(math.log2(ideal)), 0), int(math.log2(hamming.TILE_MULTIPLE)))


def _nearest_in_strips(
    distances: jax.Array, minima: jax.Array, k: int, missing: int
) -> _Nearest:
    """The k nearest columns of every query, exactly, by strips of consecutive columns.

    Order columns by (distance, column). A strip that holds one of the first k columns is one of the
    first k strips by (minimum, strip): the columns that realize the minima of the strips before it
    come before that column. So the first k strips hold the first k columns.

    Queries lie along the last axis, the vector lanes, and selection takes one minimum of unique
    keys after another: on CPU five times faster than `lax.top_k`.

    Args:
      distances: [strips, strip, queries].
      minima: [strips, queries], over each strip.
      k: how many columns.
      missing: distances from here on mark an excluded pair.
    """
    num_strips, strip, num_queries = distances.shape
    strip_id = jnp.arange(num_strips, dtype=jnp.int32)[:, None]
    _, strips = _smallest(minima, strip_id, num_strips, k, missing)
    place = jnp.arange(strip, dtype=jnp.int32)[None, :, None]
    query = jnp.arange(num_queries, dtype=jnp.int32)[None, None, :]
    candidates = distances.at[strips[:, None, :], place, query].get(mode="promise_in_bounds")
    columns = strips[:, None, :] * strip + place
    found = _smallest(
        candidates.reshape(-1, num_queries),
        columns.reshape(-1, num_queries),
        num_strips * strip,
        k,
        missing,
    )
    return found[0].T, found[1].T


def _smallest(
    distances: jax.Array, ids: jax.Array, num_ids: int, k: int, missing: int
) -> _Nearest:
    """The k first by (distance, id) down each column; ids are unique, below `num_ids`."""
    keys = jnp.minimum(distances, missing).astype(jnp.int32) * num_ids + ids
    k = min(k, keys.shape[0])

    def next_smallest(last: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        rest = jnp.where(keys > last[None, :], keys, jnp.iinfo(jnp.int32).max)
        smallest = rest.min(axis=0)
        return smallest, smallest

    nothing = jnp.full(keys.shape[1], -1, jnp.int32)
    chosen = lax.scan(next_smallest, nothing, length=k)[1]
    return jnp.divmod(chosen, num_ids)


def _merge(first: _Nearest, second: _Nearest, k: int) -> _Nearest:
    """The k nearest of two; `first` holds the smaller indices."""
    distances = jnp.concatenate([first[0], second[0]], axis=1)
    indices = jnp.concatenate([first[1], second[1]], axis=1)
    # XLA:CPU selects from float32 a hundred times faster than from int32; exact to 2^24.
    _, place = lax.top_k(-distances.astype(jnp.float32), k)
    return (
        jnp.take_along_axis(distances, place, axis=1, mode="promise_in_bounds"),
        jnp.take_along_axis(indices, place, axis=1, mode="promise_in_bounds"),
    )


def _padded(x: jax.Array, num_columns: int, value: int) -> jax.Array:
    return jnp.pad(x, ((0, 0), (0, num_columns - x.shape[1])), constant_values=value)
