"""The symmetric, normalized graph of k nearest neighbors, and its product with many columns.

    W = D^-1/2 (B + B^T) D^-1/2,    B_ij = weight of j among i's neighbors,  D = diag of row sums

(XCLP, Section 3.1 and Algorithm 1: the graph that labels are propagated over.) B has k entries a
row, but B^T may have n in one row: a hub. A `Graph` therefore has two parts. The *table* gives
every row its own k neighbors and room for k reverse edges; what exceeds that goes to *overflow
rows* of k slots each, as many a node as it needs, whose sums are added to the node's row. A point
with c reverse edges needs ceil(c / k) - 1 overflow rows, and there are at most n k reverse edges,
so n overflow rows always suffice and no edge is ever lost unless the caller sets less room.

The rows of a graph may lie over the devices of a mesh (`jaxfed.kernels.spread`), overflow rows with the
rows that they belong to. A product then gathers X on every device; while the graph is built every device
sees all n k edges of B and keeps those of its own rows.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh
from jax.typing import ArrayLike

from jaxfed.errors import UsageError
from jaxfed.kernels.spread import ALL, ROWS, SAME, Rows, by_rows, mesh_of, spread

# Slots whose gathers are unrolled into one fused loop. One batched gather is 2 to 12 times slower
# on CPU; unrolling everything makes k = 100 take minutes to compile.
_UNROLL = 32

# Points up to which a graph has all overflow rows that it could need, and up to which there are eight
# numbers of them: a program for every number would take longer than what unused rows do.
_ONE_SHAPE, _FEW_SHAPES = 1024, 8192


class Graph(NamedTuple):
    """W in sparse form: O(n k) numbers. Unused slots have weight 0 and any valid index.

    Attributes:
      neighbors: int32 [n, 2k], columns of row i's entries.
      weights: float32 [n, 2k], those entries; equal columns in a row add up.
      overflow_rows: int32 [m], ascending, the row that each overflow row belongs to.
      overflow_neighbors: int32 [m, k].
      overflow_weights: float32 [m, k].
      root_degrees: float32 [n], D^1/2. W D^1/2 1 = D^1/2 1 on every component: eigenvalue 1, the
        largest, with a known eigenvector.
      num_lost: int32 scalar, reverse edges that found no room. Always 0 unless `capacity` was set
        to less than needed under jit; anything else means that W is wrong and must not be used.
    """

    neighbors: Array
    weights: Array
    overflow_rows: Array
    overflow_neighbors: Array
    overflow_weights: Array
    root_degrees: Array
    num_lost: Array


# Of which of its parts axis 0 is the points'.
GRAPH_ROWS = Graph._make([*[ROWS] * 6, SAME])


class _Edges(NamedTuple):
    """Edges of B told apart by where their two entries of B + B^T are stored, in m of n rows."""

    targets: Array  # int32 [m, k], valid everywhere: the point itself where there is no edge
    weights: Array  # float32 [m, k], B_ij + B_ji where j also has i for a neighbor, else B_ij
    under: (
        Array  # int32 [n, k], the row of these under which i must be listed too; m: none of these
    )
    reverse_weights: Array  # float32 [n, k], B_ij of those
    ranks: Array  # int32 [n, k], position of i in j's list of reverse edges
    counts: Array  # int32 [m], length of that list


def cosine_from_hamming(distances: ArrayLike, num_bits: int) -> Array:
    """Estimate cosine similarity from distances of sign-projection codes: cos(pi h / L).

    XCLP, Section 3.1: Pr[two bits differ] = angle / pi. Distances beyond L, by which kNN marks a
    missing neighbor, are read as L: similarity -1, no edge.

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
    fraction = jnp.asarray(distances).astype(jnp.float32) / jnp.float32(num_bits)
    return jnp.cos(jnp.float32(jnp.pi) * jnp.minimum(fraction, 1.0))


