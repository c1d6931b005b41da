"""The symmetric, normalized graph of k nearest neighbors, and its product with many columns.

    W = D^-1/2 (B + B^T) D^-1/2,    B_ij = weight of j among i's neighbors,  D = diag of row sums

(XCLP, Section 3.1 and Algorithm 1: the graph that labels are propagated over.) B has k entries a
row, but B^T may have n in one row: a hub. A `Graph` therefore has two parts. The *table* gives
every row its own k neighbors and room for k reverse edges; the rest goes to *overflow
rows* of k slots each, as many as a node needs, whose sums are added to the node's row. A point
with c reverse edges needs ceil(c / k) - 1 overflow rows, and there are at most n k reverse edges.
So n overflow rows always suffice, and no edge is ever lost.

The rows of a graph may be spread over the devices of a mesh (`jaxfed.kernels.devices`), overflow rows
together with their rows. A product then gathers X on every device. While the graph is built, every device
reads all n k edges of B and stores those of its own rows.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh
from jax.typing import ArrayLike
from numpy.typing import NDArray

from jaxfed.errors import UsageError
from jaxfed.kernels.arrays import gather_unchecked
from jaxfed.kernels.devices import ALL, ROWS, SAME, SpreadRows, by_rows, mesh_of, spread
from jaxfed.kernels.edges import ByTarget, Edges, by_target, by_target_on_host, is_on_host, match

# Slots whose gathers are unrolled into one fused loop. One batched gather is 2 to 12 times slower
# on CPU; unrolling everything makes k = 100 take minutes to compile.
_UNROLL = 32

# Up to `_ONE_SHAPE` points, a graph has all overflow rows that it could need; up to `_FEW_SHAPES` one of
# eight numbers of them. Compiling a program for every number would take longer than computing unused rows.
_ONE_SHAPE, _FEW_SHAPES = 1024, 8192


class Graph(NamedTuple):
    """W in sparse form: O(n k) numbers. An unused slot has weight 0 and the index of its own row.

    Attributes:
      neighbors: int32 [n, 2k], columns of row i's entries.
      weights: float32 [n, 2k], those entries; equal columns in a row add up.
      overflow_rows: int32 [m], ascending, the row that each overflow row belongs to.
      overflow_neighbors: int32 [m, k].
      overflow_weights: float32 [m, k].
      root_degrees: float32 [n], D^1/2. W D^1/2 1 = D^1/2 1 on every component: eigenvalue 1, the
        largest, with a known eigenvector.
    """

    neighbors: Array
    weights: Array
    overflow_rows: Array
    overflow_neighbors: Array
    overflow_weights: Array
    root_degrees: Array


# Parts whose axis 0 is that of the points.
GRAPH_ROWS = Graph._make([ROWS] * 6)


def cosine_from_hamming(distances: ArrayLike, num_bits: int) -> Array:
    """Estimate cosine similarity from distances of sign-projection codes: cos(pi h / L).

    XCLP, Section 3.1: Pr[two bits differ] = angle / pi. Distances beyond L, which mark missing neighbors
    of kNN, are read as L: similarity -1, no edge.

    Args:
      distances: integer [...], Hamming distances h.
      num_bits: L, the length of a code.

    Returns:
      float32 [...].

    Raises:
      UsageError: num_bits is not positive.
    """
    if num_bits < 1:
        raise UsageError(f"num_bits must be positive, got {num_bits}")
    return _cosine_from_hamming(jnp.asarray(distances), np.float32(num_bits))


@jax.jit
def _cosine_from_hamming(distances: Array, num_bits: Array) -> Array:
    fraction = distances.astype(jnp.float32) / num_bits
    return jnp.cos(jnp.float32(jnp.pi) * jnp.minimum(fraction, 1.0))


def normalized_graph(indices: ArrayLike, weights: ArrayLike) -> Graph:
    """Build W = D^-1/2 (B + B^T) D^-1/2 from k neighbors a point.

    An edge counts once for each direction in which it is given: if i and j are neighbors of each other,
    (B + B^T)_ij = B_ij + B_ji. A point without edges has a zero row and column.

    Differs from `jax.experimental.sparse`: nothing is sorted by column and mutual edges are merged,
    so the product below is a fixed number of gathers per row.

    Args:
      indices: int [n, k], the neighbors of each point; -1 where there is none. If they are spread over a
        mesh, so is the graph.
      weights: float [n, k]; one that is not positive is no edge.

    Returns:
      Graph, float32. Called on arrays it has as many overflow rows as needed (this waits for the device once;
      the number is rounded up, and graphs of one size share their compiled code), and n under jit or vmap.

    Raises:
      UsageError: shapes differ, an index is outside [-1, n), or a weight is not finite. Values are checked
        only when called on arrays, not under jit.

    Cost: O(n k^2) comparisons, one sort of n k integers, O(n k) memory.
    """
    indices, weights = jnp.asarray(indices), jnp.asarray(weights)
    if indices.ndim != 2 or indices.shape != weights.shape or 0 in indices.shape:
        raise UsageError(
            "indices and weights must be two [n, k] arrays of one shape with n, k > 0, "
            f"got {indices.shape} and {weights.shape}"
        )
    if not jnp.issubdtype(indices.dtype, jnp.integer):
        raise UsageError(f"indices must be integers, got {indices.dtype}")
    n, k = indices.shape
    indices, weights = indices.astype(jnp.int32), weights.astype(jnp.float32)
    mesh = mesh_of(indices)
    if mesh is not None:
        weights = spread(weights, mesh)

    if isinstance(indices, jax.core.Tracer) or isinstance(weights, jax.core.Tracer):
        edges = match(indices, weights, ALL)
        return _laid_out(edges, by_target(edges.under, n), n)

    edges, listed, num_invalid, num_needed = _matched_and_checked(indices, weights, mesh)
    if num_invalid:
        raise UsageError(
            f"{num_invalid} of {n * k} neighbors have an index outside [-1, {n}) "
            "or a weight that is not finite"
        )
    capacity = _capacity(n if mesh is None else n // mesh.size, num_needed)
    return _laid_out(edges, listed, capacity, mesh)


def _capacity(num_rows: int, num_needed: int) -> int:
    """Overflow rows for a graph, at least `num_needed`; few different numbers, and so few programs."""
    if num_rows <= _ONE_SHAPE:
        return num_rows
    step = num_rows // (8 if num_rows <= _FEW_SHAPES else 32)
    return min(num_rows, -(-num_needed // step) * step)


def scaled(graph: Graph, factor: Array) -> Graph:
    """Return factor W; scaling inside a loop would repeat it for each product."""
    return graph._replace(
        weights=factor * graph.weights, overflow_weights=factor * graph.overflow_weights
    )


def add_product(graph: Graph, y: Array, x: Array, rows: SpreadRows = ALL) -> Array:
    """Return Y + W X for the rows of this device.

    Each row sums its own slots, C numbers at a time: no atomics in the table, vector loads of whole rows on
    CPU, coalesced loads on GPU. Only the sums of overflow rows are scattered. (On GPU the order of those
    additions, and so their rounding, may vary for nodes with several of them.)

    Cost: (2 n + m) k C multiply-adds; reads 8 (2 n + m) k bytes of graph and as many rows of x.
    """
    return _accumulated(jnp.add, graph, y, x, rows)


def subtract_product(graph: Graph, y: Array, x: Array, rows: SpreadRows = ALL) -> Array:
    """Return Y - W X, as `add_product`."""
    return _accumulated(jnp.subtract, graph, y, x, rows)


def subtract_product_apart(graph: Graph, y: Array, x: Array, rows: SpreadRows = ALL) -> Array:
    """Return Y - W X in one more pass, with rounding relative to a hub's sum instead of its Y.

    A hub has thousands of overflow rows, whose sums are far below its Y. Subtracting them one by one would
    accumulate rounding errors.
    """
    return _accumulated(jnp.subtract, graph, y, x, rows, apart=True)


_Operation = Callable[[Array, Array], Array]


def _accumulated(
    put: _Operation, graph: Graph, y: Array, x: Array, rows: SpreadRows, *, apart: bool = False
) -> Array:
    num_rows, x = x.shape[0], rows.of_all(x)
    y = _put_slots(put, y, graph.neighbors, graph.weights, x)
    if graph.overflow_rows.size:
        nothing = jnp.zeros((graph.overflow_rows.shape[0], x.shape[1]), x.dtype)
        sums = _put_slots(jnp.add, nothing, graph.overflow_neighbors, graph.overflow_weights, x)
        parts = sums if apart else put(nothing, sums)
        positions = rows.local_index(graph.overflow_rows, num_rows)
        start = jnp.zeros_like(y) if apart else y
        over = start.at[positions].add(parts, indices_are_sorted=True, mode="promise_in_bounds")
        # Without the barrier, XLA would turn zeros plus sums into a sum that starts from Y.
        y = put(y, lax.optimization_barrier(over)) if apart else over
    return y


def _put_slots(put: _Operation, y: Array, neighbors: Array, weights: Array, x: Array) -> Array:
    """Return y + or - the sum over s of weights[:, s] * x[neighbors[:, s]]: [m, width], [n, C] -> [m, C]."""

    def each(y: Array, neighbors: Array, weights: Array) -> Array:
        for slot in range(neighbors.shape[1]):
            y = put(y, weights[:, slot, None] * gather_unchecked(x, neighbors[:, slot]))
        return y

    width = neighbors.shape[1]
    whole, rest = divmod(width, _UNROLL)
    start = rest if whole else width
    y = each(y, neighbors[:, :start], weights[:, :start])
    if not whole:
        return y

    def step(group: Array, y: Array) -> Array:
        first = rest + group * _UNROLL
        return each(
            y,
            lax.dynamic_slice_in_dim(neighbors, first, _UNROLL, axis=1),
            lax.dynamic_slice_in_dim(weights, first, _UNROLL, axis=1),
        )

    return lax.fori_loop(0, whole, step, y)


def _matched_and_checked(
    indices: Array, weights: Array, mesh: Mesh | None
) -> tuple[Edges, ByTarget, int, int]:
    """Return edges, their order, the number of invalid ones, and of overflow rows that a device needs."""
    if mesh is None and is_on_host(indices):
        edges, num_invalid = _match_and_check(indices, weights)
        listed = by_target_on_host(edges.under, len(indices))
        counts = np.diff(np.asarray(listed.starts))
        num_needed = _overflow_rows_needed(counts, indices.shape[1]).sum()
        return edges, listed, int(num_invalid), int(num_needed)
    edges, listed, num_invalid, num_needed = _match_and_sort(indices, weights, mesh)
    return edges, listed, int(num_invalid), int(num_needed)


@partial(jax.jit, static_argnames="rows")
def _match_and_check(indices: Array, weights: Array, rows: SpreadRows = ALL) -> tuple[Edges, Array]:
    """Return the edges, and the number of invalid entries."""
    n = indices.shape[0] * rows.num_parts
    invalid = (indices < -1) | (indices >= n) | ~jnp.isfinite(weights)
    return match(indices, weights, rows), rows.total(invalid.sum(dtype=jnp.int32))


@partial(jax.jit, static_argnames="mesh")
def _match_and_sort(
    indices: Array, weights: Array, mesh: Mesh | None
) -> tuple[Edges, ByTarget, Array, Array]:
    def matched(rows: SpreadRows) -> Callable[[Array, Array], tuple[Edges, ByTarget, Array, Array]]:
        def of_rows(indices: Array, weights: Array) -> tuple[Edges, ByTarget, Array, Array]:
            edges, num_invalid = _match_and_check(indices, weights, rows)
            listed = by_target(edges.under, indices.shape[0])
            needed = _overflow_rows_needed(jnp.diff(listed.starts), indices.shape[1])
            return edges, listed, num_invalid, rows.largest(needed.sum())

        return of_rows

    return by_rows(matched, mesh, gives=(ROWS, ROWS, SAME, SAME))(indices, weights)


_Numbers = TypeVar("_Numbers", Array, NDArray[np.int32])


def _overflow_rows_needed(counts: _Numbers, k: int) -> _Numbers:
    return (counts + (k - 1)).clip(k) // k - 1


@partial(jax.jit, static_argnames=("capacity", "mesh"))
def _laid_out(edges: Edges, listed: ByTarget, capacity: int, mesh: Mesh | None = None) -> Graph:
    """Write the edges into a table and overflow rows, and normalize."""

    def on_rows(rows: SpreadRows) -> Callable[[Edges, ByTarget], Graph]:
        return lambda edges, listed: _laid_out_rows(edges, listed, capacity, rows)

    return by_rows(on_rows, mesh, gives=GRAPH_ROWS)(edges, listed)


def _laid_out_rows(edges: Edges, listed: ByTarget, capacity: int, here: SpreadRows) -> Graph:
    n, k = edges.all_weights.shape
    num_rows = edges.targets.shape[0]
    all_weights = edges.all_weights.reshape(-1)
    slots = jnp.arange(k, dtype=jnp.int32)

    def reverse(first: Array, count: Array, unused: Array) -> tuple[Array, Array]:
        """Neighbors and weights [r, k] of `count` edges, beginning at position `first` of their order."""
        is_edge = slots[None, :] < count[:, None]
        position = jnp.where(is_edge, first[:, None] + slots[None, :], 0)
        edge = gather_unchecked(listed.order, position)
        weight = gather_unchecked(all_weights, edge)
        return jnp.where(is_edge, edge // k, unused[:, None]), jnp.where(is_edge, weight, 0.0)

    starts = listed.starts[:-1]
    counts = jnp.diff(listed.starts)
    row_numbers = here.local(jnp.arange(n, dtype=jnp.int32))
    reverse_neighbors, reverse_weights = reverse(starts, jnp.minimum(counts, k), row_numbers)
    neighbors = jnp.concatenate([edges.targets, reverse_neighbors], axis=1)
    weights = jnp.concatenate([edges.weights, reverse_weights], axis=1)

    num_overflow_rows = _overflow_rows_needed(counts, k)
    row_end = jnp.cumsum(num_overflow_rows)
    number = jnp.arange(capacity, dtype=jnp.int32)
    is_used = number < row_end[-1]
    rows = jnp.where(is_used, jnp.searchsorted(row_end, number, side="right"), num_rows - 1)
    done = (number - (row_end - num_overflow_rows)[rows] + 1) * k
    overflow_rows = rows if here.num_parts == 1 else rows + here.first(num_rows)
    overflow_counts = jnp.where(is_used, jnp.minimum(counts[rows] - done, k), 0)
    overflow_neighbors, overflow_weights = reverse(
        starts[rows] + done, overflow_counts, overflow_rows
    )

    degree = weights.sum(axis=1).at[rows].add(overflow_weights.sum(axis=1), indices_are_sorted=True)
    root = jnp.sqrt(degree)
    scale = jnp.where(degree > 0, 1.0 / jnp.where(degree > 0, root, 1.0), 0.0)
    all_scales = here.of_all(scale)
    return Graph(
        neighbors=neighbors,
        weights=weights * scale[:, None] * gather_unchecked(all_scales, neighbors),
        overflow_rows=overflow_rows,
        overflow_neighbors=overflow_neighbors,
        overflow_weights=overflow_weights
        * scale[rows][:, None]
        * gather_unchecked(all_scales, overflow_neighbors),
        root_degrees=root,
    )
