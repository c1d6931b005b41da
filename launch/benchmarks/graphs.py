"""Building the normalized graph, and propagating labels over it, against SciPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxfed.kernels import conjugate_gradient, graph
from launch.benchmarks import inputs
from launch.benchmarks.contest import Contest

NUM_NEIGHBORS, ALPHA, TOLERANCE = 10, 0.99, 2e-6


def construction(with_peers: bool) -> Iterator[Contest]:
    """D^-1/2 (B + B^T) D^-1/2 from kNN lists."""
    for n in (2_500, 10_000, 100_000):
        indices, weights = inputs.neighbors(n, NUM_NEIGHBORS)
        host = np.asarray(indices), np.asarray(weights)
        peer: dict[str, Callable[[], Any]] = {}
        if with_peers:
            peer["scipy csr"] = partial(inputs.sparse_graph, *host)
        yield Contest(
            task="normalized graph",
            case={"n": n, "k": NUM_NEIGHBORS},
            ours=partial(graph.normalized_graph, indices, weights),
            peers=peer,
            num_bytes=16 * n * NUM_NEIGHBORS,
        )


def propagation(with_peers: bool) -> Iterator[Contest]:
    """(I - alpha W) Z = Y to relative residual 2e-6; SciPy's cg solves column after column."""
    for n in (2_500, 10_000, 100_000):
        for num_classes, target in ((10, 3.0), (62, 6.0)):
            ours_graph = inputs.joint_graph(n, NUM_NEIGHBORS)
            matrix = inputs.sparse_graph(*inputs.neighbors(n, NUM_NEIGHBORS))
            y = inputs.one_hot(n, num_classes)
            peers: dict[str, Callable[[], Any]] = {
                f"scipy cg {dtype}": partial(scipy_columns, matrix.astype(dtype), y.astype(dtype))
                for dtype in ("float32", "float64")
            }
            yield Contest(
                task="label propagation",
                case={"n": n, "C": num_classes, "k": NUM_NEIGHBORS, "alpha": ALPHA},
                ours=partial(
                    conjugate_gradient.propagate,
                    ours_graph,
                    jnp.asarray(y),
                    ALPHA,
                    tolerance=TOLERANCE,
                ),
                peers=peers if with_peers else {},
                agreement=partial(_both_solve, matrix.astype(np.float64), y.astype(np.float64)),
                # A product reads W's index and value and gathers a row of floats for each of ~2 n k
                # entries, and streams five arrays of Z's size; plain conjugate gradients need 24
                # products at alpha = 0.99.
                num_bytes=24
                * (2 * n * NUM_NEIGHBORS * (8 + 4 * num_classes) + 20 * n * num_classes),
                targets=dict.fromkeys(peers, target),
            )


def scipy_columns(matrix: Any, y: np.ndarray) -> np.ndarray:
    """SciPy's conjugate gradient, one column at a time, in the dtype of its inputs."""
    from scipy.sparse import eye_array
    from scipy.sparse.linalg import cg

    system = (eye_array(len(y), dtype=y.dtype, format="csr") - ALPHA * matrix).astype(y.dtype)
    solutions = [cg(system, column, rtol=TOLERANCE, atol=0.0)[0] for column in y.T]
    return np.stack(solutions, axis=1)


def _both_solve(matrix: Any, y: np.ndarray, ours: Any, theirs: np.ndarray) -> str:
    """Both residuals, recomputed in float64: ours within the tolerance, and the solutions close."""

    def residual(z: np.ndarray) -> float:
        r = y - (z - ALPHA * (matrix @ z))
        return float(np.max(np.linalg.norm(r, axis=0) / np.linalg.norm(y, axis=0)))

    z = np.asarray(ours[0], np.float64)
    assert residual(z) <= TOLERANCE, f"relative residual {residual(z):.1e}"
    difference = np.linalg.norm(z - theirs) / np.linalg.norm(theirs)
    assert difference < 1e-4, f"solutions differ by {difference:.1e}"
    return f"residuals {residual(z):.1e} and {residual(theirs):.1e}, difference {difference:.1e}"
