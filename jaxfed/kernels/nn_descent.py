"""Approximate k nearest neighbors in Hamming distance, in time that grows with n and not with n^2.

Two deterministic steps that use the codes alone:

1. *Tables* (locality-sensitive hashing; Indyk, Motwani, STOC 1998). The points are sorted by 32 bits of their
   codes and cut into blocks. All pairs of a block are compared. Each table uses other bits.
2. *Descent* (Dong, Moses, Li, "Efficient k-nearest neighbor graph construction for generic similarity
   measures", WWW 2011). A neighbor of a neighbor is likely to be a neighbor: every round compares each point
   with the neighbors of its neighbors, and of the points that list it as a neighbor.

Twice the requested number of neighbors is stored. Each round combines one half of a point's neighbors with
one half of theirs, the nearer halves first. This finds more than all combinations do in the same time.

Some neighbors may be missed; distances are exact. The share of true neighbors that are found depends on the
intrinsic dimension of the data, and hardly on n. With 20,000 points, 4096 bits, k = 10: 0.97 on
Fashion-MNIST's pixels, 0.60 if features are noise in 128 dimensions, where a point's nearest neighbors are
hardly nearer than other points (the distances found are 0.2 and 1.1 % longer than the smallest).
`launch.bench --kernel=approximate_knn` measures it, and the effect on XCLP's labels.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxfed.kernels import hamming, knn, lsh
from jaxfed.kernels.neighbors import nearest

NUM_TABLES = 4
NUM_ROUNDS = 6
# Points of a block. With this size, pairs are compared at about the rate of an exact search.
BLOCK = 512
# Neighbors' neighbors are first compared by some words of their codes, and the nearest of them by all words.
_SKETCH_WORDS, _SHORT_LIST = 32, 4  # the short list in multiples of k
_ROWS = 256  # points at a time whose neighbors' neighbors are held


def approximate_hamming_knn(
    bits: jax.Array,
    num_neighbors: int,
    *,
    valid: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Some of each point's nearest others in Hamming distance, most of them the nearest.

    Differs from `jaxfed.kernels.knn.hamming_knn` in two ways: a neighbor may be missed and replaced by a
    farther one, and all points are on one device. Up to 2 * 512 points it is that function.

    Args:
      bits: uint32 [n, W], packed codes (`lsh.project_bits`), L = 32 W bits.
      num_neighbors: k > 0; may exceed n - 1.
      valid: bool [n], False for padding: such a point has no neighbors and is no neighbor.

    Returns:
      (indices int32 [n, k], distances int32 [n, k]), rows sorted by (distance, index), without repetitions
      and without the point itself, distances exact. Where fewer than k were found: index -1, distance L + 1.
      Every call gives the same result.

    Raises:
      UsageError: as `hamming_knn`.

    Cost: n (512 tables W + 2 k^2 rounds min(W, 32) + 4 k rounds W) word operations; at k = 10 and
    25,000 points, as long as an exact search. Memory: three copies of the codes,
    and 10 k n integers.
    """
    bits = hamming.check_codes(bits)
    n = bits.shape[0]
    if n <= 2 * BLOCK:
        return knn.hamming_knn(bits, num_neighbors, valid=valid)
    valid = knn.check(n, num_neighbors, valid)
    return _search(bits, valid, num_neighbors, NUM_ROUNDS)


@partial(jax.jit, static_argnames=("num_neighbors", "num_rounds"))
def _search(
    bits: jax.Array, valid: jax.Array, num_neighbors: int, num_rounds: int
) -> tuple[jax.Array, jax.Array]:
    n, num_words = bits.shape
    missing = num_words * lsh.WORD_BITS + 1
    k = min(2 * num_neighbors, n - 1)
    best = nearest.nobody(k, n, missing, jnp.dtype(jnp.int32))

    def with_table(best: nearest.Nearest, table: jax.Array) -> tuple[nearest.Nearest, None]:
        return _in_blocks(best, bits, valid, _sorted_by_bits(bits, valid, table), missing), None

    def with_round(best: nearest.Nearest, number: jax.Array) -> tuple[nearest.Nearest, None]:
        return _descended(best, bits, number, missing), None

    best, _ = lax.scan(with_table, best, jnp.arange(NUM_TABLES, dtype=jnp.int32))
    best, _ = lax.scan(with_round, best, jnp.arange(num_rounds, dtype=jnp.int32))
    best = jax.tree.map(lambda x: x[:num_neighbors], best)
    return nearest.as_rows(best, valid, num_neighbors, missing)


