"""Connected components of a graph W, and the projection that removes their leading eigenvectors.

On a component K of W = D^-1/2 (B + B^T) D^-1/2 the vector v_K = D^1/2 1_K has W v_K = v_K: eigenvalue 1, the
largest, which is simple because K is connected. The projection that removes all of them,

    P^ Y = Y - sum_K v_K (v_K^T Y) / |v_K|^2,

commutes with W. So (I - alpha W)^-1 P^ Y is bounded as alpha goes to 1, while (I - alpha W)^-1 Y grows like
1 / (1 - alpha). A point without edges has v = 0: it is a component of its own, and nothing is removed.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh

from jaxfed.kernels.arrays import gather_unchecked
from jaxfed.kernels.devices import ALL, SpreadRows, by_rows, mesh_of
from jaxfed.kernels.graph import GRAPH_ROWS, Graph


class Components(NamedTuple):
    """Component of every point.

    Attributes:
      root: int32 [n], the smallest point of every point's component.
      volume: float32 [n], |v_K|^2 of every point's component, the sum of its degrees; 0 without edges.
    """

    root: Array
    volume: Array


def components(graph: Graph) -> Components:
    """Find the components of a graph of n points; the result has the graph's mesh, if it has one.

    Every point takes the smallest root among its own and its neighbors', and then its root's root, until
    nothing changes. The number of rounds is a little above the logarithm of the longest path.

    Cost: 2 n k lookups a round; over a mesh every device has all n roots.
    """
    return _components(graph, mesh_of(graph.neighbors))


@partial(jax.jit, static_argnames="mesh")
def _components(graph: Graph, mesh: Mesh | None) -> Components:
    def by_part(rows: SpreadRows) -> Callable[[Graph], Components]:
        return lambda graph: _components_by(graph, rows)

    return by_rows(by_part, mesh, takes=(GRAPH_ROWS,))(graph)


def _components_by(graph: Graph, rows: SpreadRows) -> Components:
    num_rows = graph.neighbors.shape[0]
    n = num_rows * rows.num_parts
    overflow_rows = rows.local_index(graph.overflow_rows, num_rows)

    def smaller(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        _, root = carry
        nearby = gather_unchecked(root, graph.neighbors).min(axis=1)
        least = jnp.minimum(rows.local(root), nearby)
        if graph.overflow_rows.size:
            over = gather_unchecked(root, graph.overflow_neighbors).min(axis=1)
            least = least.at[overflow_rows].min(over)
        least = rows.of_all(least)
        # A root with a smaller root passes it on to all its points.
        least = least.at[root].min(least)
        least = least[least]
        return (least != root).any(), least

    start = (jnp.bool_(True), jnp.arange(n, dtype=jnp.int32))
    _, root = lax.while_loop(lambda carry: carry[0], smaller, start)
    root = rows.local(root)
    return Components(root, component_sums(root, graph.root_degrees[:, None] ** 2, rows)[:, 0])


def reachable(graph: Graph, start: Array, rows: SpreadRows = ALL) -> Array:
    """Return the points of all components that hold a starting point: bool [n] -> bool [n].

    `rows`: the rows of this device.

    Cost: 2 n k lookups for every edge on the path from the starting points to the farthest point.
    """
    overflow_rows = rows.local_index(graph.overflow_rows, start.shape[0])

    def further(state: tuple[Array, Array]) -> tuple[Array, Array]:
        _, reached = state
        of_all = rows.of_all(reached)
        grown = reached | gather_unchecked(of_all, graph.neighbors).any(axis=1)
        if graph.overflow_rows.size:
            over = gather_unchecked(of_all, graph.overflow_neighbors).any(axis=1)
            grown = grown.at[overflow_rows].max(over)
        return rows.any(grown != reached) & ~rows.all(grown), grown

    return lax.while_loop(lambda state: state[0], further, (rows.any(start), start))[1]


def component_sums(root: Array, values: Array, rows: SpreadRows = ALL) -> Array:
    """Sum over each point's component: [n, C] -> [n, C]; `rows` are those of this device."""
    sums = jnp.zeros((rows.num_parts * values.shape[0], *values.shape[1:]), values.dtype)
    return rows.total(sums.at[root].add(values))[root]


def without_leading(
    graph: Graph, components: Components, y: Array, rows: SpreadRows = ALL
) -> Array:
    """P^ Y: Y [n, C] without its parts along v_K of every component; `rows` are those of this device."""
    v = graph.root_degrees[:, None]
    volume = jnp.where(components.volume > 0, components.volume, 1.0)[:, None]
    # The second projection removes the rounding error of the first.
    for _ in range(2):
        y = y - v * (component_sums(components.root, v * y, rows) / volume)
    return y
