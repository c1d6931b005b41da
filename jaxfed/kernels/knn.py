"""Exact k nearest neighbors of every point among all others, without the n x n matrix.

Distances are made a row of tiles at a time and reduced at once to each point's k best. Results are
sorted by (distance, index): among equal distances the smaller index comes first, so they are unique
and every backend returns the same.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import sequential_vmap
from jax.sharding import Mesh

from jaxfed.errors import UsageError
from jaxfed.kernels import hamming, nearest, symmetric_knn
from jaxfed.kernels.arrays import as_float32
from jaxfed.kernels.devices import SpreadRows, by_rows, mesh_of, spread
from jaxfed.kernels.distances import (
    COSINES,
    can_number,
    cosines_of_tiles,
    directions,
    hamming_distances,
    no_distance,
)
from jaxfed.kernels.nearest import Nearer, Nearest

# First id of queries that are not points; no point has such an id.
_NO_POINT = -(2**30)


def hamming_knn(
    bits: jax.Array, num_neighbors: int, *, valid: jax.Array | None = None, backend: str = "auto"
) -> tuple[jax.Array, jax.Array]:
    """Each point's `num_neighbors` nearest others in Hamming distance, exactly.

    Args:
      bits: uint32 [n, W], packed codes (`lsh.project_bits`), L = 32 W bits. Over the p devices of a
        mesh (`jaxfed.kernels.devices`) they go round a ring in p turns. The result is the same, bit
        for bit, with its rows over the mesh.
      num_neighbors: k > 0; may exceed n - 1.
      valid: bool [n], False for padding: such a point has no neighbors and is no neighbor.
      backend: "popcount", "matmul" or "auto", as for `hamming.distances`.

    Returns:
      (indices int32 [n, k], distances int32 [n, k]), rows sorted by (distance, index), the point
      itself left out. Where fewer than k other valid points exist: index -1, distance L + 1.

    Raises:
      UsageError: `num_neighbors` < 1, unknown backend, codes that are not uint32 [n, W], or `valid` of
        another length.

    Cost: n^2 W word operations, and k minima over n / s + k s values a point with s about
    sqrt(n / k), at most 32: little beside the distances for k = 10, as much for k = 100. By popcount,
    for more than 2048 points and k up to n / 128, half of it (`jaxfed.kernels.symmetric_knn`).
    Memory: three copies of the codes, the result, and 64 MiB of minima, or distances of 1024 x 16384 pairs
    (32 MiB; matmul 4096 x 16384). Over p devices each has 1 / p of the work, its rows of the result, and four
    parts of the codes. Under `jax.vmap` popcount searches one client after another in that memory; matmul
    searches them at once, with as many tiles. Compiled anew for each (n, W, k).
    """
    hamming.check_backend(backend)
    bits = hamming.check_codes(bits)
    valid = check(bits.shape[0], num_neighbors, valid)
    mesh = mesh_of(bits)
    return _hamming_knn(bits, _along(valid, mesh), num_neighbors, backend, mesh)


def hamming_knn_among(
    queries: jax.Array, bits: jax.Array, num_neighbors: int, *, valid: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Each query's `num_neighbors` nearest points in Hamming distance, exactly; queries are not points.

    Args:
      queries: uint32 [m, W], packed codes.
      bits: uint32 [n, W], of the points, n > 0.
      num_neighbors: k > 0; may exceed n.
      valid: bool [n], False for padding: such a point is no neighbor.

    Returns:
      (indices int32 [m, k], distances int32 [m, k]), rows sorted by (distance, index). Where fewer than k
      valid points exist: index -1, distance L + 1.

    Raises:
      UsageError: as `hamming_knn`.

    Cost: m n W word operations; memory as `hamming_knn`, for the queries' tiles alone.
    """
    valid = check(bits.shape[0], num_neighbors, valid)
    return _hamming_knn_among(
        hamming.check_codes(queries), hamming.check_codes(bits), valid, num_neighbors
    )


