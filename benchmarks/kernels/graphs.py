"""Building the normalized graph, and propagating labels over it, against SciPy and scikit-learn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks import inputs
from benchmarks.timing.contest import PEAK, Contest, Work, peak_memory_figure
from jaxfed.kernels import conjugate_gradient, graph

NUM_NEIGHBORS, ALPHA, TOLERANCE = 10, 0.99, 2e-6
_MILLION = 1_000_000
# Neighbors of a point -> GiB of the process for a million points, with the building of the graph.
MOST_GIB = {10: 6, 50: 16}
_SPREADING = "scikit-learn LabelSpreading"


def construction(with_peers: bool, sizes: Sequence[int] = ()) -> Iterator[Contest]:
    """D^-1/2 (B + B^T) D^-1/2 from kNN lists."""
    for n in sizes or (2_500, 10_000, 100_000):
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
            work=Work(16 * n * NUM_NEIGHBORS, "bytes"),
        )


def propagation(with_peers: bool, sizes: Sequence[int] = ()) -> Iterator[Contest]:
    """(I - alpha W) Z = Y to relative residual 2e-6; SciPy's cg solves column after column."""
    targets = {2_500: (3.0, 6.0), 10_000: (3.0, 6.0), 100_000: (4.0, 4.0)}
    for n in sizes or targets:
        for index, num_classes in enumerate((10, 62)):
            ours_graph = inputs.joint_graph(n, NUM_NEIGHBORS)
            matrix = inputs.sparse_graph(*inputs.neighbors(n, NUM_NEIGHBORS))
            y = inputs.one_hot(n, num_classes)
            peers: dict[str, Callable[[], Any]] = {
                f"scipy cg {dtype}": partial(scipy_columns, matrix.astype(dtype), y.astype(dtype))
                for dtype in ("float32", "float64")
            }
            promised = dict.fromkeys(peers, targets[n][index]) if n in targets else {}
            if sizes:
                peers[_SPREADING] = _scikit_labels(n, num_classes)
            solve = partial(
                conjugate_gradient.propagate, ours_graph, jnp.asarray(y), ALPHA, tolerance=TOLERANCE
            )
            num_steps = int(solve()[1].steps.max())
            yield Contest(
                task="label propagation",
                case={"n": n, "C": num_classes, "k": NUM_NEIGHBORS, "alpha": ALPHA},
                ours=solve,
                peers=peers if with_peers else {},
                agreement=partial(_both_solve, matrix.astype(np.float64), y.astype(np.float64)),
                work=Work(_fewest_bytes(ours_graph, num_classes, num_steps), "bytes"),
                targets=promised,
            )


def large_propagation(
    with_peers: bool, sizes: Sequence[int] = (), neighbors: Iterable[int] = MOST_GIB
) -> Iterator[Contest]:
    """A million points with 10^7 and 5 x 10^7 edges, C = 10, over a graph of random neighbors."""
    del with_peers  # SciPy would take half a minute, by its time at 10^5
    for num_neighbors in neighbors:
        for n in sizes or (_MILLION,):
            yield _drawn_propagation(n, num_neighbors)


