"""Approximate k nearest neighbors in Hamming distance, in time that grows with n and not with n^2.

Two steps, both by the codes alone and without chance:

1. *Tables* (locality-sensitive hashing; Indyk, Motwani, STOC 1998). The points are sorted by 32 bits of their
   codes and cut into blocks; in a block everybody is compared with everybody. Each table takes other bits.
2. *Descent* (Dong, Moses, Li, "Efficient k-nearest neighbor graph construction for generic similarity
   measures", WWW 2011). A neighbor of a neighbor is likely to be a neighbor: every round compares each point
   with the neighbors of those that it has for neighbors, and of those that have it.

Twice as many neighbors are kept as asked for. Each round goes from one half of a point's to one half of
theirs, the nearer halves first: that finds more than all ways at once do in the same time.

What is approximate is who is found; distances are exact. The share of true neighbors that are found depends
on how many dimensions the data really have, and hardly on n. Of 20,000 points, 4096 bits, k = 10: 0.97 on
Fashion-MNIST's pixels, 0.60 where features are noise in 128 dimensions, in which a point's nearest are hardly
nearer than others (the distances of those found are 0.2 and 1.1 % longer than of the nearest).
`launch.bench --kernel=approximate_knn` measures it, and what becomes of XCLP's labels.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxfed.kernels import hamming, knn, lsh, nearest
from jaxfed.kernels.footprint import Footprint, footprint

NUM_TABLES = 4
NUM_ROUNDS = 6
# Points of a block. So many are compared at about the rate of an exact search.
BLOCK = 512
# Neighbors' neighbors are compared by so many words first, and the nearest of them by all.
_SKETCH_WORDS, _SHORT_LIST = 32, 4  # the short list in multiples of k
_ROWS = 256  # points at a time whose neighbors' neighbors are held


def approximate_hamming_knn(
    bits: jax.Array,
    num_neighbors: int,
    *,
    valid: jax.Array | None = None,
    num_tables: int = NUM_TABLES,
    num_rounds: int = NUM_ROUNDS,
) -> tuple[jax.Array, jax.Array]:
    """Some of each point's nearest others in Hamming distance, most of them the nearest.

    Differs from `jaxfed.kernels.knn.hamming_knn` in that a neighbor may be missed and a farther one be in
    its place, and that all points lie on one device. Up to 2 * 512 points it is that function.

    Args:
      bits: uint32 [n, W], packed codes (`lsh.project_bits`), L = 32 W bits.
      num_neighbors: k > 0; may exceed n - 1.
      valid: bool [n], False for padding: such a point is nobody's neighbor and has none.
      num_tables: of the first step.
      num_rounds: of the second.

    Returns:
      (indices int32 [n, k], distances int32 [n, k]), rows sorted by (distance, index), nobody twice, the
      point itself left out, distances exact. Where fewer than k were found: index -1, distance L + 1. The
      same on every call.

    Raises:
      UsageError: as `hamming_knn`.

    Cost: n (512 tables W + 2 k^2 rounds min(W, 32) + 4 k rounds W) word operations; at k = 10 as long
    as an exact search of 25,000 points takes for so many of them. Memory: three copies of the codes,
    and 10 k n integers.
    """
    bits = hamming.check_codes(bits)
    n = bits.shape[0]
    if n <= 2 * BLOCK:
        return knn.hamming_knn(bits, num_neighbors, valid=valid)
    valid = knn.check(n, num_neighbors, valid)
    return _search(bits, valid, num_neighbors, num_tables, num_rounds)


def approximate_hamming_knn_footprint(
    num_points: int, num_words: int, num_neighbors: int
) -> Footprint:
    """What `approximate_hamming_knn` takes of a device for so many points.

    Cost: of compiling the search, which is then compiled when it is called.
    """
    if num_points <= 2 * BLOCK:
        return knn.hamming_knn_footprint(num_points, num_words, num_neighbors)
    bits = jax.ShapeDtypeStruct((num_points, num_words), jnp.uint32)
    valid = jax.ShapeDtypeStruct((num_points,), jnp.bool_)
    return footprint(_search, bits, valid, num_neighbors, NUM_TABLES, NUM_ROUNDS)


@partial(jax.jit, static_argnames=("num_neighbors", "num_tables", "num_rounds"))
def _search(
    bits: jax.Array, valid: jax.Array, num_neighbors: int, num_tables: int, num_rounds: int
) -> tuple[jax.Array, jax.Array]:
    n, num_words = bits.shape
    missing = num_words * lsh.WORD_BITS + 1
    k = min(2 * num_neighbors, n - 1)
    best = nearest.nobody(k, n, missing, jnp.dtype(jnp.int32))

    def with_table(best: nearest.Nearest, table: jax.Array) -> tuple[nearest.Nearest, None]:
        return _in_blocks(best, bits, valid, _sorted_by_bits(bits, valid, table), missing), None

    def with_round(best: nearest.Nearest, number: jax.Array) -> tuple[nearest.Nearest, None]:
        return _descended(best, bits, number, missing), None

    best, _ = lax.scan(with_table, best, jnp.arange(num_tables, dtype=jnp.int32))
    best, _ = lax.scan(with_round, best, jnp.arange(num_rounds, dtype=jnp.int32))
    best = jax.tree.map(lambda x: x[:num_neighbors], best)
    return nearest.as_rows(best, valid, num_neighbors, missing)


def _sorted_by_bits(bits: jax.Array, valid: jax.Array, table: jax.Array) -> jax.Array:
    """Points in the order of a word of theirs; every table has another one, or rotates it.

    int32, whole blocks: half a block or more of nobody, n, is at the end, or half of one at the start.
    """
    num_words = bits.shape[1]
    word = lax.dynamic_index_in_dim(bits, table % num_words, axis=1, keepdims=False)
    turn = (7 * (table // num_words) % lsh.WORD_BITS).astype(jnp.uint32)
    word = (word << turn) | lax.shift_right_logical(word, (lsh.WORD_BITS - turn) % lsh.WORD_BITS)
    # Padding goes to the end, where it takes nobody's place.
    order = jnp.lexsort((word, ~valid)).astype(jnp.int32)
    # The last block with points may have one alone, and equal words keep it there in every table: every
    # other table begins with half a block of nobody, and so is cut elsewhere.
    half, n = BLOCK // 2, len(order)
    order = jnp.pad(order, (0, half + -(n + half) % BLOCK), constant_values=n)
    return jnp.roll(order, table % 2 * half)


def _in_blocks(
    best: nearest.Nearest, bits: jax.Array, valid: jax.Array, order: jax.Array, missing: int
) -> nearest.Nearest:
    """The best of those so far and of the blocks that this order is cut into."""
    n = bits.shape[0]
    # Nobody, n: reading takes the last point, writing nobody.
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

    # Of two operands that are one XLA:CPU makes a loop 15 times slower.
    distances, ids = lax.map(search, (codes, lax.optimization_barrier(codes), blocks))
    return (
        best[0].at[:, blocks].set(distances.swapaxes(0, 1), mode="drop"),
        best[1].at[:, blocks].set(ids.swapaxes(0, 1), mode="drop"),
    )


def _merged(
    best: nearest.Nearest, distances: jax.Array, ids: jax.Array, missing: int
) -> nearest.Nearest:
    """The k first by (distance, id) of [k, m] and [c, m], everybody once, nobody where it is missing."""
    k = best[0].shape[0]
    distances, ids = nearest.smallest(
        jnp.concatenate([best[0], distances]), jnp.concatenate([best[1], ids]), k
    )
    distances = jnp.minimum(distances, missing)
    return distances, jnp.where(distances < missing, ids, -1)


def _descended(
    best: nearest.Nearest, bits: jax.Array, number: jax.Array, missing: int
) -> nearest.Nearest:
    """The best of those so far and of neighbors' neighbors."""
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
        """[rows, c], [rows] -> [rows, c]; a candidate that is the point itself is nobody."""
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
    """k of those that have a point for a neighbor: [n, k] -> [n, k]; the point itself where there are fewer.

    Each takes a place by its number; of two that want the same one, another one in every round, the
    larger has it.
    """
    n, k = of_point.shape
    source = jnp.arange(n, dtype=jnp.int32)
    hashed = (source.astype(jnp.uint32) + number.astype(jnp.uint32) * 7919) * jnp.uint32(2654435761)
    place = (lax.shift_right_logical(hashed, jnp.uint32(16)) % k).astype(jnp.int32)
    empty = jnp.full((n, k), -1, jnp.int32)
    taken = empty.at[of_point, place[:, None]].max(jnp.broadcast_to(source[:, None], (n, k)))
    return jnp.where(taken < 0, source[:, None], taken)
