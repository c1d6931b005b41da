"""Label propagation by conjugate gradients: (I - alpha W) Z = Y for all columns at once.

XCLP, Algorithm 1, Z = S Y with S = (I - alpha W)^-1. W's eigenvalues lie in [-1, 1], so the matrix
is positive definite with condition number at most (1 + alpha) / (1 - alpha). Two known
properties are used:

* W's largest eigenvalue, 1, has the eigenvector D^1/2 1 on every component: the solution's part
  along it is the starting point, which saves a fifth of the steps.
* M^-1 = I + alpha W, the first terms of the inverse's Neumann series, is a preconditioner that is
  positive definite for every graph. A step then takes two products with W, but the number of steps
  halves. So does that of dot products and vector sums, which cost as much.

Up to 16 columns of many points share their search directions (`jaxfed.kernels.solver.search_directions`),
which halves the steps once more: at alpha = 0.99 some 10 to 20 are left. That module also lists what else was
tried.

Below alpha = 0.85 `propagate` sums the power series sum_h (alpha W)^h Y. Scores fall with every edge to the
nearest label, and a residual relative to the whole column does not determine small ones: with 20 labels among
1797 digits and alpha = 0.05, conjugate gradients to 1e-6 gave a tenth of the points another label; with 10
labels, 3 neighbors and alpha = 0.5, 2 % of them. For nonnegative Y all terms are nonnegative, so their sum is
exact to float32 in every entry above its minimum, 1e-38.

`propagate_centered` removes the part along those eigenvectors from the right-hand side and the solution. So
it allows alpha = 1, too, where I - W is singular along them alone.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh
from jax.typing import ArrayLike

from jaxfed.errors import UsageError
from jaxfed.kernels.arrays import as_float32
from jaxfed.kernels.components import Components, reachable, without_leading
from jaxfed.kernels.devices.spread import ROWS, SAME, SpreadRows, by_rows, mesh_of, spread
from jaxfed.kernels.graph import (
    GRAPH_ROWS,
    Graph,
    add_product,
    scaled,
    subtract_product_apart,
)
from jaxfed.kernels.solver.column_block import Convergence, solve_block

SERIES_BELOW = 0.85  # alpha
FEW, LANES = 8, 16  # above `FEW`, columns are padded to multiples of `LANES`


def propagate(
    graph: Graph,
    y: ArrayLike,
    alpha: ArrayLike,
    *,
    tolerance: ArrayLike = 1e-6,
    max_steps: ArrayLike = 1000,
    start: ArrayLike | None = None,
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
        `tolerance`, and `start` is not used.
      tolerance: positive, relative to each column's norm.
      max_steps: maximum number of steps per column, of two products with W each.
      start: float [n, C], a guess of Z, such as that of a slightly different graph; None: no guess. Columns
        stop at the same residual as without. The guess is read only in components that hold labels, so Z is
        exactly zero in the others.

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
    start = None if start is None else _along(graph, start, "start")
    if start is not None and start.shape != y.shape:
        raise UsageError(f"start must be like y, {y.shape}, got {start.shape}")
    _check("alpha", alpha, "in (0, 1) as float32", lambda value: 0 < float(np.float32(value)) < 1)
    is_small = not isinstance(alpha, jax.core.Tracer) and bool(np.asarray(alpha) < SERIES_BELOW)
    return _solved(graph, y, alpha, tolerance, max_steps, None, start, is_small=is_small)


def propagation_bytes(n: int, k: int, columns: int) -> int:
    """Bound of the bytes of `propagate` over a graph of k neighbors and n / 6 overflow rows.

    It is from XLA's analysis of systems of many shapes.
    """
    wide = FEW if columns <= FEW else -(-columns // LANES) * LANES
    block = min(64, wide)
    graph = 4 * k + 1 + 2 * k // 6
    vectors = 8 if block <= LANES else 7  # those that share directions keep their products, too
    arrays = vectors * wide if block == wide else 4 * wide + vectors * block
    return 4 * n * (graph + 2 * wide + arrays + 80)


def propagate_centered(
    graph: Graph,
    found: Components,
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
      found: of `jaxfed.kernels.components.components(graph)`.
      alpha: in (0, 1].
    The residual is relative to P^ Y. Steps grow with the inverse root of the gap below eigenvalue 1.
    """
    y, mesh = _along(graph, y), mesh_of(graph.neighbors)
    if mesh is not None:
        found = Components(*(spread(part, mesh) for part in found))
    _check("alpha", alpha, "in (0, 1]", lambda value: 0 < float(np.float32(value)) <= 1)
    return _solved(graph, y, alpha, tolerance, max_steps, found)