def _sorted_by_bits(bits: jax.Array, valid: jax.Array, table: jax.Array) -> jax.Array:
    """Points sorted by one word of their codes; every table uses another word, or rotates it.

    int32, whole blocks: half a block or more of padding, n, is at the end, or half a block at the start.
    """
    num_words = bits.shape[1]
    word = lax.dynamic_index_in_dim(bits, table % num_words, axis=1, keepdims=False)
    turn = (7 * (table // num_words) % lsh.WORD_BITS).astype(jnp.uint32)
    word = (word << turn) | lax.shift_right_logical(word, (lsh.WORD_BITS - turn) % lsh.WORD_BITS)
    # Invalid points go to the end, where they take no point's place.
    order = jnp.lexsort((word, ~valid)).astype(jnp.int32)
    # The last block with points may have a single one, and equal words would keep it there in every table.
    # So every other table begins with half a block of padding and is cut elsewhere.
    half, n = BLOCK // 2, len(order)
    order = jnp.pad(order, (0, half + -(n + half) % BLOCK), constant_values=n)
    return jnp.roll(order, table % 2 * half)


def _in_blocks(
    best: nearest.Nearest, bits: jax.Array, valid: jax.Array, order: jax.Array, missing: int
) -> nearest.Nearest:
    """The best neighbors among those so far and the blocks into which `order` is cut."""
    n = bits.shape[0]
    # Padding, n: reads take the last point, writes are dropped.
    codes = hamming.tiles(bits[jnp.minimum(order, n - 1)], BLOCK)
    _, num_words, width = codes.shape
    blocks = order.reshape(-1, width)
    dtype = hamming.distance_dtype(num_words)

    def by(kernel: hamming.TileKernel, *tile: jax.Array) -> jax.Array:
        return kernel.distances(*tile)

    def search(block: tuple[jax.Array, jax.Array, jax.Array]) -> nearest.Nearest:
        codes, same_codes, ids = block
        is_point = (ids < n) & valid[jnp.minimum(ids, n - 1)]
        excluded = ~(is_point[:, None] & is_point[None]) | jnp.eye(width, dtype=jnp.bool_)
        start = jnp.where(excluded, missing, 0).astype(dtype)
        distances = jnp.minimum(hamming.on_platform("auto", by, codes, same_codes, start), missing)
        of_block = jnp.minimum(ids, n - 1)
        return _merged(
            (best[0][:, of_block], best[1][:, of_block]),
            distances.astype(jnp.int32),
            jnp.broadcast_to(ids[:, None], distances.shape),
            missing,
        )

    # If both operands are the same array, XLA:CPU makes a loop 15 times slower.
    distances, ids = lax.map(search, (codes, lax.optimization_barrier(codes), blocks))
    return (
        best[0].at[:, blocks].set(distances.swapaxes(0, 1), mode="drop"),
        best[1].at[:, blocks].set(ids.swapaxes(0, 1), mode="drop"),
    )


def _merged(
    best: nearest.Nearest, distances: jax.Array, ids: jax.Array, missing: int
) -> nearest.Nearest:
    """The k first by (distance, id) of [k, m] and [c, m], without repetitions; id -1 where it is missing."""
    k = best[0].shape[0]
    distances, ids = nearest.smallest(
        jnp.concatenate([best[0], distances]), jnp.concatenate([best[1], ids]), k
    )
    distances = jnp.minimum(distances, missing)
    return distances, jnp.where(distances < missing, ids, -1)


def _descended(
    best: nearest.Nearest, bits: jax.Array, number: jax.Array, missing: int
) -> nearest.Nearest:
    """The best neighbors among those so far and neighbors' neighbors."""
    k, n = best[1].shape
    num_words = bits.shape[1]
    of_point = jnp.where(best[1] < 0, jnp.arange(n, dtype=jnp.int32), best[1]).T
    half = k // 2
    first = half * (number % 3 == 1).astype(jnp.int32)
    near = lax.dynamic_slice_in_dim(of_point, first, half, axis=1)
    near = jnp.concatenate([near, _whose_neighbor(near, number)], axis=1)
    second = half * (number % 3 == 2).astype(jnp.int32)
    of_point = lax.dynamic_slice_in_dim(of_point, second, half, axis=1)
    short = _SHORT_LIST * half

    def distances(candidates: jax.Array, own: jax.Array, words: int) -> jax.Array:
        """[rows, c], [rows] -> [rows, c]; a candidate that is the point itself is missing."""
        differing = bits[:, :words][candidates] ^ bits[own, :words][:, None]
        counts = lax.population_count(differing).astype(jnp.int32).sum(axis=-1)
        return jnp.where(candidates == own[:, None], missing, counts)

    def search(own: jax.Array) -> nearest.Nearest:
        candidates = of_point[near[own]].reshape(own.shape[0], -1)
        if num_words > _SKETCH_WORDS and short < candidates.shape[1]:
            sketched = distances(candidates, own, _SKETCH_WORDS)
            candidates = nearest.smallest(sketched.T, candidates.T, short)[1].T
            candidates = jnp.where(candidates < n, candidates, own[:, None])
        found = distances(candidates, own, num_words)
        return _merged((best[0][:, own], best[1][:, own]), found.T, candidates.T, missing)

    num_groups = -(-n // _ROWS)
    first = jnp.minimum(jnp.arange(num_groups) * _ROWS, n - _ROWS)
    groups = (first[:, None] + jnp.arange(_ROWS)[None]).astype(jnp.int32)
    found, ids = lax.map(search, groups)
    return (
        best[0].at[:, groups].set(found.swapaxes(0, 1)),
        best[1].at[:, groups].set(ids.swapaxes(0, 1)),
    )


def _whose_neighbor(of_point: jax.Array, number: jax.Array) -> jax.Array:
    """k points that list each point as a neighbor: [n, k] -> [n, k]; the point itself where there are fewer.

    A hash of its number and the round gives each one a place. The larger of two numbers with the same place
    gets it.
    """
    n, k = of_point.shape
    source = jnp.arange(n, dtype=jnp.int32)
    hashed = (source.astype(jnp.uint32) + number.astype(jnp.uint32) * 7919) * jnp.uint32(2654435761)
    place = (lax.shift_right_logical(hashed, jnp.uint32(16)) % k).astype(jnp.int32)
    empty = jnp.full((n, k), -1, jnp.int32)
    taken = empty.at[of_point, place[:, None]].max(jnp.broadcast_to(source[:, None], (n, k)))
    return jnp.where(taken < 0, source[:, None], taken)
