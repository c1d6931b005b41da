"""Label propagation by conjugate gradients: (I - alpha W) Z = Y for all columns at once.

XCLP, Algorithm 1, Z = S Y with S = (I - alpha W)^-1. W's eigenvalues lie in [-1, 1], so the matrix
is positive definite with condition number at most (1 + alpha) / (1 - alpha). Two known
properties are used:

* W's largest eigenvalue, 1, has the eigenvector D^1/2 1 on every component: the solution's part
  along it is the starting point, which saves a fifth of the steps.
* M^-1 = I + alpha W, the first terms of the inverse's Neumann series, is a preconditioner that is
  positive definite for every graph. A step then takes two products with W, but the number of steps
  halves. So does that of dot products and vector sums, which cost as much.

Up to 16 columns of many points share their search directions, which halves the steps once more: at
alpha = 0.99 some 10 to 20 are left.

Below alpha = 0.85 `propagate` sums the power series sum_h (alpha W)^h Y. Scores fall with every edge to the
nearest label, and a residual relative to the whole column does not determine small ones: with 20 labels among
1797 digits and alpha = 0.05, conjugate gradients to 1e-6 gave a tenth of the points another label; with 10
labels, 3 neighbors and alpha = 0.5, 2 % of them. For nonnegative Y all terms are nonnegative, so their sum is
exact to float32 in every entry above its minimum, 1e-38.

`propagate_centered` removes the part along those eigenvectors from the right-hand side and the solution. So
it allows alpha = 1, too, where I - W is singular along them alone.

Steps come in rounds, each ended by a true residual. A round's steps follow the recursion. Then the residual
is evaluated from Z itself, in float32, and replaces the recursive one. So the reported residual is the true
one, and rounding errors cannot accumulate for long. Columns stop one by one.

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

* Points in another order. In the given order, neighbors are 33,000 rows apart; by reverse Cuthill-McKee
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

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh
from jax.typing import ArrayLike

from jaxfed.errors import UsageError
from jaxfed.kernels.arrays import as_float32
from jaxfed.kernels.components import Components, reachable, without_leading
from jaxfed.kernels.devices import ROWS, SAME, SpreadRows, by_rows, everywhere, mesh_of, spread
from jaxfed.kernels.graph import (
    GRAPH_ROWS,
    Graph,
    add_product,
    scaled,
    subtract_product,
    subtract_product_apart,
)

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
    is_kept = values > _LEAST * values.max()
    inverses = jnp.where(is_kept, 1.0 / jnp.where(is_kept, values, 1.0), 0.0)
    scaled = scale[:, None] * vectors
    return _times(scaled * inverses[None], scaled.T)


# Steps between two true residuals: each costs a product, and bounds how far rounding can carry the
# recursive residual away. 4 to 16 need the same steps; without any, float32 ends at 2 to 6e-6.
_VERIFY_EVERY = 16
# The recursion aims below the tolerance, so that the first verification usually succeeds; the true
# residual too, because evaluating it in float32 has itself an error (about 3e-8 |z|).
_AIM = 0.7
_ACCEPT = 0.9
# A column's next direction builds on its last one unless its residual was off by more than this factor.
_TRUSTED = 2.0
# Where the system is nearly singular, a residual below this share of |z| is rounding; more steps add to it.
_ROUNDING = 1e-7
# Largest beta of the preconditioner I + beta W. At beta = 1 it would be singular for eigenvalue -1, which
# bipartite components have, such as two points that are linked only to each other.
_LARGEST_BETA = 0.99


class Convergence(NamedTuple):
    """Convergence of each column.

    Attributes:
      steps: int32 [C], conjugate gradient steps until the column stopped.
      residual: float32 [C], |y - (I - alpha W) z| / |y|, evaluated from z; 0 for a zero column.
      converged: bool [C], residual <= tolerance.
    """

    steps: Array
    residual: Array
    converged: Array


class _State(NamedTuple):
    z: Array  # [n, C]
    residual: Array  # [n, C]
    directions: Array  # P [n, C]
    last: tuple[Array, ...]  # state of `Directions` after the last step
    residual_norm: Array  # [C], squared
    verified_norm: Array  # [C], squared true residual at the last verification
    claimed_norm: Array  # [C], the same when the recursion last claimed success
    steps: Array  # int32 [C]
    done: Array  # bool [C]


def solve_block(
    graph: Graph,
    y: Array,
    start: Array,
    alpha: Array,
    tolerance: Array,
    max_steps: Array,
    components: Components | None,
    rows: SpreadRows,
) -> tuple[Array, Convergence]:
    """Solve (I - alpha W) Z = Y for a block of columns.

    Args:
        graph: W, of n points.
        y: float32 [n, C], of a size whose squares neither overflow nor vanish.
        start: float32 [n, C], where Z begins; W start = start.
        alpha: float32 scalar in [0, 1); to 1 where leading eigenvectors are left out.
        tolerance: float32 scalar, of the relative residual.
        max_steps: int32 scalar.
        components: those whose leading eigenvectors are projected out of Z, and already of Y; None: no
            projection.
        rows: the rows of this device, if they are spread over devices.

    Returns:
        Z float32 [n, C], and the convergence of each column. A column that is not finite is returned as NaN.

    Cost: a step takes two products with W; a round of up to 16 one more.
    """
    # Z = (c + alpha W) R with c = alpha / beta: the preconditioner times c, which no step sees.
    alpha_w, c = scaled(graph, alpha), jnp.maximum(alpha / _LARGEST_BETA, 1.0)
    y_norm = _squares(y, rows)
    # A column that is not finite would spoil those that share its directions.
    is_finite = jnp.isfinite(y_norm)
    y, start = jnp.where(is_finite, y, 0.0), jnp.where(is_finite, start, 0.0)
    aim, accept = ((share * tolerance) ** 2 * y_norm for share in (_AIM, _ACCEPT))
    block = _Block(graph, alpha_w, c, y, aim, accept, max_steps, components, rows)
    state = lax.while_loop(
        lambda state: ~jnp.all(state.done), block.advance, block.first(start, alpha, is_finite)
    )
    residual = jnp.sqrt(state.residual_norm / jnp.where(y_norm > 0, y_norm, 1.0))
    residual = jnp.where(is_finite, residual, jnp.nan)
    z = jnp.where(is_finite, state.z, jnp.nan)
    return z, Convergence(state.steps, residual, residual <= tolerance)


class _Block(NamedTuple):
    """The system of a block of columns, and one round of steps toward its solution.

    Fields:
        graph: W.
        alpha_w: alpha W.
        c: float32 scalar, alpha / beta of the preconditioner.
        y: float32 [n, C]; columns that are not finite are 0.
        aim: float32 [C], squared norm below which a residual of the recursion ends a round.
        accept: float32 [C], squared norm below which a true residual ends a column.
        max_steps: int32 scalar.
        components: as `solve_block`.
        rows: as `solve_block`.
    """

    graph: Graph
    alpha_w: Graph
    c: Array
    y: Array
    aim: Array
    accept: Array
    max_steps: Array
    components: Components | None
    rows: SpreadRows

    @property
    def search(self) -> Directions:
        """The kind of search directions."""
        return directions_of(self.y, self.rows)

    def kept(self, x: Array) -> Array:
        """x without components along leading eigenvectors, which rounding adds, if they are projected out."""
        return (
            x
            if self.components is None
            else without_leading(self.graph, self.components, x, self.rows)
        )

    def first(self, start: Array, alpha: Array, is_finite: Array) -> _State:
        """Return the state before the first step; W start = start."""
        first = self.y - (1 - alpha) * start
        return _State(
            z=start,
            residual=first,
            directions=jnp.zeros_like(self.y),
            last=self.search.none(self.y),
            residual_norm=_squares(first, self.rows),
            verified_norm=_squares(first, self.rows),
            claimed_norm=jnp.full_like(self.aim, jnp.inf),
            steps=jnp.zeros(is_finite.shape, jnp.int32),
            done=~is_finite,
        )

    def advance(self, state: _State) -> _State:
        """Take a round of steps, and verify its residual."""
        _, change, state = lax.while_loop(
            lambda carry: (carry[0] < _VERIFY_EVERY) & jnp.any(self.live(carry[2])),
            self.step,
            (jnp.int32(0), jnp.zeros_like(self.y), state),
        )
        return self.verify(change, state)

    def live(self, state: _State) -> Array:
        """True for columns that go on: bool [C]."""
        return ~state.done & (state.residual_norm > self.aim) & (state.steps < self.max_steps)

    def step(self, carry: tuple[Array, Array, _State]) -> tuple[Array, Array, _State]:
        """Take one step; the change of z since the last verification is summed separately."""
        count, change, state = carry
        search, rows, moves = self.search, self.rows, self.live(state)
        smoothed = add_product(self.alpha_w, self.c * state.residual, state.residual, rows)
        directions, slope = search.conjugate(
            state.last, state.directions, smoothed, state.residual, moves
        )
        products = subtract_product(self.alpha_w, directions, directions, rows)
        lengths, last = search.lengths(slope, directions, products, state.residual, moves)
        residual = state.residual - search.along(products, lengths)
        return (
            count + 1,
            change + search.along(directions, lengths),
            state._replace(
                residual=residual,
                directions=directions,
                last=last,
                residual_norm=jnp.where(moves, _squares(residual, rows), state.residual_norm),
                steps=state.steps + moves.astype(jnp.int32),
            ),
        )

    def verify(self, change: Array, state: _State) -> _State:
        """Add the change to z, and replace the recursive residual by the true one."""
        z = self.kept(state.z + change)
        residual = self.kept(self.y - subtract_product_apart(self.alpha_w, z, z, self.rows))
        norm = _squares(residual, self.rows)
        # If the recursion ends again and the true residual has not halved (squared: a quarter), it is
        # limited by rounding.
        ended = state.residual_norm <= self.aim
        stuck = ended & (norm > 0.25 * state.claimed_norm)
        if self.components is not None:
            stuck |= norm <= _ROUNDING**2 * _squares(z, self.rows)
        # A residual that has grown may be rounding alone; a direction built on it would diverge.
        distrusted = (norm > _TRUSTED**2 * state.residual_norm) | (norm > state.verified_norm)
        return state._replace(
            z=z,
            residual=residual,
            last=self.search.anew(state.last, distrusted),
            residual_norm=norm,
            verified_norm=norm,
            claimed_norm=jnp.where(ended, norm, state.claimed_norm),
            # NaN compares false: such a column is done, and not converged.
            done=state.done | ~(norm > self.accept) | stuck | (state.steps >= self.max_steps),
        )


def _squares(a: Array, rows: SpreadRows) -> Array:
    """Squared norms of columns: [n, C] -> [C]."""
    return rows.total(jnp.sum(a * a, axis=0))


SERIES_BELOW = 0.85  # alpha
FEW, LANES = 8, 16  # above `FEW`, columns are padded to multiples of `LANES`


def propagate(
    graph: Graph,
    y: ArrayLike,
    alpha: ArrayLike,
    *,
    tolerance: ArrayLike = 1e-6,
    max_steps: ArrayLike = 1000,
) -> tuple[Array, Convergence]:
    """Solve (I - alpha W) Z = Y, each column to |y - (I - alpha W) z| <= tolerance |y|.

    Every column is a system that stops by itself while the others go on. Up to 16 columns of more than 4096
    points share their search directions. All columns share the products with W, which take most of the time.

    Differs from `jax.scipy.sparse.linalg.cg`: it treats all columns as one vector (one step size, one stop),
    trusts the recursive residual, which in float32 drifts to several times 1e-6, and returns no diagnostics.
    Here the true residual is evaluated every few dozen steps and at the end. It replaces the recursive one,
    and the search direction is kept. Between evaluations z is summed in parts, whose rounding is relative to
    the part. A column whose true residual no longer decreases stops and is reported as not converged. Float32
    reaches about 1e-7 |z| / |y|, and a thousand times as much where tens of thousands of equal points have
    the same few neighbors, whose sums are long.

    Args:
      graph: W, n by n, from `normalized_graph`. Over a mesh the columns are solved there together,
        to the same tolerance, and z's rows are spread like the graph's.
      y: float [n, C].
      alpha: in (0, 1). Below 0.85, unless it is traced, every entry of Z has a relative error of about
        `tolerance`.
      tolerance: positive, relative to each column's norm.
      max_steps: maximum number of steps per column, of two products with W each.

    Columns are solved in blocks that suit a CPU's caches (64, or 32 for large graphs), on other devices of
    256. More than 8 columns are padded to multiples of 16, the width of a CPU's vector unit.

    Returns:
      z: float32 [n, C].
      info: `Convergence`, one entry a column.

    Raises:
      UsageError: shapes do not fit, y is complex, or alpha, tolerance or max_steps is out of range
        (values are checked unless traced).

    Cost: a step is two products with W and 14 passes over n x C floats, up to C = 16 twice as many; memory 8
    n floats for each column of a block in addition to Y and Z. Under vmap all graphs take as many steps as
    the slowest.
    """
    y = _along(graph, y)
    _check("alpha", alpha, "in (0, 1) as float32", lambda value: 0 < float(np.float32(value)) < 1)
    is_small = not isinstance(alpha, jax.core.Tracer) and bool(np.asarray(alpha) < SERIES_BELOW)
    return _solved(graph, y, alpha, tolerance, max_steps, None, is_small=is_small)


class PropagationMatrix(NamedTuple):
    """S = (I - alpha W)^-1, n by n, which is never formed: `solved` multiplies it with columns.

    The graph's rows may be spread over a mesh; all other arrays are on one device.
    """

    graph: Graph
    alpha: float
    tolerance: float = 1e-6
    max_steps: int = 1000

    @property
    def num_points(self) -> int:
        """n, with padding."""
        return len(self.graph.neighbors)

    @property
    def root_degrees(self) -> Array:
        """D^1/2, float32 [n]."""
        return everywhere(self.graph.root_degrees)

    def solved(self, y: ArrayLike) -> tuple[Array, Convergence]:
        """S Y for Y float32 [n, C], and the convergence of each column."""
        graph, alpha, tolerance, max_steps = self
        return everywhere(propagate(graph, y, alpha, tolerance=tolerance, max_steps=max_steps))


def propagate_centered(
    graph: Graph,
    components: Components,
    y: ArrayLike,
    alpha: ArrayLike,
    *,
    tolerance: ArrayLike = 1e-6,
    max_steps: ArrayLike = 1000,
) -> tuple[Array, Convergence]:
    """Solve (I - alpha W) Z = P^ Y, where P^ removes the leading eigenvector of every component.

    Z = P^ (I - alpha W)^-1 Y = (I - alpha W)^-1 Y - sum_K v_K (v_K^T Y) / ((1 - alpha) |v_K|^2), computed
    without the difference; at alpha = 1 it is the pseudo-inverse of I - W times Y.

    Arguments, errors and cost are those of `propagate`, except
      components: of `jaxfed.kernels.components.components(graph)`.
      alpha: in (0, 1].
    The residual is relative to P^ Y. Steps grow with the inverse root of the gap below eigenvalue 1.
    """
    y, mesh = _along(graph, y), mesh_of(graph.neighbors)
    if mesh is not None:
        components = Components(*(spread(part, mesh) for part in components))
    _check("alpha", alpha, "in (0, 1]", lambda value: 0 < float(np.float32(value)) <= 1)
    return _solved(graph, y, alpha, tolerance, max_steps, components)


def _solved(
    graph: Graph,
    y: Array,
    alpha: ArrayLike,
    tolerance: ArrayLike,
    max_steps: ArrayLike,
    components: Components | None,
    *,
    is_small: bool = False,
) -> tuple[Array, Convergence]:
    """Solve with one program for all numbers of columns that are padded to the same one."""
    num_columns, mesh = y.shape[1], mesh_of(graph.neighbors)
    _check("tolerance", tolerance, "positive", lambda value: value > 0)
    _check("max_steps", max_steps, "at least 1", lambda value: value >= 1)
    block_columns = _block_columns(len(y))
    wide = -(-num_columns // LANES) * LANES
    is_padded = num_columns > FEW and block_columns % LANES == 0
    is_here = mesh is None and not isinstance(y, jax.core.Tracer)
    if is_padded and is_here and wide > num_columns:
        y = jnp.pad(y, ((0, 0), (0, wide - num_columns)))
    z, info = _propagate(
        graph,
        y,
        _scalar(alpha, np.float32),
        _scalar(tolerance, np.float32),
        _scalar(max_steps, np.int32),
        components,
        block_columns=block_columns,
        mesh=mesh,
        is_small=is_small,
    )
    if z.shape[1] == num_columns:
        return z, info
    return _first_columns((z, info), num_columns)


@partial(jax.jit, static_argnames="number")
def _first_columns(solved: tuple[Array, Convergence], number: int) -> tuple[Array, Convergence]:
    return jax.tree.map(lambda columns: columns[..., :number], solved)


def _scalar(value: ArrayLike, dtype: type) -> ArrayLike:
    """A number of this type; a host number stays on the host, which saves a transfer."""
    if isinstance(value, jax.Array):
        return value.astype(dtype)
    return np.asarray(value, dtype)[()]


def _along(graph: Graph, y: ArrayLike) -> Array:
    """Y as an array, with its rows spread like the graph's."""
    y = as_float32("y", y)
    n, mesh = graph.neighbors.shape[0], mesh_of(graph.neighbors)
    if y.ndim != 2 or y.shape[0] != n:
        raise UsageError(f"y must be [n, C] with n = {n} points of the graph, got {y.shape}")
    return y if mesh is None else spread(y, mesh)


