"""Symmetric exact kNN on a CPU: each distance serves both of its points, which halves the work.

    h(i, j) = h(j, i),     so of T tiles of points only T (T + 1) / 2 pairs of tiles are compared.

Distances are not stored. For each pair of tiles every point stores the *least* distance to each strip of 16
points of the other tile. Its k first strips by (least distance, strip) hold its k first neighbors. The
distances to the 16 k points of these strips are then counted again. (A strip that holds one of the first k is
one of the first k strips: the points that attain the minima of the strips before it precede that point.)

The layout of a tile lets vector instructions form strips on both sides. Point `lane * 16 + offset` of a tile
of 16 x `lanes` points is at position `offset * lanes + lane`. For the points along the columns, the minimum
over `offset` is one of whole rows; for those along the rows, one of equal parts of a row. A strip's points
still have consecutive numbers.

Over the p devices of a mesh codes go half way round the ring, together with the best neighbors that their
points have found so far, which then return. After turn t a device has compared its points with those of the
t-th device before it. Two devices that meet twice, at turn p / 2, each take one half of their pairs of tiles.

Alternatives, on two AVX-512 cores at n = 8192, L = 4096, where the search takes 124 ms, and 244 ms with every
pair twice. Storing and gathering the distances to all candidates takes as long as counting them again (9 ms),
plus memory traffic of 2 bytes a pair. Strips of 32 double the candidates; strips of 8 leave vectors half
empty. k minima of rows of [queries, strips] take seven times as long as passes over [strips, queries], and
`lax.top_k` as long as those. Minima that XLA fuses with the following transposition take 44 ms more. All 16
places in one loop, which XLA fuses with the next operation: 400 ms. +-1 products of int8 (by AMX) reach 1.2
to 1.57 Tbit/s, popcounts 1.5 to 1.63. For cosines, n = 10,000, d = 128, half of the products takes 57 of 120
ms, minima of strips 30, the first strips 12, their points 18.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxfed.kernels import column_minima, hamming, nearest
from jaxfed.kernels.devices import SpreadRows
from jaxfed.kernels.distances import Distances, Tile
from jaxfed.kernels.nearest import Nearest

_STRIP = 16  # consecutive points, and vector lanes of 32 bits
_POINTS_PER_PASS = 4  # points of every strip that one vectorized loop scans


class _Part(NamedTuple):
    """Some of the points in the layout of the search: T tiles of 16 x lanes points.

    Attributes:
      tiles: T of them, points in order of positions.
      strips: [passes, T * lanes, words a pass, 16], points by strips, in their order.
      start: [T * lanes, 16], the initial value of a distance: 0, or beyond `missing` for invalid points.
      first: int32 scalar, the id of the first point.
    """

    tiles: Tile
    strips: jax.Array
    start: jax.Array
    first: jax.Array

    def tile(self, number: jax.Array) -> Tile:
        return Tile(*(x[number] for x in self.tiles))


# By tile: (distances [T, k, width], first ids of strips or ids of points [T, k, width]), nearest first.
_Lists = tuple[jax.Array, jax.Array]


def suits(num_points: int, k: int, tile_width: int) -> bool:
    """True if there are pairs of tiles to save, and few candidates."""
    return num_points > 2 * tile_width and 8 * k * _STRIP <= num_points


def neighbors(
    between: Distances, points: jax.Array, valid: jax.Array, k: int, rows: SpreadRows
) -> Nearest:
    """The k first others by (distance, id) for every point of this device.

    Args:
      between: distance of two points.
      points: [n / p, W], those of this one of p devices.
      valid: bool [n / p].
      k: as `suits` allows.
      rows: the rows of this device.

    Returns:
      (distances [k, n / p], ids int32 [k, n / p]); `between.missing` where there is none.
    """
    search = _search(between, len(points), k)
    part = search.part(points, valid, rows.first(len(points)))
    lists, points = lax.optimization_barrier((search.strips_of_own(part), points))
    # Built again for its strips, now that tiles are not needed.
    part = search.part(points, valid, part.first)
    best = search.candidates(part, part, lists)
    if rows.num_parts > 1:
        best = _half_way_round(search, best, part, points, valid, rows)
    return search.in_order(best, len(points))


def _half_way_round(
    search: _Search,
    best: _Lists,
    part: _Part,
    points: jax.Array,
    valid: jax.Array,
    rows: SpreadRows,
) -> _Lists:
    def turn(
        carry: tuple[_Lists, tuple[jax.Array, ...], _Lists], number: jax.Array
    ) -> tuple[Any, None]:
        best, visitors, theirs = carry
        visitors, theirs = rows.handed_on((visitors, theirs))
        other = search.part(visitors[0], visitors[1], rows.first(len(points), back=number))
        # Two devices that meet twice divide their pairs of tiles.
        meet_twice = 2 * number == rows.num_parts
        ends = search.tile_numbers() + (part.first < other.first).astype(jnp.int32)
        ends = jnp.where(meet_twice, ends, search.num_tiles)
        of_own, of_theirs = search.strips_of_both(part, other, ends)
        best = search.merged(best, search.candidates(part, other, of_own))
        theirs = search.merged(theirs, search.candidates(other, part, of_theirs))
        return (best, visitors, theirs), None

    half_way = rows.num_parts // 2
    start = best, (points, valid), search.nothing()
    turns = jnp.arange(1, half_way + 1, dtype=jnp.int32)
    (best, _, theirs), _ = lax.scan(turn, start, turns)
    return search.merged(best, rows.handed_on(theirs, steps=-half_way))


def _search(between: Distances, num_points: int, k: int) -> _Search:
    num_blocks = -(-num_points // between.block_points)
    block_tiles = -(-num_points // (between.width * num_blocks))
    num_tiles = num_blocks * block_tiles
    multiple = hamming.TILE_MULTIPLE
    width = -(-num_points // (num_tiles * multiple)) * multiple
    return _Search(between, k, num_blocks, block_tiles, width)


@dataclass(frozen=True)
class _Search:
    """The sizes of a search, and its steps."""

    between: Distances
    k: int
    num_blocks: int
    block_tiles: int
    width: int

    @property
    def num_tiles(self) -> int:
        return self.num_blocks * self.block_tiles

    @property
    def lanes(self) -> int:
        return self.width // _STRIP

    def tile_numbers(self) -> jax.Array:
        return jnp.arange(self.num_tiles, dtype=jnp.int32)

    def nothing(self) -> _Lists:
        shape = (self.num_tiles, self.k, self.width)
        return jnp.full(shape, self.between.missing, self.between.sum_dtype), jnp.full(
            shape, -1, jnp.int32
        )

    def part(self, points: jax.Array, valid: jax.Array, first: jax.Array) -> _Part:
        padding = self.num_tiles * self.width - len(points)
        points = jnp.pad(points, ((0, padding), (0, 0)))
        valid = jnp.pad(valid, (0, padding))
        ids = first + jnp.arange(len(points), dtype=jnp.int32)
        num_words = points.shape[1]
        words = math.gcd(num_words, 8)
        strips = points.reshape(-1, _STRIP, num_words // words, words)
        start = jnp.where(valid, 0, 2 * self.between.missing).astype(self.between.sum_dtype)
        return _Part(
            tiles=Tile(
                self.by_position(self.between.words(points, valid)).swapaxes(1, 2),
                self.by_position(ids),
                self.by_position(valid),
            ),
            strips=strips.transpose(2, 0, 3, 1),
            start=start.reshape(-1, _STRIP),
            first=first,
        )

    def by_position(self, x: jax.Array) -> jax.Array:
        """Points in order to positions in tiles: [T * width, ...] -> [T, width, ...]."""
        x = x.reshape(self.num_tiles, self.lanes, _STRIP, *x.shape[1:])
        return x.swapaxes(1, 2).reshape(self.num_tiles, self.width, *x.shape[3:])

    def in_order(self, lists: _Lists, num_points: int) -> Nearest:
        """Positions in tiles to points in order: [T, k, width] -> [k, num_points]."""

        def ordered(x: jax.Array) -> jax.Array:
            x = x.reshape(self.num_tiles, self.k, _STRIP, self.lanes)
            return x.transpose(1, 0, 3, 2).reshape(self.k, -1)[:, :num_points]

        return ordered(lists[0]), ordered(lists[1])

    def merged(self, lists: _Lists, others: _Lists) -> _Lists:
        both = [jnp.concatenate(pair, axis=1) for pair in zip(lists, others, strict=True)]
        return lax.map(lambda lists: nearest.smallest(lists[0], lists[1], self.k), tuple(both))

    # ---- strips ----

    def strips_of_own(self, part: _Part) -> _Lists:
        """The k first strips for every point, among all points of this device."""

        def with_block(a: jax.Array, lists: _Lists) -> _Lists:
            minima = self.no_minima()

            def row(i: jax.Array, minima: jax.Array) -> jax.Array:
                tile = part.tile(a * self.block_tiles + i)
                distances = self.between.from_tile(tile)

                def pair(j: jax.Array, minima: jax.Array) -> jax.Array:
                    other = part.tile(a * self.block_tiles + j)
                    of_i, of_j = self.strip_minima(distances(other, False))
                    return _put(_put(minima, of_i, i, j), of_j, j, i)

                # The barrier makes it a second array. XLA does not vectorize a loop over twice the same one.
                itself = lax.optimization_barrier(tile)
                _, of_itself = self.strip_minima(distances(itself, True))
                minima = _put(minima, of_itself, i, i)
                return lax.fori_loop(i + 1, self.block_tiles, pair, minima)

            minima = lax.fori_loop(0, self.block_tiles, row, minima)
            lists = self.with_strips(lists, minima, a, part, a)

            def and_later(b: jax.Array, lists: _Lists) -> _Lists:
                of_a, of_b = self.minima_of_blocks(part, part, a, b, self.all_tiles())
                lists = self.with_strips(lists, of_a, a, part, b)
                return self.with_strips(lists, of_b, b, part, a)

            return lax.fori_loop(a + 1, self.num_blocks, and_later, lists)

        return lax.fori_loop(0, self.num_blocks, with_block, self.nothing())

    def strips_of_both(self, part: _Part, other: _Part, ends: jax.Array) -> tuple[_Lists, _Lists]:
        """The k first strips of the other part for own points, and of this part for theirs."""

        def with_blocks(number: jax.Array, lists: tuple[_Lists, _Lists]) -> tuple[_Lists, _Lists]:
            a, b = number // self.num_blocks, number % self.num_blocks
            of_own, of_other = self.minima_of_blocks(part, other, a, b, ends)
            return (
                self.with_strips(lists[0], of_own, a, other, b),
                self.with_strips(lists[1], of_other, b, part, a),
            )

        nothing = self.nothing(), self.nothing()
        return lax.fori_loop(0, self.num_blocks**2, with_blocks, nothing)

    def all_tiles(self) -> jax.Array:
        return jnp.full(self.num_tiles, self.num_tiles, jnp.int32)

    def no_minima(self) -> jax.Array:
        """Initial minima of a block's points, by tile, over a block's strips: [tiles, strips, width]."""
        shape = (self.block_tiles, self.block_tiles * self.lanes, self.width)
        return jnp.full(shape, self.between.missing, self.between.dtype)

    def minima_of_blocks(
        self, part: _Part, other: _Part, a: jax.Array, b: jax.Array, ends: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Minima of the points of own block a over the strips of block b, and vice versa."""

        def row(i: jax.Array, minima: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            distances = self.between.from_tile(part.tile(a * self.block_tiles + i))

            def pair(
                j: jax.Array, minima: tuple[jax.Array, jax.Array]
            ) -> tuple[jax.Array, jax.Array]:
                tile = other.tile(b * self.block_tiles + j)
                of_i, of_j = self.strip_minima(distances(tile, False))
                return _put(minima[0], of_i, i, j), _put(minima[1], of_j, j, i)

            end = ends[a * self.block_tiles + i] - b * self.block_tiles
            return lax.fori_loop(0, jnp.clip(end, 0, self.block_tiles), pair, minima)

        return lax.fori_loop(0, self.block_tiles, row, (self.no_minima(), self.no_minima()))

    def strip_minima(self, distances: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Minima of the distances [width, width] of two tiles over strips of the other tile.

        Returns [lanes, width] for the points of the first tile, and for those of the second.
        """

        # A loop, because it writes its results before they are used. XLA would compute minima one by one if
        # it fused them with the transposition, or with the update of an array.
        def scan_points(number: jax.Array, least: Nearest) -> Nearest:
            of_i, of_j = least
            for offset in range(_POINTS_PER_PASS):
                at = (number * _POINTS_PER_PASS + offset) * self.lanes
                of_i = column_minima.less(
                    lax.dynamic_slice_in_dim(distances, at, self.lanes, axis=1), of_i
                )
                of_j = column_minima.less(lax.dynamic_slice_in_dim(distances, at, self.lanes), of_j)
            return of_i, of_j

        farthest = (
            jnp.full((self.width, self.lanes), self.between.missing, distances.dtype),
            jnp.full((self.lanes, self.width), self.between.missing, distances.dtype),
        )
        of_i, of_j = lax.fori_loop(0, _STRIP // _POINTS_PER_PASS, scan_points, farthest)
        return of_i.T, of_j

    def with_strips(
        self, lists: _Lists, minima: jax.Array, a: jax.Array, columns: _Part, b: jax.Array
    ) -> _Lists:
        """Lists of the points of block a, updated with the strips of block b."""
        first = columns.first + b * self.block_tiles * self.width

        def of_tile(minima: jax.Array, distances: jax.Array, strips: jax.Array) -> Nearest:
            least, number = self.between.first(minima, self.k)
            if self.num_blocks == 1:
                return least, first + number * _STRIP
            return nearest.smallest(
                jnp.concatenate([distances, least]),
                jnp.concatenate([strips, first + number * _STRIP]),
                self.k,
            )

        here = [lax.dynamic_slice_in_dim(x, a * self.block_tiles, self.block_tiles) for x in lists]
        updated = jax.vmap(of_tile)(minima, *here)  # one tile after another would use a single core
        distances, strips = (
            lax.dynamic_update_slice_in_dim(x, part, a * self.block_tiles, axis=0)
            for x, part in zip(lists, updated, strict=True)
        )
        return distances, strips

    # ---- points of strips ----

    def candidates(self, queries: _Part, columns: _Part, lists: _Lists) -> _Lists:
        """The k first points of the strips in these lists."""

        def counted_of_tile(tile: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            number, ids, distances, strips = tile
            # Sorted by number, so that points are sorted as well.
            strips = jnp.where(distances < self.between.missing, strips, column_minima.LARGEST)
            strips = column_minima.ascending(strips)
            strip_index = (jnp.clip(strips - columns.first, 0, None) // _STRIP).T
            points = self.points_of_tile(queries, number)
            counted = self.distances_in_strips(points, columns, strip_index)
            offset = jnp.arange(_STRIP, dtype=jnp.int32)[None, None, :]
            their_ids = strips.T[:, :, None] + offset
            excluded = (their_ids == ids[:, None, None]) | (counted >= self.between.missing)
            excluded |= (strips == column_minima.LARGEST).T[:, :, None]
            counted = jnp.where(excluded, self.between.missing, counted)
            return counted.reshape(self.width, -1), strips

        def first_of_tile(counted: jax.Array, strips: jax.Array) -> Nearest:
            distances, number = self.between.first(counted.T, self.k)
            rank = jnp.arange(self.k, dtype=jnp.int32)[:, None, None]
            strip = jnp.where(number[None] // _STRIP == rank, strips[:, None], 0).sum(axis=0)
            return distances, strip + number % _STRIP

        def of_block(tiles: tuple[jax.Array, ...]) -> Nearest:
            return jax.vmap(first_of_tile)(*lax.map(counted_of_tile, tiles))

        def by_block(x: jax.Array) -> jax.Array:
            return x.reshape(self.num_blocks, self.block_tiles, *x.shape[1:])

        tiles = self.tile_numbers(), queries.tiles.ids, *lists
        distances, ids = lax.map(of_block, tuple(map(by_block, tiles)))
        return distances.reshape(lists[0].shape), ids.reshape(lists[1].shape)

    def points_of_tile(self, part: _Part, number: jax.Array) -> jax.Array:
        """A tile's points by position, [passes, words a pass, width]."""
        strips = lax.dynamic_slice_in_dim(part.strips, number * self.lanes, self.lanes, axis=1)
        return strips.transpose(0, 2, 3, 1).reshape(*strips.shape[::2], self.width)

    def distances_in_strips(
        self, points: jax.Array, columns: _Part, strip_index: jax.Array
    ) -> jax.Array:
        """Distances [width, k, 16] of a tile's points to those of the strips `strip_index` [width, k].

        They are `missing` or more for points that are not allowed.
        """
        strip_index = strip_index.astype(
            jnp.uint32
        )  # signed indices would be checked for negative ones

        def add_words(number: jax.Array, total: jax.Array) -> jax.Array:
            part = jnp.zeros_like(total)
            for word in range(columns.strips.shape[2]):
                ours = points[number, word][:, None, None]
                theirs = columns.strips.at[number, strip_index, word].get(mode="promise_in_bounds")
                part += self.between.of_words(ours, theirs)
            return total + part

        total = columns.start.at[strip_index].get(mode="promise_in_bounds")
        return lax.fori_loop(0, columns.strips.shape[0], add_words, total)


def _put(minima: jax.Array, of_tile: jax.Array, tile: jax.Array, strips_of: jax.Array) -> jax.Array:
    """Minima of a block, updated with those of one tile over one tile's strips."""
    return lax.dynamic_update_slice(minima, of_tile[None], (tile, strips_of * of_tile.shape[0], 0))
