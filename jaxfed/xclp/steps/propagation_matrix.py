"""Products of line 10's matrix S = (I - alpha W)^-1 with labels, and the accuracy of their solutions.

`jaxfed.kernels.conjugate_gradient.PropagationMatrix` is S, which the server has: it depends on the graph and
alpha alone. `jaxfed.xclp.steps.class_scores` turns S Y into scores.
"""

from __future__ import annotations

import warnings
from functools import reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.kernels.conjugate_gradient import Convergence, PropagationMatrix
from jaxfed.xclp.settings.parameters import Propagation
from jaxfed.xclp.steps.class_scores import Rows, scores

Array = jax.Array | np.ndarray

_DIGITS = 50  # 1 - alpha over the tolerance, from which differences of classes are exact to 2 %


class SolverAccuracy(NamedTuple):
    """Accuracy of several solved columns: most steps, largest residual, and if one was stopped at max_steps.

    A column that stops above the tolerance at float32's own limit is no reason to warn.
    """

    steps: int = 0
    residual: float = 0.0
    cut_short: bool = False

    def worst(self, other: SolverAccuracy) -> SolverAccuracy:
        """The worse of two accuracies, field by field."""
        return SolverAccuracy(
            max(self.steps, other.steps),
            max(self.residual, other.residual),
            self.cut_short or other.cut_short,
        )


def label_counts(y: Array) -> jax.Array:
    """N, float32 [n, C]: the numbers of labels of each class in Y [n, C], repeated for every point."""
    y = jnp.asarray(y)
    return jnp.broadcast_to(y.sum(axis=0, keepdims=True), y.shape)


def label_masses(m: PropagationMatrix, y: Array) -> jax.Array:
    """M, float32 [n, C]: the sums of the roots of their degrees, likewise."""
    return label_counts(m.root_degrees[:, None] * jnp.asarray(y))


def scores_of(m: PropagationMatrix, y: Array, label_matrix: str) -> tuple[jax.Array, Convergence]:
    """Z, float32 [n, C], if one party has S and labels Y [n, C], one-hot or zero; may be traced."""
    y = jnp.asarray(y)
    values, info = m.solved(y)
    z = scores(label_matrix, Rows(values, label_counts(y), label_masses(m, y)))
    return jnp.asarray(z), info


def solved(matrix: PropagationMatrix, y: np.ndarray) -> tuple[jax.Array, SolverAccuracy]:
    """S Y, and the accuracy of its columns."""
    z, info = matrix.solved(y)
    return z, accuracy_of(info, matrix.max_steps)


def accuracy_of(info: Convergence, max_steps: int) -> SolverAccuracy:
    """Accuracy over all columns of one solve."""
    steps, residual, converged = (
        np.asarray(values) for values in (info.steps, info.residual, info.converged)
    )
    cut_short = bool((~converged & (steps >= max_steps)).any())
    return SolverAccuracy(int(steps.max()), float(residual.max()), cut_short)


def warn_of_solution(labeling: SolverAccuracy, choosing: SolverAccuracy, p: Propagation) -> None:
    """Warn of columns stopped at max_steps, in the labeling or in choosing its settings, and of lost digits.

    With "degree_balanced" the leading term of S is the same for all classes, and what tells them apart is
    about 1 - alpha of it. The warnings point to the caller's caller.
    """
    if p.label_matrix == "degree_balanced" and 1 - p.alpha < _DIGITS * p.tolerance:
        warnings.warn(
            f"alpha={p.alpha} with label_matrix='degree_balanced': scores of classes differ by about "
            f"{1 - p.alpha:.0e}, too little for tolerance={p.tolerance:.0e} in float32: lower alpha, or use "
            "'class_balanced'",
            RuntimeWarning,
            stacklevel=3,
        )
    systems = {"label propagation": labeling, "choosing by leave-one-out": choosing}
    cut_short = {name: accuracy for name, accuracy in systems.items() if accuracy.cut_short}
    if cut_short:
        worst = reduce(SolverAccuracy.worst, cut_short.values())
        warnings.warn(
            f"{' and '.join(cut_short)} stopped at relative residual {worst.residual:.1e} after "
            f"{worst.steps} steps, above tolerance={p.tolerance:.1e}: raise max_steps or tolerance",
            RuntimeWarning,
            stacklevel=3,
        )
