"""`hamming_knn` for codes that do not fit a device: they stay on the host, and two parts go to the device.

    for every part A: best of A = no neighbors
        for every part B: best of A = the k first by (distance, id) of it and of B's points

The order is total and a point's id is its row among all, so parts of any size give the same result as one
piece, bit for bit. It is the ring of devices (`nearest.around_the_ring`) with one device, and the host in
place of the others.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.kernels import hamming
from jaxfed.kernels.devices import Footprint, footprint, padded_to
from jaxfed.kernels.knn import hamming_nearer
from jaxfed.kernels.neighbors import nearest
from jaxfed.kernels.neighbors.distances import no_distance
from jaxfed.kernels.neighbors.nearest import Nearest

SMALLEST_PART = 1024  # points; smaller parts would be less than a tile, and calls without work


def hamming_knn_in_parts(
    bits: np.ndarray, num_neighbors: int, *, part_points: int
) -> tuple[np.ndarray, np.ndarray]:
    """`knn.hamming_knn(bits, num_neighbors)`, with `part_points` queries and points at a time.

    Args:
      bits: uint32 [n, W], on the host or on disk.
      num_neighbors: k > 0; may exceed n - 1.
      part_points: points of a part, > 0.

    Returns:
      (indices int32 [n, k], distances int32 [n, k]) on the host.

    Raises:
      UsageError: `num_neighbors` or `part_points` < 1, codes that are not uint32 [n, W].

    Cost: as `knn.hamming_knn`, and every part goes to the device ceil(n / part_points) times: m n L
    operations a transfer of m L / 8 bytes. Device memory: four copies of a part, its result, and a
    row of tiles (`footprint_of_parts`), whatever n is.
    """
    if num_neighbors < 1 or part_points < 1:
        raise UsageError(
            f"num_neighbors and part_points must be at least 1, got {num_neighbors} and {part_points}"
        )
    if bits.dtype != np.uint32 or bits.ndim != 2 or not bits.shape[1]:
        raise UsageError(f"codes must be uint32 [n, words], got {bits.dtype} of {bits.shape}")
    n, num_words = bits.shape
    k, missing = nearest.num_searched(num_neighbors, n), no_distance(num_words)
    starts = range(0, n, part_points)
    indices = np.full((n, num_neighbors), -1, np.int32)
    distances = np.full((n, num_neighbors), missing, np.int32)

    def part(start: int) -> tuple[jax.Array, jax.Array, np.int32]:
        own = bits[start : start + part_points]
        is_point = np.arange(part_points) < len(own)
        return jnp.asarray(padded_to(own, part_points)), jnp.asarray(is_point), np.int32(start)

    for start in starts:
        queries, _, first_query = part(start)
        best = nearest.nobody(k, part_points, missing, hamming.distance_dtype(num_words))
        for other in starts:
            points, is_point, first_point = part(other)
            best = _nearer(best, queries, first_query, points, is_point, first_point)
        there, ids = (np.asarray(x)[:num_neighbors, : n - start].T for x in best)
        found = there < missing
        place = slice(start, start + len(found)), slice(found.shape[1])
        indices[place] = np.where(found, ids, -1)
        distances[place] = np.where(found, there, missing)
    return indices, distances


def footprint_of_parts(part_points: int, num_words: int, num_neighbors: int) -> Footprint:
    """Device memory of `hamming_knn_in_parts`; compiles the program that later calls use."""
    dtype = hamming.distance_dtype(num_words)
    k = nearest.num_searched(num_neighbors, part_points)
    best = [jax.ShapeDtypeStruct((k, part_points), of) for of in (dtype, jnp.int32)]
    part = jax.ShapeDtypeStruct((part_points, num_words), jnp.uint32)
    is_point = jax.ShapeDtypeStruct((part_points,), jnp.bool_)
    first = jax.ShapeDtypeStruct((), jnp.int32)
    return footprint(_nearer, (best[0], best[1]), part, first, part, is_point, first)


def part_within(num_bytes: int, num_points: int, num_words: int, num_neighbors: int) -> int:
    """Number of points in the largest parts, at least `SMALLEST_PART`, whose search fits into `num_bytes`.

    Cost: compiling their search, once if the initial estimate is right.
    """
    part = SMALLEST_PART
    while part < num_points and _estimate(2 * part, num_words, num_neighbors) <= num_bytes:
        part *= 2
    while part > SMALLEST_PART:
        if footprint_of_parts(part, num_words, num_neighbors).total <= num_bytes:
            break
        part //= 2
    return part


def _estimate(part: int, num_words: int, num_neighbors: int) -> int:
    """Bytes: parts and their tiles, the best neighbors in all forms, distances and their selection."""
    columns = min(part, 16384) * min(part, 1024)
    distances = columns * hamming.distance_dtype(num_words).itemsize
    return part * (16 * num_words + 48 * num_neighbors) + distances + distances // 2


@jax.jit
def _nearer(
    best: Nearest,
    queries: jax.Array,
    first_query: jax.Array,
    points: jax.Array,
    is_point: jax.Array,
    first_point: jax.Array,
) -> Nearest:
    search = hamming_nearer(queries.shape[1])
    return search(best, queries, first_query, points, is_point, first_point)
