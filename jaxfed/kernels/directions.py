"""Search directions of conjugate gradients, each column's own or shared by all columns.

A step goes along directions P, with Q = (I - alpha W) P, to the least error that can be had there, and makes
the next ones, Z = M^-1 R, conjugate to them:

    P <- Z - P G^-1 Q^T Z,    G = P^T Q,    X <- X + P G^-1 P^T R,    R <- R - Q G^-1 P^T R

`Alone` takes of these C x C matrices the diagonals, so that every column is a system of its own, and the
quotients of the textbook for them. `Together` takes all of them (O'Leary, "The block conjugate gradient
algorithm and related methods", Linear Algebra and its Applications 29, 1980), and every column profits from
the directions of all: those of the labels together point at the graph's clusters, whose eigenvalues are what
holds a single column up. There are half as many steps then (9 for 16 on 100,000 points around ten centers,
22 for 40 on 10,000 of Fashion-MNIST), and a step takes C^2 products of vectors in the place of C. On two
cores of an Intel CPU that is a quarter less time at C = 10; at C = 62 it is as much as by itself in groups of
16, and up to twice as much in wider ones, where XLA's product of [n, C]^T and [n, C] takes longer than W's.

Tried for steps and their products at n = 100,000, k = 10, C = 10 on the same cores, and left out:

* Points in another order. As they come, neighbors are 33,000 places apart; by reverse Cuthill-McKee 21,000,
  and a product takes 0.92 of its time (0.78 at C = 32); by their classes, which nobody knows, 7,400 and
  0.95 (0.70). The order takes SciPy 28 ms, a fifth of a solve, before the graph is built anew.
* bfloat16 copies of what is gathered, sums in float32, for the preconditioner, which needs no more: half the
  bytes, but XLA:CPU's conversions take longer than it saves (1.1 to 1.3 times the time of float32). Two
  packed into a word and taken apart by shifts: 1.7 times and more, the compiler makes no vectors of it.
* Vectors of 512 bits in the place of 256: as fast or slower. The same loops written in C by hand take 0.65
  to 0.9 of XLA's time; half of that is reading W.
* Rows in the order of their number of neighbors, in a table for each width: no scatter and a fifth
  fewer slots, but 1.2 to 1.5 times the time, being seven small loops for one.
* A preconditioner of higher degree: on a spectrum in [-0.6, 0.6], which is left when clusters are found,
  1 + t + t^2 conditions no better than 1 + t. Chebyshev iteration needs 100 products for the same.
"""

from typing import NamedTuple, Protocol

import jax.numpy as jnp
from jax import Array, lax

from jaxfed.kernels.spread import Rows

# Eigenvalues of G, scaled to unit diagonal, in parts of the largest. Below this they may be what float32
# rounds in sums over n, and negative: where columns depend on each other, or the system is nearly singular.
_LEAST = 1e-5

# Together go so many columns at most, of so many points at least. Fewer are solved in milliseconds either
# way, and columns alone often end far below their tolerance, which is seen where scores are all but zero.
MOST_TOGETHER, FEWEST_POINTS = 16, 4096


class Directions(Protocol):
    """How the columns of a block go. What a step leaves to the next is a tree of arrays, `last`."""

    def none(self, y: Array) -> tuple[Array, ...]:
        """Before the first step for Y [n, C]."""

    def conjugate(
        self,
        last: tuple[Array, ...],
        directions: Array,
        smoothed: Array,
        residual: Array,
        moves: Array,
    ) -> tuple[Array, Array]:
        """The next directions, from the last ones, Z and R, all [n, C], and <R, Z> where it is known.

        `moves`: bool [C], whether the column takes part in the step.
        """

    def lengths(
        self, slope: Array, directions: Array, products: Array, residual: Array, moves: Array
    ) -> tuple[Array, tuple[Array, ...]]:
        """G^-1 P^T R, 0 for columns that do not move, and what the next step needs."""

    def along(self, directions: Array, lengths: Array) -> Array:
        """P times lengths: [n, C]."""

    def anew(self, last: tuple[Array, ...], distrusted: Array) -> tuple[Array, ...]:
        """After R has been replaced; bool [C], columns of which the last step no longer tells anything."""