def normalized_graph(
    indices: ArrayLike, weights: ArrayLike, *, capacity: int | None = None
) -> Graph:
    """Build W = D^-1/2 (B + B^T) D^-1/2 from k neighbors a point.

    An edge counts once for each direction in which it is given: where i and j have each other for
    a neighbor, (B + B^T)_ij = B_ij + B_ji. A point without edges has a zero row and column.

    Differs from `jax.experimental.sparse`: nothing is sorted by column and mutual edges are merged,
    so that the product below is a fixed number of gathers a row.

    Args:
      indices: int [n, k], the neighbors of each point; -1 where there is none. Over a mesh: so is
        the graph.
      weights: float [n, k]; one that is not positive is no edge.
      capacity: overflow rows to provide. By default as many as needed when called on arrays (this
        waits for the device once; the number is rounded up, so that graphs of one size share their
        compiled code), and n, which always suffices, under jit or vmap. A smaller number makes the
        product up to a third cheaper there; check `num_lost`. Over a mesh: on every device.

    Returns:
      Graph, float32.

    Raises:
      UsageError: shapes differ, an index is outside [-1, n), a weight is not finite, or `capacity`
        loses edges. Values are checked only when called on arrays, not under jit.

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
    if capacity is not None and capacity < 0:
        raise UsageError(f"capacity must not be negative, got {capacity}")
    n, k = indices.shape
    indices, weights = indices.astype(jnp.int32), weights.astype(jnp.float32)
    mesh = mesh_of(indices)
    if mesh is not None:
        weights = spread(weights, mesh)

    if isinstance(indices, jax.core.Tracer) or isinstance(weights, jax.core.Tracer):
        return _place(_match(indices, weights, ALL), n if capacity is None else capacity)

    edges, num_invalid, num_needed = _match_and_check(indices, weights, mesh)
    if num_invalid:
        raise UsageError(
            f"{num_invalid} of {n * k} neighbors have an index outside [-1, {n}) "
            "or a weight that is not finite"
        )
    if capacity is None:
        capacity = _capacity(n if mesh is None else n // mesh.size, int(num_needed))
    elif capacity < num_needed:
        raise UsageError(f"capacity {capacity} loses edges, this graph needs {num_needed}")
    return _place(edges, capacity, mesh)


def _capacity(num_rows: int, num_needed: int) -> int:
    """Overflow rows for a graph of so many rows that needs so many: few numbers, so few programs."""
    if num_rows <= _ONE_SHAPE:
        return num_rows
    step = num_rows // (8 if num_rows <= _FEW_SHAPES else 32)
    return min(num_rows, -(-num_needed // step) * step)


def matvec(graph: Graph, x: Array) -> Array:
    """Return W X.

    Each row sums its own slots, C numbers at a time: no atomics in the table, on CPU vector loads
    of whole rows, on GPU coalesced ones. Only the sums of overflow rows are scattered. (On GPU the
    order of those additions, and so their rounding, may vary for nodes with several of them.)

    Args:
      graph: W, n by n.
      x: float32 [n, C]. C a multiple of 16 suits CPU vector units best when C is large.

    Returns:
      float32 [n, C].

    Cost: (2 n + m) k C multiply-adds; reads 8 (2 n + m) k bytes of graph and as many rows of x.
    """
    mesh = mesh_of(graph.neighbors)
    return _matvec(graph, x if mesh is None else spread(x, mesh), mesh)


@partial(jax.jit, static_argnames="mesh")
def _matvec(graph: Graph, x: Array, mesh: Mesh | None) -> Array:
    def product(rows: Rows) -> Callable[[Graph, Array], Array]:
        return lambda graph, x: _add_product(graph, jnp.zeros_like(x), jnp.float32(1), x, rows)

    return by_rows(product, mesh, takes=(GRAPH_ROWS, ROWS))(graph, x)


def propagation_matvec(graph: Graph, x: Array, alpha: Array, rows: Rows = ALL) -> Array:
    """Return (I - alpha W) X, in one pass less than by `matvec`, of the rows that are here.

    Arguments and cost as there.
    """
    return _add_product(graph, x, -alpha, x, rows)


def _add_product(graph: Graph, y: Array, factor: Array, x: Array, rows: Rows) -> Array:
    """Return Y + factor W X."""
    num_rows, x = x.shape[0], rows.of_all(x)
    y = _add_slots(y, graph.neighbors, factor * graph.weights, x)
    if graph.overflow_rows.size:
        nothing = jnp.zeros((graph.overflow_rows.shape[0], x.shape[1]), x.dtype)
        overflow = _add_slots(nothing, graph.overflow_neighbors, factor * graph.overflow_weights, x)
        y = y.at[rows.here(graph.overflow_rows, num_rows)].add(
            overflow, indices_are_sorted=True, mode="promise_in_bounds"
        )
    return y


def _add_slots(y: Array, neighbors: Array, weights: Array, x: Array) -> Array:
    """Return y + sum over s of weights[:, s] * x[neighbors[:, s]]: [m, width], [n, C] -> [m, C]."""

    def add(y: Array, neighbors: Array, weights: Array) -> Array:
        for slot in range(neighbors.shape[1]):
            rows = x.at[neighbors[:, slot]].get(mode="promise_in_bounds")
            y = y + weights[:, slot, None] * rows
        return y

    neighbors = neighbors.astype(jnp.uint32)  # signed, each slot would be searched for negatives
    width = neighbors.shape[1]
    whole, rest = divmod(width, _UNROLL)
    start = rest if whole else width
    y = add(y, neighbors[:, :start], weights[:, :start])
    if not whole:
        return y

    def step(group: Array, y: Array) -> Array:
        first = rest + group * _UNROLL
        return add(
            y,
            lax.dynamic_slice_in_dim(neighbors, first, _UNROLL, axis=1),
            lax.dynamic_slice_in_dim(weights, first, _UNROLL, axis=1),
        )

    return lax.fori_loop(0, whole, step, y)


@partial(jax.jit, static_argnames="mesh")
def _match_and_check(
    indices: Array, weights: Array, mesh: Mesh | None
) -> tuple[_Edges, Array, Array]:
    """Return the edges, the number of invalid entries, and the overflow rows that a device needs."""
    n, k = indices.shape

    def matched(rows: Rows) -> Callable[[Array, Array], tuple[_Edges, Array, Array]]:
        def match(indices: Array, weights: Array) -> tuple[_Edges, Array, Array]:
            invalid = (indices < -1) | (indices >= n) | ~jnp.isfinite(weights)
            edges = _match(indices, weights, rows)
            num_needed = rows.largest(_overflow_rows_needed(edges.counts, k).sum())
            return edges, rows.total(invalid.sum(dtype=jnp.int32)), num_needed

        return match

    return by_rows(matched, mesh, gives=(ROWS, SAME, SAME))(indices, weights)


def _overflow_rows_needed(counts: Array, k: int) -> Array:
    return jnp.maximum(counts + (k - 1), k) // k - 1


def _match(indices: Array, weights: Array, rows: Rows) -> _Edges:
    """Merge mutual edges, and rank the others within their target's list of reverse edges."""
    num_rows, k = indices.shape
    n = num_rows * rows.num_parts
    own = rows.own(jnp.arange(n, dtype=jnp.int32))[:, None]
    # An index out of range is refused outside jit; inside it must at least not reach other rows.
    is_edge = (weights > 0) & (indices >= 0) & (indices < n)
    weights = jnp.where(is_edge, weights, 0.0)
    targets = jnp.where(is_edge, indices, own)
    listed = jnp.where(is_edge, indices, -1)
    all_listed, all_weights = rows.of_all(listed), rows.of_all(weights)

    def compare(slot: Array, sums: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        back_weight, num_back, num_same = sums
        neighbor, weight = all_listed[:, slot], all_weights[:, slot]
        is_back = is_edge & (neighbor[targets] == own)
        return (
            back_weight + jnp.where(is_back, weight[targets], 0.0),
            num_back + is_back.astype(jnp.int32),
            num_same + (listed == listed[:, slot, None]).astype(jnp.int32),
        )

    zeros = jnp.zeros((num_rows, k), jnp.int32)
    back_weight, num_back, num_same = lax.fori_loop(
        0, k, compare, (jnp.zeros_like(weights), zeros, zeros)
    )
    is_listed = is_edge & (num_back == 0)
    under = rows.here(rows.of_all(jnp.where(is_listed, targets, n)), num_rows)
    under = jnp.where((under >= 0) & (under < num_rows), under, num_rows)
    ranks, counts = _rank_within_target(under.reshape(n * k), num_rows)
    return _Edges(
        targets=targets,
        # A point that lists j twice shares the weight of the way back between the two.
        weights=weights + back_weight / jnp.maximum(num_same, 1).astype(jnp.float32),
        under=under,
        reverse_weights=rows.of_all(jnp.where(is_listed, weights, 0.0)),
        ranks=ranks.reshape(n, k),
        counts=counts,
    )


def _rank_within_target(targets: Array, n: int) -> tuple[Array, Array]:
    """Return each edge's rank among the edges of equal target, and the number of edges of each.

    XLA:CPU sorts single unsigned words 6 times faster than pairs, so (target, position) is packed
    into one. What does not fit 32 bits is done in pieces, carrying the counts from one to the next.

    Args:
      targets: int32 [e], in [0, n]; n stands for no edge, whose rank has no meaning.
      n: number of points.
    """
    num_edges = targets.shape[0]
    position_bits = min(32 - n.bit_length(), max(num_edges - 1, 1).bit_length())
    if position_bits < 1:
        raise UsageError(f"a graph has at most 2^31 - 1 points, got {n}")
    length = 2**position_bits if num_edges > 2**position_bits else num_edges
    pieces = jnp.pad(targets, (0, -num_edges % length), constant_values=n).reshape(-1, length)
    position = jnp.arange(length, dtype=jnp.int32)

    def rank(counts: Array, targets: Array) -> tuple[Array, Array]:
        packed = (targets.astype(jnp.uint32) << position_bits) | position.astype(jnp.uint32)
        packed = jnp.sort(packed)
        target = (packed >> position_bits).astype(jnp.int32)
        origin = (packed & (2**position_bits - 1)).astype(jnp.int32)
        first = jnp.full(n + 1, length, jnp.int32).at[target].min(position, indices_are_sorted=True)
        ranks_sorted = position + (counts - first)[target]
        ranks = jnp.zeros(length, jnp.int32).at[origin].set(ranks_sorted, unique_indices=True)
        return counts.at[target].add(1, indices_are_sorted=True), ranks

    counts, ranks = lax.scan(rank, jnp.zeros(n + 1, jnp.int32), pieces)
    return ranks.reshape(-1)[:num_edges], counts[:n]


@partial(jax.jit, static_argnames=("capacity", "mesh"))
def _place(edges: _Edges, capacity: int, mesh: Mesh | None = None) -> Graph:
    """Write the edges into a table and overflow rows, and normalize."""

    def placed(rows: Rows) -> Callable[[_Edges], Graph]:
        return lambda edges: _place_rows(edges, capacity, rows)

    return by_rows(placed, mesh, gives=GRAPH_ROWS)(edges)


def _place_rows(edges: _Edges, capacity: int, here: Rows) -> Graph:
    n, k = edges.under.shape
    num_rows = edges.targets.shape[0]
    sources = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32)[:, None], (n, k))
    is_listed = edges.under < num_rows
    num_overflow_rows = _overflow_rows_needed(edges.counts, k)
    row_start = jnp.cumsum(num_overflow_rows) - num_overflow_rows

    # `num_rows` and `capacity` lie outside: such entries are dropped by the scatters.
    in_table = is_listed & (edges.ranks < k)
    table = jnp.where(in_table, edges.under, num_rows), edges.ranks
    in_overflow = is_listed & (edges.ranks >= k)
    overflow_row = row_start[jnp.minimum(edges.under, num_rows - 1)] + edges.ranks // k - 1
    overflow_row = jnp.where(in_overflow, jnp.minimum(overflow_row, capacity), capacity)
    overflow = overflow_row, edges.ranks % k

    unused = here.own(sources)
    reverse_neighbors = unused.at[table].set(sources, mode="drop")
    reverse_weights = jnp.zeros((num_rows, k)).at[table].set(edges.reverse_weights, mode="drop")
    neighbors = jnp.concatenate([edges.targets, reverse_neighbors], axis=1)
    weights = jnp.concatenate([edges.weights, reverse_weights], axis=1)

    rows = jnp.full(capacity, num_rows - 1, jnp.int32)
    rows = rows.at[overflow_row].set(edges.under, mode="drop")
    overflow_rows = rows if here.num_parts == 1 else rows + here.first(num_rows)
    overflow_neighbors = jnp.broadcast_to(overflow_rows[:, None], (capacity, k))
    overflow_neighbors = overflow_neighbors.at[overflow].set(sources, mode="drop")
    overflow_weights = jnp.zeros((capacity, k)).at[overflow].set(edges.reverse_weights, mode="drop")

    degree = weights.sum(axis=1).at[rows].add(overflow_weights.sum(axis=1), indices_are_sorted=True)
    root = jnp.sqrt(degree)
    scale = jnp.where(degree > 0, 1.0 / jnp.where(degree > 0, root, 1.0), 0.0)
    all_scales = here.of_all(scale)
    return Graph(
        neighbors=neighbors,
        weights=weights * scale[:, None] * all_scales[neighbors],
        overflow_rows=overflow_rows,
        overflow_neighbors=overflow_neighbors,
        overflow_weights=overflow_weights * scale[rows][:, None] * all_scales[overflow_neighbors],
        root_degrees=root,
        num_lost=here.total((in_overflow & (overflow_row == capacity)).sum(dtype=jnp.int32)),
    )
