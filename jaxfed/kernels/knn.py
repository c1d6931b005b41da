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
from jaxfed.kernels import hamming, lsh, nearest
from jaxfed.kernels.nearest import Nearer, Nearest
from jaxfed.kernels.spread import Rows, by_rows, mesh_of, spread

# Of `hamming_knn`: those of `hamming.distances`, and kernels that write no distances
# (`jaxfed.kernels.fused.search`, imported where it is asked for: Pallas takes a while).
BACKENDS = (
    *hamming.BACKENDS,
    "fused",
    "fused_bfloat16",
    "fused_float8",
    "fused_popcount",
)

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
      bits: uint32 [n, W], packed codes (`lsh.project_bits`), L = 32 W bits. Over the p devices of a
        mesh (`jaxfed.kernels.spread`) they go round in p turns, and the same comes out, bit for
        bit, with its rows over the mesh.
      num_neighbors: k > 0; may exceed n - 1.
      valid: bool [n], False for padding: such a point is nobody's neighbor and has none.
      backend: "popcount", "matmul" or "auto", as for `hamming.distances`; or by one kernel, whose
        distances never are in the device's memory, for k up to 64: "fused" (products of int8),
        "fused_bfloat16", "fused_float8", or "fused_popcount", which a TPU has not. "auto" is none
        of these until they have been measured (`python -m launch.accelerator`).

    Returns:
      (indices int32 [n, k], distances int32 [n, k]), rows sorted by (distance, index), the point
      itself left out. Where fewer than k other valid points exist: index -1, distance L + 1.

    Raises:
      UsageError: `num_neighbors` < 1, or above 64 with a fused backend, unknown backend, codes that
        are not uint32 [n, W], or `valid` of another length.

    Cost: n^2 W word operations, and k minima over n / s + k s values a point with s about
    sqrt(n / k), at most 32: little beside the distances for k = 10, as much for k = 100. Memory:
    two copies of the codes, the result, and distances of 1024 x 16384 pairs (32 MiB; matmul 4096 x
    16384). Over p devices each has 1 / p of the work, its rows of the result, and three parts of
    the codes. Under `jax.vmap` popcount searches one client after another in that memory; matmul
    searches them at once, with as many tiles. The fused search takes a GiB of signs and one client
    after another. Compiled anew for each (n, W, k).
    """
    hamming.check_backend(backend, BACKENDS)
    bits = hamming.check_codes(bits)
    valid = _check(bits.shape[0], num_neighbors, valid)
    if backend.startswith("fused"):
        from jaxfed.kernels.fused import search

        search.check(backend, num_neighbors, bits.shape[1])
    mesh = mesh_of(bits)
    return _hamming_knn(bits, _along(valid, mesh), num_neighbors, backend, mesh)


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
    found = nearest.smallest(distances, ids, num_neighbors)
    is_query = jnp.ones(queries.shape[0], jnp.bool_)
    return nearest.as_rows(found, is_query, num_neighbors, missing)


def cosine_knn(
    vectors: jax.Array, num_neighbors: int, *, valid: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Each point's `num_neighbors` most similar others by exact cosine <u, v> / (|u| |v|).

    What `hamming_knn` on LSH codes approximates. A zero vector has cosine 0 with every point.

    Args:
      vectors: [n, d], finite, any real dtype; computed in float32 at the highest precision. Over a
        mesh as for `hamming_knn`, equal up to float32's rounding of cosines.
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
    valid = _check(vectors.shape[0], num_neighbors, valid)
    mesh = mesh_of(vectors)
    return _cosine_knn(vectors, _along(valid, mesh), num_neighbors, mesh)


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


def _along(valid: jax.Array, mesh: Mesh | None) -> jax.Array:
    return valid if mesh is None else spread(valid, mesh)


@functools.partial(jax.jit, static_argnames=("num_neighbors", "backend", "mesh"))
def _hamming_knn(
    bits: jax.Array,
    valid: jax.Array,
    num_neighbors: int,
    backend: str,
    mesh: Mesh | None = None,
) -> tuple[jax.Array, jax.Array]:
    num_words = bits.shape[1]
    missing = num_words * lsh.WORD_BITS + 1
    dtype = hamming.distance_dtype(num_words)

    if backend.startswith("fused"):
        from jaxfed.kernels.fused import search

        fused = sequential_vmap(functools.partial(search.nearer, backend))
        indices, distances = _all_pairs(fused, bits, valid, num_neighbors, missing, dtype, mesh)
        return indices, distances.astype(jnp.int32)

    def nearer(*search: Any) -> Nearest:
        def by(kernel: hamming.TileKernel, *search: Any) -> Nearest:
            def tile_distances(a: jax.Array, b: jax.Array, excluded: jax.Array) -> jax.Array:
                start = jnp.where(excluded, missing, 0).astype(dtype)
                return kernel.distances(a, b, start)

            return nearest.nearer(tile_distances, kernel.width, *search)

        return hamming.on_platform(backend, by, *search)

    indices, distances = _all_pairs(nearer, bits, valid, num_neighbors, missing, dtype, mesh)
    return indices, distances.astype(jnp.int32)


@functools.partial(jax.jit, static_argnames=("num_neighbors", "mesh"))
def _cosine_knn(
    vectors: jax.Array, valid: jax.Array, num_neighbors: int, mesh: Mesh | None = None
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

    nearer = functools.partial(nearest.nearer, tile_distances, _COSINE_TILE)
    dtype = jnp.dtype(jnp.float32)
    indices, distances = _all_pairs(
        nearer, directions, valid, num_neighbors, _NO_COSINE, dtype, mesh
    )
    return indices, -distances


def _all_pairs(
    nearer: Nearer,
    points: jax.Array,
    valid: jax.Array,
    num_neighbors: int,
    missing: float,
    dtype: jnp.dtype,
    mesh: Mesh | None,
) -> tuple[jax.Array, jax.Array]:
    """Indices and distances [n, k] of the first k other points by (distance, index).

    Args:
      nearer: `nearest.nearer` of some distances, below `missing` where a pair is not excluded.
      points: [n, W].
      valid: bool [n].
      num_neighbors: k.
      missing: distance of a neighbor that does not exist.
      dtype: of the distances.
      mesh: that the points' rows lie over; None: they are all here.
    """
    k = max(1, min(num_neighbors, points.shape[0]))

    def found_by(rows: Rows) -> Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
        def search(points: jax.Array, valid: jax.Array) -> tuple[jax.Array, jax.Array]:
            best = nearest.nobody(k, points.shape[0], missing, dtype)
            best = nearest.around_the_ring(nearer, best, points, valid, rows)
            return nearest.as_rows(best, valid, num_neighbors, missing)

        return search

    return by_rows(found_by, mesh)(points, valid)
