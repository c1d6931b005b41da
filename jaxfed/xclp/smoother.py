"""Propagation matrix M = (I - alpha W)^-1 of line 10, by which one-hot labels are multiplied.

M depends on the graph alone, and the server computes it. `jaxfed.xclp.label_matrix` turns M Y into scores.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.kernels.conjugate_gradient import Convergence, propagate
from jaxfed.kernels.devices.spread import everywhere
from jaxfed.kernels.graph import Graph
from jaxfed.xclp.label_matrix import Rows, scores
from jaxfed.xclp.parameters import Propagation

Array = jax.Array | np.ndarray


class Smoother(NamedTuple):
    """M of one labeling. The graph's rows may be spread over a mesh; all other arrays are on one device.

    `block_columns`: columns that are solved together; None: the device's default.
    """

    graph: Graph
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
        """Maximum number of conjugate-gradient steps."""
        return self.p.max_steps

    def solved(self, y: Array) -> tuple[jax.Array, Convergence]:
        """M Y for Y float32 [n, C], n the graph's points, and the convergence of each column."""
        return everywhere(
            propagate(
                self.graph,
                jnp.asarray(y),
                self.p.alpha,
                tolerance=self.p.tolerance,
                max_steps=self.p.max_steps,
                block_columns=self.block_columns,
            )
        )


def label_counts(y: Array) -> jax.Array:
    """N, float32 [n, C]: the numbers of labels of each class in Y [n, C], repeated for every point."""
    y = jnp.asarray(y)
    return jnp.broadcast_to(y.sum(axis=0, keepdims=True), y.shape)


def joint_scores(graph: Graph, y: Array, p: Propagation) -> tuple[jax.Array, Convergence]:
    """Z, float32 [n, C], if one party has graph and labels Y [n, C], one-hot or zero; may be traced."""
    return scores_of(Smoother(graph, p), y)


def scores_of(m: Smoother, y: Array) -> tuple[jax.Array, Convergence]:
    """`joint_scores` with an existing M."""
    y = jnp.asarray(y)
    values, info = m.solved(y)
    z = scores(m.p.label_matrix, Rows(values, label_counts(y)))
    return jnp.asarray(z), info