def _block_columns(n: int) -> int:
    """Columns whose vectors stay in the caches of a CPU; wide blocks elsewhere."""
    if jax.default_backend() != "cpu":
        return 256
    return 64 if n <= 20_000 else 32


@partial(jax.jit, static_argnames=("block_columns", "mesh", "is_small"))
def _propagate(
    graph: Graph,
    y: Array,
    alpha: Array,
    tolerance: Array,
    max_steps: Array,
    components: Components | None = None,
    *,
    block_columns: int,
    mesh: Mesh | None = None,
    is_small: bool = False,
) -> tuple[Array, Convergence]:
    def solved(rows: SpreadRows) -> Callable[..., tuple[Array, Convergence]]:
        return partial(_propagate_rows, block_columns=block_columns, is_small=is_small, rows=rows)

    takes = (GRAPH_ROWS, ROWS, SAME, SAME, SAME, ROWS)
    solve = by_rows(solved, mesh, takes=takes, gives=(ROWS, SAME))
    return solve(graph, y, alpha, tolerance, max_steps, components)


def _propagate_rows(
    graph: Graph,
    y: Array,
    alpha: Array,
    tolerance: Array,
    max_steps: Array,
    components: Components | None,
    *,
    block_columns: int,
    is_small: bool,
    rows: SpreadRows,
) -> tuple[Array, Convergence]:
    """Solve blocks of columns one after another; `components` removes its leading eigenvectors."""
    n, num_columns = y.shape
    # Scaling by a power of two is exact; squares of y then neither overflow nor vanish.
    largest = rows.largest(jnp.max(jnp.abs(y), axis=0, initial=0.0))
    # (`exp2` is not on a CPU. Of 2^127 the reciprocal, which XLA multiplies by, would be 0.)
    power = jnp.frexp(jnp.where(largest > 0, largest, 1.0))[1] - 1
    unit = jnp.ldexp(jnp.float32(1), jnp.minimum(power, 126))
    y = y / unit[None]
    if is_small:
        z, info = _sum_series(graph, y, alpha, tolerance, max_steps, rows)
        return z * unit[None], info
    if components is None:
        start = _perron_start(graph, y, alpha, rows)
    else:
        y = without_leading(graph, components, y, rows)
        start = jnp.zeros_like(y)
    if num_columns <= min(FEW, block_columns):
        z, info = solve_block(graph, y, start, alpha, tolerance, max_steps, components, rows)
        return z * unit[None], info
    num_blocks = -(-num_columns // block_columns)
    width = -(-num_columns // (LANES * num_blocks)) * LANES

    def into_blocks(x: Array) -> Array:
        padded = jnp.pad(x, ((0, 0), (0, num_blocks * width - num_columns)))
        return padded.reshape(n, num_blocks, width).swapaxes(0, 1)

    def solve(block: tuple[Array, Array]) -> tuple[Array, Convergence]:
        return solve_block(graph, *block, alpha, tolerance, max_steps, components, rows)

    blocks = into_blocks(y), into_blocks(start)
    if num_blocks == 1:
        solved = jax.tree.map(lambda x: x[None], solve(jax.tree.map(lambda x: x[0], blocks)))
    else:
        solved = lax.map(solve, blocks)
    z, info = solved
    z = z.swapaxes(0, 1).reshape(n, num_blocks * width)[:, :num_columns]
    return z * unit[None], jax.tree.map(lambda x: x.reshape(num_blocks * width)[:num_columns], info)


def _sum_series(
    graph: Graph, y: Array, alpha: Array, tolerance: Array, max_steps: Array, rows: SpreadRows
) -> tuple[Array, Convergence]:
    """Sum (alpha W)^h Y to a relative error of about `tolerance` in every entry; as `solve_block`.

    Each column stops when its last term is below (1 - alpha) tolerance |z| at every point. That cannot hold
    at a point that the sum has just reached, so the sum reaches every point with a path to a label.

    Cost: a step is one product with W; log(tolerance) / log(alpha) steps, and one more for each edge between
    a point and its nearest label.
    """
    alpha_w = scaled(graph, alpha)

    def anywhere(holds: Array) -> Array:
        return rows.largest(holds.any(axis=0).astype(jnp.int32)) > 0

    is_finite = ~anywhere(~jnp.isfinite(y))
    y = jnp.where(is_finite, y, 0.0)

    def add(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        z, term, steps, live = state
        term = add_product(alpha_w, jnp.zeros_like(term), term, rows)
        z = jnp.where(live, z + term, z)
        steps += live.astype(jnp.int32)
        grows = anywhere(jnp.abs(term) > (1 - alpha) * tolerance * jnp.abs(z))
        return z, term, steps, live & grows & (steps < max_steps)

    begun = y, y, jnp.zeros(is_finite.shape, jnp.int32), anywhere(y != 0)
    z, _, steps, _ = lax.while_loop(lambda state: state[3].any(), add, begun)
    residual = y - subtract_product_apart(alpha_w, z, z, rows)
    of_residual, of_y = (rows.total(jnp.sum(x * x, axis=0)) for x in (residual, y))
    share = jnp.where(is_finite, jnp.sqrt(of_residual / jnp.where(of_y > 0, of_y, 1.0)), jnp.nan)
    return jnp.where(is_finite, z, jnp.nan), Convergence(steps, share, share <= tolerance)


def _perron_start(graph: Graph, y: Array, alpha: Array, rows: SpreadRows) -> Array:
    """The solution's part along v = D^1/2 1 on the components that hold labels: [n, C].

    W v = v, so (I - alpha W)^-1 v = v / (1 - alpha). Components without labels stay exactly zero.
    """
    reached = reachable(graph, (y != 0).any(axis=1), rows)
    v = jnp.where(reached, graph.root_degrees, 0.0)
    squared = rows.total(jnp.dot(v, v, precision=lax.Precision.HIGHEST))
    share = rows.total(jnp.matmul(v[None], y, precision=lax.Precision.HIGHEST))
    return v[:, None] * (share / ((1 - alpha) * jnp.where(squared > 0, squared, 1.0)))


def _check(name: str, value: ArrayLike, allowed: str, holds: Callable[[Any], bool]) -> None:
    if not isinstance(value, jax.core.Tracer) and not holds(value):
        raise UsageError(f"{name} must be {allowed}, got {value}")