def _drawn_propagation(n: int, num_neighbors: int) -> Contest:
    """`num_neighbors` random neighbors a point, 88 % of them of the point's class; a tenth is labeled."""
    num_classes = 10
    rng = np.random.default_rng(0)
    truth = rng.integers(num_classes, size=n)
    of_class = np.argsort(truth, kind="stable").astype(np.int32)
    first = np.searchsorted(truth[of_class], np.arange(num_classes + 1))
    draw = rng.random((n, num_neighbors)) * (first[truth + 1] - first[truth])[:, None]
    indices = of_class[first[truth][:, None] + draw.astype(np.int64)]
    elsewhere = rng.random(indices.shape) < 0.12
    indices[elsewhere] = rng.integers(n, size=int(elsewhere.sum()), dtype=np.int32)
    weights = rng.uniform(0.3, 0.9, indices.shape).astype(np.float32)
    drawn = graph.normalized_graph(indices, weights)
    del indices, weights, draw, elsewhere

    shown = rng.permutation(n)[: n // 10]
    y = np.zeros((n, num_classes), np.float32)
    y[shown, truth[shown]] = 1
    solve = partial(conjugate_gradient.propagate, drawn, jnp.asarray(y), ALPHA, tolerance=TOLERANCE)
    num_steps = int(solve()[1].steps.max())

    def figures(result: Any, seconds: float) -> dict[str, float]:
        assert result[1].converged.all()
        return {
            "steps": num_steps,
            "ms a step": 1e3 * seconds / num_steps,
            **peak_memory_figure(),
        }

    return Contest(
        task="label propagation",
        case={"n": n, "C": num_classes, "k": num_neighbors, "alpha": ALPHA, "graph": "drawn"},
        ours=solve,
        work=Work(_fewest_bytes(drawn, num_classes, num_steps), "bytes"),
        figures=figures,
        at_most={PEAK: MOST_GIB[num_neighbors]} if n == _MILLION else {},
    )


def _fewest_bytes(w: graph.Graph, num_classes: int, num_steps: int) -> float:
    """Return a lower bound on the bytes of so many steps.

    Each of a step's two products reads W and X once and writes once; its other sums take 16 passes over
    [n, C]. Values that are read again because a cache is too small are not counted.
    """
    slots, entries = w.neighbors.size + w.overflow_neighbors.size, len(w.neighbors) * num_classes
    return num_steps * (2 * (8 * slots + 8 * entries) + 16 * 4 * entries)


def scipy_columns(matrix: Any, y: np.ndarray) -> np.ndarray:
    """SciPy's conjugate gradient, one column at a time, in the dtype of its inputs."""
    from scipy.sparse import eye_array
    from scipy.sparse.linalg import cg

    system = (eye_array(len(y), dtype=y.dtype, format="csr") - ALPHA * matrix).astype(y.dtype)
    solutions = [cg(system, column, rtol=TOLERANCE, atol=0.0)[0] for column in y.T]
    return np.stack(solutions, axis=1)


def _scikit_labels(n: int, num_classes: int) -> Callable[[], np.ndarray]:
    """LabelSpreading on B + B^T, which it normalizes itself; it returns labels, not Z.

    F <- alpha W F + (1 - alpha) Y changes by (1 - alpha) times the residual of Z = F / (1 - alpha). It stops
    once the changes of all entries sum to `tol`, chosen here for the same relative residual.
    """
    from sklearn.semi_supervised import LabelSpreading

    @cache
    def problem() -> tuple[np.ndarray, np.ndarray, Any]:
        vectors, truth = inputs.features(n, num_classes)
        labeled = inputs.one_hot(n, num_classes).any(axis=1)
        affinity = inputs.sparse_affinity(*inputs.neighbors(n, NUM_NEIGHBORS))
        return vectors, np.where(labeled, truth, -1), affinity

    def spread() -> np.ndarray:
        vectors, labels, affinity = problem()
        moves = (1 - ALPHA) * TOLERANCE * np.count_nonzero(labels >= 0)
        model = LabelSpreading(kernel=lambda x, y: affinity, alpha=ALPHA, tol=moves, max_iter=10**4)
        return np.asarray(model.fit(vectors, labels).transduction_)

    return spread


def _both_solve(matrix: Any, y: np.ndarray, ours: Any, theirs: np.ndarray) -> str:
    """Check both residuals in float64 and the distance of the solutions.

    A peer that returns labels only is compared by the share of equal labels.
    """
    size = np.maximum(np.linalg.norm(y, axis=0), np.finfo(y.dtype).tiny)  # a class without labels

    def residual(z: np.ndarray) -> float:
        r = y - (z - ALPHA * (matrix @ z))
        return float(np.max(np.linalg.norm(r, axis=0) / size))

    z = np.asarray(ours[0], np.float64)
    assert residual(z) <= TOLERANCE, f"relative residual {residual(z):.1e}"
    if theirs.ndim == 1:
        share = float(np.mean(z.argmax(axis=1) == theirs))
        assert share > 0.99, f"only {share:.4f} of the labels agree"
        return f"{share:.4f} of the labels equal"
    difference = np.linalg.norm(z - theirs) / np.linalg.norm(theirs)
    assert difference < 1e-4, f"solutions differ by {difference:.1e}"
    return f"residuals {residual(z):.1e} and {residual(theirs):.1e}, difference {difference:.1e}"
