"""Line 10's matrix, and those that take its place: what `label_matrix` multiplies one-hot labels by.

    plain, class_balanced    M = (I - alpha W)^-1
    centered                 M = P^ (I - alpha W)^-1,           P^ = I - sum_K v_K v_K^T / |v_K|^2
    poisson                  M = D^-1/2 (I - W)^+ D^-1/2        where a point has no edge, 1

over the components K of the graph, v_K = D^1/2 1_K (`jaxfed.kernels.components`; what comes of M Y:
`jaxfed.xclp.label_matrix`). All of it is the server's to compute: M knows the graph alone.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.kernels.components import Components, component_sums, components
from jaxfed.kernels.conjugate_gradient import Convergence, propagate, propagate_centered
from jaxfed.kernels.graph import Graph
from jaxfed.kernels.spread import everywhere
from jaxfed.xclp.label_matrix import BY_COMPONENT, Rows, scores
from jaxfed.xclp.parameters import Propagation

Array = jax.Array | np.ndarray

_FLAT_ALPHA = 0.99  # of what Poisson learning's scores get on top, which would be infinite at 1


class Smoother(NamedTuple):
    """M of one labeling, its graph's rows over a mesh or not; all else, and what comes out, is on one device.

    `found` is None where no components are needed, `block_columns` where as many are solved together as suit
    the device.
    """

    graph: Graph
    found: Components | None
    p: Propagation
    block_columns: int | None = None

    @property
    def num_points(self) -> int:
        """n, with padding."""
        return len(self.graph.neighbors)

    @property
    def root_degrees(self) -> jax.Array:
        """D^1/2, float32 [n]."""
        return everywhere(self.graph.root_degrees)

    @property
    def max_steps(self) -> int:
        """Of conjugate gradients, at most."""
        return self.p.max_steps

    def solved(self, y: Array) -> tuple[jax.Array, Convergence]:
        """M Y for Y float32 [n, C], n the graph's points, and how each column was solved."""
        y = jnp.asarray(y)
        tolerance, max_steps, block_columns = self.p.tolerance, self.p.max_steps, self.block_columns
        if self.found is None:
            solve = partial(propagate, self.graph)
        else:
            solve = partial(propagate_centered, self.graph, self.found)
        solve = partial(
            solve, tolerance=tolerance, max_steps=max_steps, block_columns=block_columns
        )
        if self.found is None:
            return everywhere(solve(y, self.p.alpha))
        if self.p.label_matrix == "centered":
            return everywhere(solve(y, self.p.alpha))
        scale = self._inverse_root_degrees()[:, None]
        z, info = everywhere(solve(scale * y, 1.0))
        return scale * z, info

    def counts(self, y: Array) -> jax.Array:
        """N, float32 [n, C]: labels of every class, of a point's component or, without these, of all."""
        y = jnp.asarray(y)
        if self.found is None:
            return jnp.broadcast_to(y.sum(axis=0, keepdims=True), y.shape)
        return component_sums(self.found.root, y)

    def num_counts(self, is_labeled: Array) -> jax.Array:
        """Rows of counts that are summed beside Z, int32: one a component with labels, bool [n]; else one."""
        if self.found is None:
            return jnp.int32(1)
        labeled = jnp.asarray(is_labeled).astype(jnp.int32)
        return jnp.zeros_like(labeled).at[self.found.root].max(labeled).sum(dtype=jnp.int32)

    def flat(self, is_labeled: Array) -> tuple[jax.Array, jax.Array]:
        """(f, F), float32 [n] both, of bool [n]: the flat part of every point, and a label's in its own."""
        labeled = jnp.asarray(is_labeled).astype(jnp.float32)[:, None]
        if self.found is None:
            return jnp.zeros_like(labeled[:, 0]), jnp.zeros_like(labeled[:, 0])
        volume = jnp.where(self.found.volume > 0, self.found.volume, 1.0)
        if self.p.label_matrix == "centered":
            v = self.root_degrees
            mass = component_sums(self.found.root, v[:, None] * labeled)[:, 0]
            share = v / ((1 - self.p.alpha) * volume)
            return share * mass, share * v
        count = component_sums(self.found.root, labeled)[:, 0]
        share = 1 / ((1 - _FLAT_ALPHA) * volume)
        return share * count, share

    def _inverse_root_degrees(self) -> jax.Array:
        root = self.root_degrees
        return jnp.where(root > 0, 1 / jnp.where(root > 0, root, 1.0), 1.0)


def smoother(graph: Graph, p: Propagation, block_columns: int | None = None) -> Smoother:
    """M for this graph and `p.label_matrix`; finds the components where they are needed."""
    found = everywhere(components(graph)) if p.label_matrix in BY_COMPONENT else None
    return Smoother(graph, found, p, block_columns)


def joint_scores(graph: Graph, y: Array, p: Propagation) -> tuple[jax.Array, Convergence]:
    """Z, float32 [n, C], where one party has graph and labels Y [n, C], one-hot or zero; may be traced."""
    return scores_of(smoother(graph, p), y)


def scores_of(m: Smoother, y: Array) -> tuple[jax.Array, Convergence]:
    """`joint_scores` by an M that is there."""
    y = jnp.asarray(y)
    values, info = m.solved(y)
    flat, _ = m.flat(y.any(axis=1))
    z = scores(m.p.label_matrix, Rows(values, m.counts(y), flat))
    return jnp.asarray(z), info