class Alone(NamedTuple):
    """Every column has directions of its own; the rows that are here."""

    rows: Rows

    def none(self, y: Array) -> tuple[Array, ...]:
        """An infinite <R, Z>, which begins a new direction."""
        return (jnp.full(y.shape[1], jnp.inf, y.dtype),)

    def conjugate(
        self,
        last: tuple[Array, ...],
        directions: Array,
        smoothed: Array,
        residual: Array,
        moves: Array,
    ) -> tuple[Array, Array]:
        """Z + P <R, Z> / <R, Z> of the last step."""
        slope = self._dots(residual, smoothed)
        ratio = jnp.where(moves, slope / last[0], 0.0)
        return smoothed + ratio[None] * directions, slope

    def lengths(
        self, slope: Array, directions: Array, products: Array, residual: Array, moves: Array
    ) -> tuple[Array, tuple[Array, ...]]:
        """<R, Z> / <P, Q>: P^T R is <R, Z> where R is orthogonal to the last direction."""
        lengths = jnp.where(moves, slope / self._dots(directions, products), 0.0)
        return lengths, (jnp.where(moves, slope, jnp.inf),)

    def along(self, directions: Array, lengths: Array) -> Array:
        """Column by column."""
        return lengths[None] * directions

    def anew(self, last: tuple[Array, ...], distrusted: Array) -> tuple[Array, ...]:
        """The next directions of these columns owe nothing to their last ones."""
        return (jnp.where(distrusted, jnp.inf, last[0]),)

    def _dots(self, a: Array, b: Array) -> Array:
        return self.rows.total(jnp.sum(a * b, axis=0))


class Together(NamedTuple):
    """All columns share their directions, at most 16 or so; the rows that are here."""

    rows: Rows

    def none(self, y: Array) -> tuple[Array, ...]:
        """Q and G^-1, both 0."""
        return jnp.zeros_like(y), jnp.zeros((y.shape[1], y.shape[1]), y.dtype)

    def conjugate(
        self,
        last: tuple[Array, ...],
        directions: Array,
        smoothed: Array,
        residual: Array,
        moves: Array,
    ) -> tuple[Array, Array]:
        """Z - P G^-1 Q^T Z, which holds for any R: nothing is to be corrected when it is replaced."""
        products, inverse = last
        ratio = _times(inverse, self._dots(products, smoothed))
        return smoothed - self.along(directions, ratio), jnp.zeros(())

    def lengths(
        self, slope: Array, directions: Array, products: Array, residual: Array, moves: Array
    ) -> tuple[Array, tuple[Array, ...]]:
        """G^-1 P^T R."""
        inverse = _inverse(self._dots(directions, products))
        lengths = _times(inverse, self._dots(directions, residual))
        return jnp.where(moves[None], lengths, 0.0), (products, inverse)

    def along(self, directions: Array, lengths: Array) -> Array:
        """Column after column: one pass with what it is added to; a matrix product is one by itself."""
        product = directions[:, :1] * lengths[:1]
        for column in range(1, len(lengths)):
            product = product + directions[:, column, None] * lengths[column][None]
        return product

    def anew(self, last: tuple[Array, ...], distrusted: Array) -> tuple[Array, ...]:
        """As they are, which holds for any R."""
        return last

    def _dots(self, a: Array, b: Array) -> Array:
        contract = (((0,), (0,)), ((), ()))
        return self.rows.total(lax.dot_general(a, b, contract, precision=lax.Precision.HIGHEST))


def directions_of(y: Array, rows: Rows) -> Directions:
    """The faster ones for the columns of Y, whose rows here are [n, C]."""
    num_points, num_columns = y.shape[0] * rows.num_parts, y.shape[1]
    if num_columns <= MOST_TOGETHER and num_points >= FEWEST_POINTS:
        return Together(rows)
    return Alone(rows)


def _times(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def _inverse(g: Array) -> Array:
    """G^-1 along what G tells apart. What it does not is left to later steps, where it is larger."""
    size = jnp.diagonal(g)
    scale = jnp.where(size > 0, lax.rsqrt(jnp.where(size > 0, size, 1.0)), 0.0)
    symmetric = 0.5 * scale[:, None] * (g + g.T) * scale[None]
    values, vectors = jnp.linalg.eigh(symmetric, symmetrize_input=False)
    told = values > _LEAST * values.max()
    inverses = jnp.where(told, 1.0 / jnp.where(told, values, 1.0), 0.0)
    scaled = scale[:, None] * vectors
    return _times(scaled * inverses[None], scaled.T)
