"""Preconditioned conjugate gradients for a block of columns: rounds of steps, each ended by a true residual.

A round's steps follow the recursion. Then the residual is evaluated from Z itself, in float32, and replaces
the recursive one. So the reported residual is the true one, and rounding errors cannot accumulate for long.
Columns stop one by one. `jaxfed.kernels.solver.directions` shares search directions between columns;
`jaxfed.kernels.conjugate_gradient` explains the choice of the preconditioner.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from jaxfed.kernels.components import Components, without_leading
from jaxfed.kernels.devices.spread import Rows
from jaxfed.kernels.graph import (
    Graph,
    add_product,
    scaled,
    subtract_product,
    subtract_product_apart,
)
from jaxfed.kernels.solver.directions import Directions, directions_of

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
    rows: Rows,
) -> tuple[Array, Convergence]:
    """Solve (I - alpha W) Z = Y for a block of columns.

    Args:
        graph: W, of n points.
        y: float32 [n, C], of a size whose squares neither overflow nor vanish.
        start: float32 [n, C], where Z begins; W start = start.
        alpha: float32 scalar in [0, 1); to 1 where leading eigenvectors are left out.
        tolerance: float32 scalar, of the relative residual.
        max_steps: int32 scalar.
        found: components whose leading eigenvectors are projected out of Z, and already of Y; None: no
            projection.
        rows: the rows of this device, if they are spread over devices.

    Returns:
        Z float32 [n, C], and the convergence of each column. A column that is not finite is returned as NaN.

    Cost: a step takes two products with W; a round of up to 16 one more.
    """

    def kept(x: Array) -> Array:
        """x without components along leading eigenvectors, which rounding adds, if they are projected out."""
        return x if found is None else without_leading(graph, found, x, rows)

    def squares(a: Array) -> Array:
        """Squared norms of columns: [n, C] -> [C]."""
        return rows.total(jnp.sum(a * a, axis=0))

    num_columns = y.shape[1]
    by: Directions = directions_of(y, rows)
    # Z = (c + alpha W) R with c = alpha / beta: the preconditioner times c, which no step sees.
    alpha_w, c = scaled(graph, alpha), jnp.maximum(alpha / _LARGEST_BETA, 1.0)
    y_norm = squares(y)
    # A column that is not finite would spoil those that share its directions.
    is_finite = jnp.isfinite(y_norm)
    y, start = jnp.where(is_finite, y, 0.0), jnp.where(is_finite, start, 0.0)
    aim, accept = ((share * tolerance) ** 2 * y_norm for share in (_AIM, _ACCEPT))

    def live(state: _State) -> Array:
        return ~state.done & (state.residual_norm > aim) & (state.steps < max_steps)

    def step(carry: tuple[Array, Array, _State]) -> tuple[Array, Array, _State]:
        """One step; the change of z since the last verification is summed separately."""
        count, change, state = carry
        moves = live(state)
        smoothed = add_product(alpha_w, c * state.residual, state.residual, rows)
        directions, slope = by.conjugate(
            state.last, state.directions, smoothed, state.residual, moves
        )
        products = subtract_product(alpha_w, directions, directions, rows)
        lengths, last = by.lengths(slope, directions, products, state.residual, moves)
        residual = state.residual - by.along(products, lengths)
        return (
            count + 1,
            change + by.along(directions, lengths),
            state._replace(
                residual=residual,
                directions=directions,
                last=last,
                residual_norm=jnp.where(moves, squares(residual), state.residual_norm),
                steps=state.steps + moves.astype(jnp.int32),
            ),
        )

    def verify(change: Array, state: _State) -> _State:
        """Add the change to z, and replace the recursive residual by the true one."""
        z = kept(state.z + change)
        residual = kept(y - subtract_product_apart(alpha_w, z, z, rows))
        norm = squares(residual)
        # If the recursion ends again and the true residual has not halved (squared: a quarter), it is
        # limited by rounding.
        ended = state.residual_norm <= aim
        stuck = ended & (norm > 0.25 * state.claimed_norm)
        if found is not None:
            stuck |= norm <= _ROUNDING**2 * squares(z)
        # A residual that has grown may be rounding alone; a direction built on it would diverge.
        distrusted = (norm > _TRUSTED**2 * state.residual_norm) | (norm > state.verified_norm)
        return state._replace(
            z=z,
            residual=residual,
            last=by.anew(state.last, distrusted),
            residual_norm=norm,
            verified_norm=norm,
            claimed_norm=jnp.where(ended, norm, state.claimed_norm),
            # NaN compares false: such a column is done, and not converged.
            done=state.done | ~(norm > accept) | stuck | (state.steps >= max_steps),
        )

    def advance(state: _State) -> _State:
        _, change, state = lax.while_loop(
            lambda carry: (carry[0] < _VERIFY_EVERY) & jnp.any(live(carry[2])),
            step,
            (jnp.int32(0), jnp.zeros_like(y), state),
        )
        return verify(change, state)

    first = y - (1 - alpha) * start  # W start = start
    state = _State(
        z=start,
        residual=first,
        directions=jnp.zeros_like(y),
        last=by.none(y),
        residual_norm=squares(first),
        verified_norm=squares(first),
        claimed_norm=jnp.full_like(y_norm, jnp.inf),
        steps=jnp.zeros(num_columns, jnp.int32),
        done=~is_finite,
    )
    state = lax.while_loop(lambda state: ~jnp.all(state.done), advance, state)
    residual = jnp.sqrt(state.residual_norm / jnp.where(y_norm > 0, y_norm, 1.0))
    residual = jnp.where(is_finite, residual, jnp.nan)
    z = jnp.where(is_finite, state.z, jnp.nan)
    return z, Convergence(state.steps, residual, residual <= tolerance)
