"""Line 10's matrix M = (I - alpha W)^-1, by which one-hot labels are multiplied.

M knows the graph alone and is the server's to compute; `jaxfed.xclp.label_matrix` makes scores of M Y.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.kernels.conjugate_gradient import Convergence, propagate
from jaxfed.kernels.graph import Graph
from jaxfed.kernels.spread import everywhere
from jaxfed.xclp.label_matrix import Rows, scores
from jaxfed.xclp.parameters import Propagation

Array = jax.Array | np.ndarray


class Smoother(NamedTuple):
    """M of one labeling, its graph's rows over a mesh or not; all else, and what comes out, is on one device.

    `block_columns` is None where as many are solved together as suit the device.
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
        """M Y for Y float32 [n, C], n the graph's points, and how each column was solved."""
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
    """N, float32 [n, C]: for every point the numbers of labels of each class, of Y [n, C]."""
    y = jnp.asarray(y)
    return jnp.broadcast_to(y.sum(axis=0, keepdims=True), y.shape)


def joint_scores(graph: Graph, y: Array, p: Propagation) -> tuple[jax.Array, Convergence]:
    """Z, float32 [n, C], where one party has graph and labels Y [n, C], one-hot or zero; may be traced."""
    return scores_of(Smoother(graph, p), y)


def scores_of(m: Smoother, y: Array) -> tuple[jax.Array, Convergence]:
    """`joint_scores` by an M that is there."""
    y = jnp.asarray(y)
    values, info = m.solved(y)
    z = scores(m.p.label_matrix, Rows(values, label_counts(y)))
    return jnp.asarray(z), info
