"""Exact nearest neighbors after points have been added to a search that is done.

    list of an old point = the k first by (distance, id) of its list and of the new points
    list of a new point  = the k first of the old points and of the other new ones

The lists are those of `knn.hamming_knn` for all points, bit for bit: an old point's list lost nothing that
comes back, and ids keep the order of the old points. m new points among n old ones take m n + m^2 distances;
all points anew would take (n + m)^2, or half of it.

On a CPU each distance serves both of its points. Codes stay on the host, and blocks of them go to the device,
so few programs serve all numbers of points.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxfed.errors import UsageError
from jaxfed.kernels import hamming
from jaxfed.kernels.devices import padded_length, padded_to
from jaxfed.kernels.knn import hamming_knn, hamming_knn_among
from jaxfed.kernels.neighbors import column_minima, nearest
from jaxfed.kernels.neighbors.distances import no_distance
from jaxfed.kernels.neighbors.nearest import Nearest

_NEW_AT_ONCE, _OLD_AT_ONCE = 1024, 16384  # points of a call: 32 MiB of distances
_FEW_LENGTHS = 16, 8  # of new points: vector lanes of 16 bits, eighths of powers of two
_NO_ID = np.iinfo(np.int32).max


def extended_hamming_knn(
    bits: np.ndarray,
    is_new: np.ndarray,
    indices: np.ndarray,
    distances: np.ndarray,
    num_neighbors: int,
) -> tuple[np.ndarray, np.ndarray]:
    """`knn.hamming_knn(bits, num_neighbors)`, from the lists of the old points among themselves.

    Args:
      bits: uint32 [n + m, W], codes of all points on the host. New points may stand anywhere.
      is_new: bool [n + m], True for m of them.
      indices: int32 [n, k'], the old points' lists, where the old points alone are numbered; -1 for none.
      distances: int32 [n, k'].
      num_neighbors: k > 0.

    Returns:
      (indices int32 [n + m, k], distances int32 [n + m, k]) on the host.

    Raises:
      UsageError: `num_neighbors` < 1, or lists that are not of n points or hold fewer than k of the others.

    Cost: m (n + m) L / 32 word operations and k minima of as many distances. Compiled for four numbers
    of new points between powers of two up to 1024, and for as many sizes of a block of old ones as they have.
    """
    old, new = np.flatnonzero(~is_new), np.flatnonzero(is_new)
    width = min(num_neighbors, max(len(old) - 1, 0))
    if num_neighbors < 1 or indices.shape != distances.shape or len(indices) != len(old):
        raise UsageError(
            f"num_neighbors={num_neighbors} and lists {indices.shape}, {distances.shape} of {len(old)} "
            "points: use one or more neighbors, and lists of all old points"
        )
    if indices.shape[1] < width:
        raise UsageError(f"lists have {indices.shape[1]} neighbors: use {width} or more")
    missing = no_distance(bits.shape[1])
    of_all = np.full((len(bits), num_neighbors), _key(missing, _NO_ID))
    of_all[old, :width] = _keys(old, indices[:, :width], distances[:, :width], missing)
    of_all[new] = _among_new(bits, new, num_neighbors, missing)
    for some_new in np.split(new, range(_NEW_AT_ONCE, len(new), _NEW_AT_ONCE)):
        queries, is_query = _padded(bits, some_new, padded_length(len(some_new), *_FEW_LENGTHS))
        for some_old in np.array_split(old, -(-len(old) // _OLD_AT_ONCE) or 1):
            if not len(some_new) or not len(some_old):
                continue
            length = padded_length(len(some_old))
            points, is_point = _padded(bits, some_old, length)
            farthest = padded_to((of_all[some_old, -1] >> 32).astype(np.int32), length, fill=-1)
            found = _between(queries, points, is_query, is_point, farthest, num_neighbors)
            of_new, of_old = jax.tree.map(np.asarray, found)
            _merge(of_all, some_new, some_old, of_new, missing)
            _merge(of_all, some_old, some_new, of_old, missing)
    there, ids = of_all >> 32, (of_all & _NO_ID).astype(np.int32)
    return np.where(there < missing, ids, -1), there.astype(np.int32)


def _key(distance: np.ndarray | int, number: np.ndarray | int) -> np.ndarray:
    """One int64 that is ordered as (distance, id)."""
    return (np.asarray(distance, np.int64) << 32) | np.asarray(number, np.int64)


def _keys(
    numbers: np.ndarray, indices: np.ndarray, distances: np.ndarray, missing: int
) -> np.ndarray:
    """Keys of lists in which the i-th point stands for the id numbers[i]."""
    is_there = (indices >= 0) & (distances < missing)
    numbered = np.append(numbers, _NO_ID)[np.where(is_there, indices, -1)]
    return _key(np.where(is_there, distances, missing), numbered)


def _among_new(bits: np.ndarray, new: np.ndarray, k: int, missing: int) -> np.ndarray:
    """Keys of the new points' nearest others among themselves, int64 [m, k]."""
    if not len(new):
        return np.zeros((0, k), np.int64)
    length = padded_length(len(new), *(_FEW_LENGTHS if len(new) <= _NEW_AT_ONCE else ()))
    codes, is_there = _padded(bits, new, length)
    found = hamming_knn(codes, k, valid=is_there)
    indices, distances = (np.asarray(values)[: len(new)] for values in found)
    return _keys(new, indices, distances, missing)


def _padded(bits: np.ndarray, rows: np.ndarray, length: int) -> tuple[jax.Array, jax.Array]:
    """These rows of the codes, [length, W], and bool [length], which are not padding; one copy."""
    codes = np.zeros((length, bits.shape[1]), bits.dtype)
    np.take(
        bits, rows, axis=0, out=codes[: len(rows)], mode="clip"
    )  # "raise" would make another copy
    return jnp.asarray(codes), jnp.asarray(np.arange(length) < len(rows))


def _merge(
    of_all: np.ndarray,
    rows: np.ndarray,
    numbers: np.ndarray,
    found: tuple[np.ndarray, np.ndarray],
    missing: int,
) -> None:
    """Merge what was found for some points, [k, points] nearest first, into their lists."""
    distances, places = (values[:, : len(rows)] for values in found)
    # Few old points have a new one among their nearest.
    nearer = np.flatnonzero(distances[0] <= of_all[rows, -1] >> 32)
    keys = _keys(numbers, places[:, nearer].T, distances[:, nearer].T, missing)
    both = np.concatenate([of_all[rows[nearer]], keys], axis=1)
    both.sort(axis=1)
    of_all[rows[nearer]] = both[:, : of_all.shape[1]]


@functools.partial(jax.jit, static_argnames="num_neighbors")
def _between(
    queries: jax.Array,
    points: jax.Array,
    is_query: jax.Array,
    is_point: jax.Array,
    farthest: jax.Array,
    num_neighbors: int,
) -> tuple[Nearest, Nearest]:
    """The k first points of each query, and the k first queries of each point up to the distance `farthest`.

    Returns distances and places, int32 [k, queries] and [k, points]; L + 1 or more where there is none.
    """
    num_words = points.shape[1]
    missing, dtype = no_distance(num_words), hamming.distance_dtype(num_words)
    of_query, of_point = (
        nearest.num_searched(num_neighbors, len(own)) for own in (points, queries)
    )

    def by(
        kernel: hamming.TileKernel,
        queries: jax.Array,
        points: jax.Array,
        is_query: jax.Array,
        is_point: jax.Array,
        farthest: jax.Array,
    ) -> tuple[Nearest, Nearest]:
        longest = (2 * missing).bit_length() + len(queries).bit_length()
        if not kernel.pairs_once or longest > 31:
            pairs = (queries, points, is_point, of_query), (points, queries, is_query, of_point)
            return _by_searches(*pairs[0]), _by_searches(*pairs[1])
        tiles = hamming.tiles(kernel.words(points), kernel.width)
        tile, strip = kernel.words(queries).T, hamming.TILE_MULTIPLE
        allowed = jnp.pad(is_point, (0, tiles.shape[0] * tiles.shape[2] - len(points)))

        def of_tile(column: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            is_excluded = ~column[1][:, None] | ~is_query[None]
            start = jnp.where(is_excluded, missing, 0).astype(dtype)
            strips = kernel.distances(column[0], tile, start).reshape(-1, strip, len(queries))
            return strips, functools.reduce(jnp.minimum, [strips[:, i] for i in range(strip)])

        found = lax.map(of_tile, (tiles, allowed.reshape(len(tiles), -1)))
        strips, minima = (x.reshape(-1, *x.shape[2:]) for x in found)
        distances, places = nearest.nearest_in_strips(strips, minima, of_query)
        by_point = strips.reshape(-1, len(queries))[: len(points)]
        return (
            (distances.astype(jnp.int32), places),
            column_minima.first_numbered_within(by_point, of_point, farthest),
        )

    return hamming.on_platform("auto", by, queries, points, is_query, is_point, farthest)


def _by_searches(queries: jax.Array, points: jax.Array, is_point: jax.Array, k: int) -> Nearest:
    """The k first points of each query, [k, queries], for which all distances are computed."""
    places, distances = hamming_knn_among(queries, points, k, valid=is_point)
    return distances.T, places.T