def _solved(
    graph: Graph,
    y: Array,
    alpha: ArrayLike,
    tolerance: ArrayLike,
    max_steps: ArrayLike,
    found: Components | None,
    start: Array | None = None,
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
        beyond = ((0, 0), (0, wide - num_columns))
        y = jnp.pad(y, beyond)
        start = None if start is None else jnp.pad(start, beyond)
    z, info = _propagate(
        graph,
        y,
        _scalar(alpha, np.float32),
        _scalar(tolerance, np.float32),
        _scalar(max_steps, np.int32),
        found,
        start,
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


def _along(graph: Graph, y: ArrayLike, name: str = "y") -> Array:
    """Y as an array, with its rows spread like the graph's."""
    y = as_float32(name, y)
    n, mesh = graph.neighbors.shape[0], mesh_of(graph.neighbors)
    if y.ndim != 2 or y.shape[0] != n:
        raise UsageError(f"{name} must be [n, C] with n = {n} points of the graph, got {y.shape}")
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
    found: Components | None = None,
    start: Array | None = None,
    *,
    block_columns: int,
    mesh: Mesh | None = None,
    is_small: bool = False,
) -> tuple[Array, Convergence]:
    def solved(rows: SpreadRows) -> Callable[..., tuple[Array, Convergence]]:
        return partial(_propagate_rows, block_columns=block_columns, is_small=is_small, rows=rows)

    takes = (GRAPH_ROWS, ROWS, SAME, SAME, SAME, ROWS, ROWS)
    solve = by_rows(solved, mesh, takes=takes, gives=(ROWS, SAME))
    return solve(graph, y, alpha, tolerance, max_steps, found, start)


def _propagate_rows(
    graph: Graph,
    y: Array,
    alpha: Array,
    tolerance: Array,
    max_steps: Array,
    found: Components | None,
    guess: Array | None,
    *,
    block_columns: int,
    is_small: bool,
    rows: SpreadRows,
) -> tuple[Array, Convergence]:
    """Solve blocks of columns one after another; `found` removes its leading eigenvectors."""
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
    residual = None
    if guess is not None:
        # Of a column without labels Z is 0, whatever was guessed.
        guess = jnp.where(largest > 0, guess, 0.0) / unit[None]
        start, residual = _from_guess(graph, y, guess, alpha, rows)
    elif found is None:
        start = _perron_start(graph, y, alpha, rows)
    else:
        y = without_leading(graph, found, y, rows)
        start = jnp.zeros_like(y)
    if num_columns <= min(FEW, block_columns):
        z, info = solve_block(graph, y, start, alpha, tolerance, max_steps, found, rows, residual)
        return z * unit[None], info
    num_blocks = -(-num_columns // block_columns)
    width = -(-num_columns // (LANES * num_blocks)) * LANES

    def into_blocks(x: Array) -> Array:
        padded = jnp.pad(x, ((0, 0), (0, num_blocks * width - num_columns)))
        return padded.reshape(n, num_blocks, width).swapaxes(0, 1)

    def solve(block: tuple[Array, ...]) -> tuple[Array, Convergence]:
        y, start, *rest = block
        return solve_block(graph, y, start, alpha, tolerance, max_steps, found, rows, *rest)

    blocks = tuple(into_blocks(x) for x in (y, start, residual) if x is not None)
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
    own, whole = (rows.total(jnp.sum(x * x, axis=0)) for x in (residual, y))
    share = jnp.where(is_finite, jnp.sqrt(own / jnp.where(whole > 0, whole, 1.0)), jnp.nan)
    return jnp.where(is_finite, z, jnp.nan), Convergence(steps, share, share <= tolerance)


def _perron_start(graph: Graph, y: Array, alpha: Array, rows: SpreadRows) -> Array:
    """The solution's part along v = D^1/2 1 on the components that hold labels: [n, C].

    W v = v, so (I - alpha W)^-1 v = v / (1 - alpha). Components without labels stay exactly zero.
    """
    reached = reachable(graph, (y != 0).any(axis=1), rows)
    return _along_perron(graph, y, reached, alpha, rows)


def _along_perron(graph: Graph, y: Array, reached: Array, alpha: Array, rows: SpreadRows) -> Array:
    """The part along v, on the reached points, of the solution for the right-hand side Y [n, C]."""
    v = jnp.where(reached, graph.root_degrees, 0.0)
    squared = rows.total(jnp.dot(v, v, precision=lax.Precision.HIGHEST))
    share = rows.total(jnp.matmul(v[None], y, precision=lax.Precision.HIGHEST))
    return v[:, None] * (share / ((1 - alpha) * jnp.where(squared > 0, squared, 1.0)))


def _from_guess(
    graph: Graph, y: Array, guess: Array, alpha: Array, rows: SpreadRows
) -> tuple[Array, Array]:
    """The first Z and its residual, both [n, C]: the guess, and the correction's part along v."""
    reached = reachable(graph, (y != 0).any(axis=1), rows)
    guess = jnp.where(reached[:, None] & jnp.isfinite(guess), guess, 0.0)
    residual = y - subtract_product_apart(scaled(graph, alpha), guess, guess, rows)
    part = _along_perron(graph, residual, reached, alpha, rows)
    return guess + part, residual - (1 - alpha) * part


def _check(name: str, value: ArrayLike, allowed: str, holds: Callable[[Any], bool]) -> None:
    if not isinstance(value, jax.core.Tracer) and not holds(value):
        raise UsageError(f"{name} must be {allowed}, got {value}")
