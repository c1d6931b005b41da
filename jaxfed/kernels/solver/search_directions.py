"""Search directions of conjugate gradients, separate for each column or shared by all columns.

A step minimizes the error along directions P, with Q = (I - alpha W) P, and makes the next directions from
Z = M^-1 R, conjugate to the last ones:

    P <- Z - P G^-1 Q^T Z,    G = P^T Q,    X <- X + P G^-1 P^T R,    R <- R - Q G^-1 P^T R

`Alone` keeps only the diagonals of these C x C matrices. Every column is then a system of its own, with the
quotients of the textbook. `Together` uses the full matrices (O'Leary, "The block conjugate gradient algorithm
and related methods", Linear Algebra and its Applications 29, 1980), and every column profits from the
directions of all. The directions of all labels together span the graph's clusters, whose eigenvalues slow a
single column down. Sharing halves the number of steps (9 for 16 on 100,000 points around ten centers, 22 for
40 on 10,000 of Fashion-MNIST), while a step takes C^2 products of vectors instead of C. On two cores of an
Intel CPU that is a quarter less time at C = 10. At C = 62 groups of 16 take as long as separate columns, and
wider groups up to twice as long, because XLA's product of [n, C]^T and [n, C] takes longer than W's.

Tried for steps and their products at n = 100,000, k = 10, C = 10 on the same cores, and rejected:

* Points in another order. In the given order, neighbors are 33,000 places apart; by reverse Cuthill-McKee
  21,000, and a product takes 0.92 of its time (0.78 at C = 32); by their classes, which are unknown, 7,400
  and 0.95 (0.70). The order takes SciPy 28 ms, a fifth of a solve, before the graph is built again.
* bfloat16 copies of gathered rows, sums in float32, for the preconditioner, which needs no more: half the
  bytes, but XLA:CPU's conversions take longer than it saves (1.1 to 1.3 times the time of float32). Two
  packed into a word and separated by shifts: 1.7 times and more, since the compiler does not vectorize it.
* Vectors of 512 bits instead of 256: as fast or slower. The same loops written in C by hand take 0.65
  to 0.9 of XLA's time; half of that is reading W.
* Rows in the order of their number of neighbors, in a table for each width: no scatter and a fifth
  fewer slots, but 1.2 to 1.5 times the time, being seven small loops instead of one.
* A preconditioner of higher degree: on a spectrum in [-0.6, 0.6], which remains once clusters are found,
  1 + t + t^2 conditions no better than 1 + t. Chebyshev iteration needs 100 products for the same.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from jaxfed.kernels.devices.spread import SpreadRows

# Smallest eigenvalue of G, scaled to unit diagonal, relative to the largest. Smaller ones may be float32's
# rounding errors, even negative: if columns are linearly dependent, or the system is nearly singular.
_LEAST = 1e-5

# `Together` serves at most so many columns of at least so many points. Fewer points are solved in
# milliseconds either way. Separate columns often end far below their tolerance, which shows in tiny scores.
MOST_TOGETHER, FEWEST_POINTS = 16, 4096


class Alone(NamedTuple):
    """Separate directions for every column; `rows` are those of this device."""

    rows: SpreadRows

    def none(self, y: Array) -> tuple[Array, ...]:
        """An infinite <R, Z>, which starts a new direction."""
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
        """<R, Z> / <P, Q>: P^T R is <R, Z> if R is orthogonal to the last direction."""
        lengths = jnp.where(moves, slope / self._dots(directions, products), 0.0)
        return lengths, (jnp.where(moves, slope, jnp.inf),)

    def along(self, directions: Array, lengths: Array) -> Array:
        """P times lengths, column by column."""
        return lengths[None] * directions

    def anew(self, last: tuple[Array, ...], distrusted: Array) -> tuple[Array, ...]:
        """State in which the next directions of these columns do not depend on their last ones."""
        return (jnp.where(distrusted, jnp.inf, last[0]),)

    def _dots(self, a: Array, b: Array) -> Array:
        return self.rows.total(jnp.sum(a * b, axis=0))


class Together(NamedTuple):
    """Shared directions of all columns, at most about 16; `rows` are those of this device."""

    rows: SpreadRows

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
        """Z - P G^-1 Q^T Z, which is valid for any R, also a replaced one."""
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
        """Column after column: XLA fuses it with the following sum; a matrix product is a separate pass."""
        product = directions[:, :1] * lengths[:1]
        for column in range(1, len(lengths)):
            product = product + directions[:, column, None] * lengths[column][None]
        return product

    def anew(self, last: tuple[Array, ...], distrusted: Array) -> tuple[Array, ...]:
        """Unchanged state, which is valid for any R."""
        return last

    def _dots(self, a: Array, b: Array) -> Array:
        contract = (((0,), (0,)), ((), ()))
        return self.rows.total(lax.dot_general(a, b, contract, precision=lax.Precision.HIGHEST))


# In both, `last` is the state between steps; `moves`, bool [C], marks columns that take part in the step, and
# `distrusted`, bool [C], those whose last step is useless.
Directions = Alone | Together


def directions_of(y: Array, rows: SpreadRows) -> Directions:
    """The faster kind of directions for the columns of Y, whose rows on this device are [n, C]."""
    num_points, num_columns = y.shape[0] * rows.num_parts, y.shape[1]
    if num_columns <= MOST_TOGETHER and num_points >= FEWEST_POINTS:
        return Together(rows)
    return Alone(rows)


def _times(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def _inverse(g: Array) -> Array:
    """Pseudo-inverse of G without its smallest eigenvalues; later steps reduce the error along these."""
    size = jnp.diagonal(g)
    scale = jnp.where(size > 0, lax.rsqrt(jnp.where(size > 0, size, 1.0)), 0.0)
    symmetric = 0.5 * scale[:, None] * (g + g.T) * scale[None]
    values, vectors = jnp.linalg.eigh(symmetric, symmetrize_input=False)
    told = values > _LEAST * values.max()
    inverses = jnp.where(told, 1.0 / jnp.where(told, values, 1.0), 0.0)
    scaled = scale[:, None] * vectors
    return _times(scaled * inverses[None], scaled.T)