def cosine_knn(
    vectors: jax.Array, num_neighbors: int, *, valid: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Each point's `num_neighbors` most similar others by exact cosine <u, v> / (|u| |v|).

    `hamming_knn` on LSH codes approximates this. A zero vector has cosine 0 with every point.

    Args:
      vectors: [n, d], finite, any real dtype; computed in float32 at the highest precision. Over a
        mesh as for `hamming_knn`, equal up to float32's rounding of cosines.
      num_neighbors: k > 0; may exceed n - 1.
      valid: bool [n], False for padding: such a point has no neighbors and is no neighbor.

    Returns:
      (indices int32 [n, k], similarities float32 [n, k]), rows sorted by similarity, highest first,
      equal ones (after float32 rounding) by index, the point itself left out. Where fewer than k
      other valid points exist: index -1, similarity -2.

    Raises:
      UsageError: `num_neighbors` < 1, `vectors` that are not a real matrix, `valid` of another length.

    Cost: n^2 d multiply-adds, and memory of two copies of the vectors, the result, and a tile of 64 MiB.
    On a CPU, for more than 2048 points and k up to n / 128, half of the operations
    (`jaxfed.kernels.symmetric_knn`), two copies and 52 MiB of minima. Cosines of neighbors are then
    summed once more, so if two differ by float32's rounding, either may be the k-th.
    """
    vectors = as_float32("vectors", vectors)
    if vectors.ndim != 2:
        raise UsageError(f"vectors must be a matrix [n, d], got shape {vectors.shape}")
    valid = check(vectors.shape[0], num_neighbors, valid)
    mesh = mesh_of(vectors)
    return _cosine_knn(vectors, _along(valid, mesh), num_neighbors, mesh)


def check(n: int, num_neighbors: int, valid: jax.Array | None) -> jax.Array:
    """Return `valid` as bool [n]; raise `UsageError` if it or `num_neighbors` is invalid."""
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


def _along(valid: jax.Array, mesh: Mesh | None) -> jax.Array:
    return valid if mesh is None else spread(valid, mesh)


def _nearer_by(kernel: hamming.TileKernel, num_words: int) -> Nearer:
    missing, dtype = no_distance(num_words), hamming.distance_dtype(num_words)

    def tile_distances(a: jax.Array, b: jax.Array, excluded: jax.Array) -> jax.Array:
        return kernel.distances(a, b, jnp.where(excluded, missing, 0).astype(dtype))

    def nearer(
        best: Nearest,
        queries: jax.Array,
        first_query: jax.Array,
        points: jax.Array,
        *ids: jax.Array,
    ) -> Nearest:
        operands = kernel.words(queries), first_query, kernel.words(points), *ids
        return nearest.nearer(tile_distances, kernel.width, best, *operands)

    return nearer


@functools.partial(jax.jit, static_argnames=("num_neighbors", "backend", "mesh"))
def _hamming_knn(
    bits: jax.Array, valid: jax.Array, num_neighbors: int, backend: str, mesh: Mesh | None = None
) -> tuple[jax.Array, jax.Array]:
    num_words = bits.shape[1]
    missing, dtype = no_distance(num_words), hamming.distance_dtype(num_words)
    k = nearest.num_searched(num_neighbors, bits.shape[0])

    def searcher(rows: SpreadRows) -> Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
        def by(kernel: hamming.TileKernel, bits: jax.Array, valid: jax.Array) -> Nearest:
            if (
                kernel.pairs_once
                and symmetric_knn.suits(len(bits), k, kernel.width)
                and can_number(num_words, k, kernel.width)
            ):
                between = hamming_distances(kernel, num_words)
                return symmetric_knn.neighbors(between, bits, valid, k, rows)
            ring = _ring(_nearer_by(kernel, num_words), k, missing, dtype, rows)
            distances, ids = ring(bits, valid)
            return distances.astype(jnp.int32), ids

        def search(bits: jax.Array, valid: jax.Array) -> tuple[jax.Array, jax.Array]:
            best = hamming.on_platform(backend, by, bits, valid)
            return nearest.as_rows(best, valid, num_neighbors, missing)

        return search

    return by_rows(searcher, mesh)(bits, valid)


@functools.partial(jax.jit, static_argnames="num_neighbors")
def _hamming_knn_among(
    queries: jax.Array, bits: jax.Array, valid: jax.Array, num_neighbors: int
) -> tuple[jax.Array, jax.Array]:
    (n, num_words), m = bits.shape, queries.shape[0]
    missing, dtype = no_distance(num_words), hamming.distance_dtype(num_words)
    k = nearest.num_searched(num_neighbors, n)
    best = nearest.nobody(k, m, missing, dtype)

    def by(kernel: hamming.TileKernel, *search: Any) -> Nearest:
        return _nearer_by(kernel, num_words)(*search)

    search: tuple[Any, ...] = best, queries, jnp.int32(_NO_POINT), bits, valid, jnp.int32(0)
    distances, ids = hamming.on_platform("auto", by, *search)
    return nearest.as_rows(
        (distances.astype(jnp.int32), ids), jnp.ones(m, jnp.bool_), num_neighbors, missing
    )


@functools.partial(jax.jit, static_argnames=("num_neighbors", "mesh"))
def _cosine_knn(
    vectors: jax.Array, valid: jax.Array, num_neighbors: int, mesh: Mesh | None = None
) -> tuple[jax.Array, jax.Array]:
    k = nearest.num_searched(num_neighbors, vectors.shape[0])

    def searcher(rows: SpreadRows) -> Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
        def once(points: jax.Array, valid: jax.Array) -> Nearest:
            return symmetric_knn.neighbors(COSINES, points, valid, k, rows)

        nearer = functools.partial(nearest.nearer, cosines_of_tiles, COSINES.width)
        twice = _ring(nearer, k, COSINES.missing, COSINES.dtype, rows)

        def search(points: jax.Array, valid: jax.Array) -> tuple[jax.Array, jax.Array]:
            if symmetric_knn.suits(len(points), k, COSINES.width):
                best = lax.platform_dependent(
                    points, valid, cpu=sequential_vmap(once), default=twice
                )
            else:
                best = twice(points, valid)
            return nearest.as_rows(best, valid, num_neighbors, COSINES.missing)

        return search

    indices, distances = by_rows(searcher, mesh)(directions(vectors), valid)
    return indices, -distances


def _ring(
    nearer: Nearer, k: int, missing: float, dtype: jnp.dtype, rows: SpreadRows
) -> Callable[[jax.Array, jax.Array], Nearest]:
    """Search for the k first others by (distance, id) of this device's points [n / p, W], valid [n / p]."""

    def search(points: jax.Array, valid: jax.Array) -> Nearest:
        best = nearest.nobody(k, len(points), missing, dtype)
        return nearest.around_the_ring(nearer, best, points, valid, rows)

    return search
