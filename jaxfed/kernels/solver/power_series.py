"""Label propagation by its power series, Z = sum_h (alpha W)^h Y, for small alpha.

A point h edges from the nearest label has scores of the size of alpha^h. A solver whose residual is relative
to the whole column leaves them at random: with 20 labels among 1797 digits and alpha = 0.05, conjugate
gradients to 1e-6 give a tenth of the points another label. All terms of nonnegative Y are nonnegative. So
their sums have float32's relative precision in every entry, however small.
"""

import jax.numpy as jnp
from jax import Array, lax

from jaxfed.kernels.devices.spread import SpreadRows
from jaxfed.kernels.graph import Graph, add_product, scaled, subtract_product_apart
from jaxfed.kernels.solver.column_block import Convergence


def sum_series(
    graph: Graph, y: Array, alpha: Array, tolerance: Array, max_steps: Array, rows: SpreadRows
) -> tuple[Array, Convergence]:
    """Solve (I - alpha W) Z = Y to a relative error of about `tolerance` in every entry.

    A column stops by itself when its next term is below (1 - alpha) tolerance |z| at every point. A point
    that the sum has just reached is not below, so no point with a path to a label is left out.

    Arguments and results are those of `jaxfed.kernels.solver.column_block.solve_block`.

    Cost: a step is one product with W; log(tolerance) / log(alpha) steps, and one more for each edge between
    a point and its nearest label.
    """
    alpha_w = scaled(graph, alpha)
    is_finite = rows.largest(jnp.max(jnp.abs(y), axis=0, initial=0.0)) < jnp.inf
    y = jnp.where(is_finite, y, 0.0)

    def add(state: tuple[Array, ...]) -> tuple[Array, ...]:
        z, term, steps, live = state
        term = add_product(alpha_w, jnp.zeros_like(term), term, rows)
        z = jnp.where(live, z + term, z)
        is_large = jnp.abs(term) > (1 - alpha) * tolerance * jnp.abs(z)
        steps = steps + live.astype(jnp.int32)
        grows = rows.largest(is_large.any(axis=0).astype(jnp.int32)) > 0
        return z, term, steps, live & grows & (steps < max_steps)

    steps = jnp.zeros(is_finite.shape, jnp.int32)
    labeled = rows.largest((y != 0).any(axis=0).astype(jnp.int32)) > 0
    z, _, steps, _ = lax.while_loop(lambda state: state[3].any(), add, (y, y, steps, labeled))
    residual = y - subtract_product_apart(alpha_w, z, z, rows)
    own, whole = (rows.total(jnp.sum(x * x, axis=0)) for x in (residual, y))
    share = jnp.where(is_finite, jnp.sqrt(own / jnp.where(whole > 0, whole, 1.0)), jnp.nan)
    return jnp.where(is_finite, z, jnp.nan), Convergence(steps, share, share <= tolerance)
