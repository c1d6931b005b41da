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

# Tiles whose distances are held at a time for one tile of rows: 16 x 1024 x 1024 int16 = 32 MiB.
_TILES_PER_CHUNK = 16


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
    n, num_words = bits.shape
    missing = num_words * lsh.WORD_BITS + 1
    k = min(num_neighbors, n)
    if k == 0:
        empty = jnp.zeros((0, num_neighbors), jnp.int32)
        return empty, empty
    rows = hamming.tiles(bits)
    num_tiles, _, width = rows.shape
    num_chunks = -(-num_tiles // _TILES_PER_CHUNK)
    chunk_tiles = -(-num_tiles // num_chunks)
    strip = _strip_length(chunk_tiles * width, k)
    ids = jnp.arange(num_tiles * width, dtype=jnp.int32).reshape(num_tiles, width)
    allowed = jnp.pad(valid, (0, ids.size - n)).reshape(ids.shape)

    def into_chunks(tiles: jax.Array) -> jax.Array:
        """[tiles, ..., width] -> [chunks, tiles, ..., width], strips side by side (`_by_strip`)."""
        padding = [(0, num_chunks * chunk_tiles - num_tiles)] + [(0, 0)] * (tiles.ndim - 1)
        padded = jnp.pad(_by_strip(tiles, strip), padding)
        return padded.reshape(num_chunks, chunk_tiles, *padded.shape[1:])

    chunk_starts = jnp.arange(num_chunks, dtype=jnp.int32) * (chunk_tiles * width)
    chunks = (chunk_starts, into_chunks(rows), into_chunks(ids), into_chunks(allowed))

    def neighbors_of_tile(row_tile: tuple[jax.Array, jax.Array]) -> _Nearest:
        row_words, row_ids = row_tile

        def tile(column_tile: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            words, column_ids, column_allowed = column_tile
            excluded = (row_ids[:, None] == column_ids[None, :]) | ~column_allowed[None, :]
            start = jnp.where(excluded, missing, 0).astype(hamming.distance_dtype(num_words))
            distances = hamming.tile_distances(row_words, words, start, backend)
            by_strip = distances.reshape(width, strip, width // strip)
            return by_strip, functools.reduce(
                jnp.minimum, [by_strip[:, place] for place in range(strip)]
            )

        def search_chunk(best: _Nearest, chunk: tuple[jax.Array, ...]) -> tuple[_Nearest, None]:
            first_id, *columns = chunk
            found = _nearest_in_strips(*lax.map(tile, tuple(columns)), first_id, k)
            return _merge(best, found, k), None

        nobody = (
            jnp.full((width, k), -missing, jnp.float32),
            jnp.full((width, k), -1, jnp.int32),
        )
        return lax.scan(search_chunk, nobody, chunks)[0]

    scores, indices = (
        x.reshape(-1, k)[:n] for x in lax.map(neighbors_of_tile, (rows, ids))
    )
    distances = -scores.astype(jnp.int32)
    found = (distances < missing) & valid[:, None]
    return (
        _padded(jnp.where(found, indices, -1), num_neighbors, -1),
        _padded(jnp.where(found, distances, missing), num_neighbors, missing),
    )


# (scores float32 [rows, k], indices int32 [rows, k]), best first. Scores are negated distances, in
# float32 because XLA:CPU selects the top k of float32 a hundred times faster than of int32; they
# are exact to 2^24.
_Nearest = tuple[jax.Array, jax.Array]


def _strip_length(num_columns: int, k: int) -> int:
    """Power of two near the s that minimizes the two selections, num_columns / s + k s."""
    ideal = math.sqrt(num_columns / k)
    return 2 ** min(max(round(math.log2(ideal)), 0), int(math.log2(hamming.TILE_MULTIPLE)))


def _by_strip(tiles: jax.Array, strip: int) -> jax.Array:
    """Reorder the last axis of every tile so that the strips' first points come first, and so on.

    A strip is `strip` points of consecutive ids. Side by side, the minimum over every strip is an
    element-wise minimum of `strip` contiguous slices.
    """
    strips = tiles.reshape(*tiles.shape[:-1], tiles.shape[-1] // strip, strip)
    return strips.swapaxes(-1, -2).reshape(tiles.shape)


def _nearest_in_strips(
    distances: jax.Array, minima: jax.Array, first_id: jax.Array, k: int
) -> _Nearest:
    """The k nearest of a chunk's columns, exactly, by its strips.

    Order columns by (distance, id). A strip with one of the k first columns in it is one of the k
    first strips by (minimum, id), for the columns that realize the minima of k strips before it
    would precede that column. So the k first strips hold all k columns.

    Args:
      distances: [tiles, rows, strip, strips of a tile].
      minima: [tiles, rows, strips of a tile], the minima over `strip`.
      first_id: id of the chunk's first column.
      k: how many.
    """
    num_tiles, num_rows, strip, tile_strips = distances.shape
    num_strips = num_tiles * tile_strips
    minima = minima.swapaxes(0, 1).reshape(num_rows, num_strips)
    scores, strips = _top_k(minima, k)
    if strip == 1:
        return scores, first_id + strips
    strips = jnp.sort(strips, axis=1)  # ids ascend, so that ties fall to the smaller
    tile, place = jnp.divmod(strips, tile_strips)
    row = jnp.arange(num_rows, dtype=jnp.int32)[:, None]
    candidates = distances.at[tile, row, :, place].get(mode="promise_in_bounds")
    scores, choice = _top_k(candidates.reshape(num_rows, -1), k)
    strips = jnp.take_along_axis(strips, choice // strip, axis=1, mode="promise_in_bounds")
    return scores, first_id + strips * strip + choice % strip


def _top_k(distances: jax.Array, k: int) -> _Nearest:
    """Negated k smallest of each row and their places; among equals the smaller place first."""
    return lax.top_k(-distances.astype(jnp.float32), min(k, distances.shape[1]))


def _merge(first: _Nearest, second: _Nearest, k: int) -> _Nearest:
    """The k best of two; `first` holds the smaller indices."""
    scores = jnp.concatenate([first[0], second[0]], axis=1)
    indices = jnp.concatenate([first[1], second[1]], axis=1)
    scores, place = lax.top_k(scores, k)
    return scores, jnp.take_along_axis(indices, place, axis=1, mode="promise_in_bounds")


def _padded(x: jax.Array, num_columns: int, value: int) -> jax.Array:
    return jnp.pad(x, ((0, 0), (0, num_columns - x.shape[1])), constant_values=value)
