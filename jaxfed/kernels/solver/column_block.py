"""Preconditioned conjugate gradients for a block of columns: rounds of steps, each ended by a true residual.

A round's steps follow the recursion. Then the residual is evaluated from Z itself, in float32, and replaces
the recursive one. So the reported residual is the true one, and rounding errors cannot accumulate for long.
Columns stop one by one. `jaxfed.kernels.solver.search_directions` shares search directions between columns;
`jaxfed.kernels.conjugate_gradient` explains the choice of the preconditioner.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from jaxfed.kernels.components import Components, without_leading
from jaxfed.kernels.devices.spread import SpreadRows
from jaxfed.kernels.graph import (
    Graph,
    add_product,
    scaled,
    subtract_product,
    subtract_product_apart,
)
from jaxfed.kernels.solver.search_directions import Directions, directions_of

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
    found: Components | None,
    rows: SpreadRows,
    residual: Array | None = None,
) -> tuple[Array, Convergence]:
    """Solve (I - alpha W) Z = Y for a block of columns.

    Args:
        graph: W, of n points.
        y: float32 [n, C], of a size whose squares neither overflow nor vanish.
        start: float32 [n, C], where Z begins; W start = start unless its residual is given.
        alpha: float32 scalar in [0, 1); to 1 where leading eigenvectors are left out.
        tolerance: float32 scalar, of the relative residual.
        max_steps: int32 scalar.
        found: components whose leading eigenvectors are projected out of Z, and already of Y; None: no
            projection.
        rows: the rows of this device, if they are spread over devices.
        residual: float32 [n, C], Y - (I - alpha W) start.

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
    block = _Block(graph, alpha_w, c, y, aim, accept, max_steps, found, rows)
    state = lax.while_loop(
        lambda state: ~jnp.all(state.done),
        block.advance,
        block.first(start, alpha, is_finite, residual),
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
        found: as `solve_block`.
        rows: as `solve_block`.
    """

    graph: Graph
    alpha_w: Graph
    c: Array
    y: Array
    aim: Array
    accept: Array
    max_steps: Array
    found: Components | None
    rows: SpreadRows

    @property
    def search(self) -> Directions:
        """The kind of search directions."""
        return directions_of(self.y, self.rows)

    def kept(self, x: Array) -> Array:
        """x without components along leading eigenvectors, which rounding adds, if they are projected out."""
        return x if self.found is None else without_leading(self.graph, self.found, x, self.rows)

    def first(self, start: Array, alpha: Array, is_finite: Array, residual: Array | None) -> _State:
        """Return the state before the first step; without a residual W start = start."""
        first = self.y - (1 - alpha) * start
        if residual is not None:
            first = jnp.where(is_finite, residual, 0.0)
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
        if self.found is not None:
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
