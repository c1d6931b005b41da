"""Connected components of a graph W, and what is left of a matrix without their leading eigenvectors.

On a component K of W = D^-1/2 (B + B^T) D^-1/2 the vector v_K = D^1/2 1_K has W v_K = v_K: eigenvalue 1, the
largest, and, K being connected, the only one of its kind. The projection off all of them,

    P^ Y = Y - sum_K v_K (v_K^T Y) / |v_K|^2,

commutes with W, so that (I - alpha W)^-1 P^ Y is bounded as alpha goes to 1, where (I - alpha W)^-1 Y grows
like 1 / (1 - alpha). A point without edges has v = 0: it is a component of its own, and nothing is taken off.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxfed.kernels.graph import Graph


class Components(NamedTuple):
    """Which points hang together.

    Attributes:
      root: int32 [n], the smallest point of every point's component.
      volume: float32 [n], |v_K|^2 of every point's component, the sum of its degrees; 0 without edges.
    """

    root: Array
    volume: Array


@jax.jit
def components(graph: Graph) -> Components:
    """Find the components of a graph of n points.

    Every point takes the smallest root among its own and its neighbors', and then its root's root, until
    nothing changes: after a few rounds more than the logarithm of the longest way.

    Cost: 2 n k lookups a round.
    """
    n = graph.neighbors.shape[0]
    is_edge, is_overflow_edge = graph.weights > 0, graph.overflow_weights > 0

    def smaller(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        _, root = carry
        nearby = jnp.where(is_edge, root[graph.neighbors], n).min(axis=1)
        least = jnp.minimum(root, nearby)
        if graph.overflow_rows.size:
            over = jnp.where(is_overflow_edge, root[graph.overflow_neighbors], n).min(axis=1)
            least = least.at[graph.overflow_rows].min(over)
        # A root that has found a smaller one takes all its points along.
        least = least.at[root].min(least)
        least = least[least]
        return (least != root).any(), least

    start = (jnp.bool_(True), jnp.arange(n, dtype=jnp.int32))
    _, root = lax.while_loop(lambda carry: carry[0], smaller, start)
    return Components(root, component_sums(root, graph.root_degrees[:, None] ** 2)[:, 0])


def component_sums(root: Array, values: Array) -> Array:
    """At every point the sum of its component's rows: [n, C] -> [n, C]."""
    return jnp.zeros_like(values).at[root].add(values)[root]


def without_leading(graph: Graph, found: Components, y: Array) -> Array:
    """P^ Y: Y [n, C] without its parts along v_K of every component."""
    v = graph.root_degrees[:, None]
    volume = jnp.where(found.volume > 0, found.volume, 1.0)[:, None]
    # Once more takes off what rounding has left.
    for _ in range(2):
        y = y - v * (component_sums(found.root, v * y) / volume)
    return y
