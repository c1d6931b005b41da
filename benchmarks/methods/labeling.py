"""A whole XCLP labeling, from vectors to labels, against the authors' recipe and the fastest known one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

from benchmarks import inputs
from benchmarks.kernels import graphs
from benchmarks.timing.contest import Contest, Work, optional_peer
from jaxfed.kernels import lsh
from jaxfed.xclp import Parameters, cross_client_label_propagation, setup

NUM_CLIENTS, NUM_CLASSES = 5, 10  # a cohort of Section 4.2
PARAMETERS = Parameters(num_classes=NUM_CLASSES, tolerance=graphs.TOLERANCE)
INVERSE, ITERATIVE = "faiss LSH, dense inverse (authors)", "faiss LSH, scipy cg"
TARGETS = {2_500: {INVERSE: 15.0, ITERATIVE: 1.5}, 10_000: {INVERSE: 60.0, ITERATIVE: 2.0}}


def xclp(with_peers: bool) -> Iterator[Contest]:
    """Projection, kNN, graph and propagation. The peers' index is set up beforehand, with the same Pi."""
    for n, targets in TARGETS.items():
        vectors, truth = inputs.features(n, NUM_CLASSES)
        y = inputs.one_hot(n, NUM_CLASSES)
        labels = np.where(y.any(axis=1), truth, -1).astype(np.int32)

        client_vectors = np.array_split(vectors, NUM_CLIENTS)
        client_labels = np.array_split(labels, NUM_CLIENTS)
        peers: dict[str, Callable[[], Any]] = {}
        if with_peers and jax.default_backend() == "cpu":
            for name, solve in ((INVERSE, _dense_inverse), (ITERATIVE, graphs.scipy_columns)):
                peers |= optional_peer(name, _faiss_labeling, vectors, y, solve)
        yield Contest(
            task="XCLP labeling",
            case={"n": n, "d": vectors.shape[1], "num_bits": PARAMETERS.num_bits, "C": NUM_CLASSES},
            ours=partial(_ours, client_vectors, client_labels),
            peers=peers,
            agreement=_mostly_equal,
            work=Work(n * n * PARAMETERS.num_bits, "popcount_bits"),
            targets=targets,
        )


def _ours(vectors: list[np.ndarray], labels: list[np.ndarray]) -> np.ndarray:
    result = cross_client_label_propagation(vectors, labels, PARAMETERS)
    return np.concatenate([prediction.labels for prediction in result.predictions])


def _mostly_equal(ours: np.ndarray, theirs: np.ndarray) -> str:
    """Check that nearly all labels are equal; FAISS breaks ties between equal distances differently."""
    share = float(np.mean(ours == theirs))
    assert share > 0.99, f"only {share:.4f} of the labels agree"
    return f"{share:.4f} of the labels equal"


def _dense_inverse(matrix: Any, y: np.ndarray) -> np.ndarray:
    """(I - alpha W)^-1 Y by the inverse itself, in float64 as in the authors' code."""
    return np.linalg.inv(np.eye(len(y)) - graphs.ALPHA * matrix.toarray()) @ y


def _faiss_labeling(
    vectors: np.ndarray, y: np.ndarray, solve: Callable[[Any, np.ndarray], np.ndarray]
) -> Callable[[], np.ndarray]:
    import faiss

    _n, d = vectors.shape
    num_bits, k = PARAMETERS.num_bits, PARAMETERS.num_neighbors
    template = faiss.IndexLSH(d, num_bits, True, False)
    pi = np.asarray(lsh.hyperplanes(setup(PARAMETERS.seed), num_bits, d), np.float32)
    faiss.copy_array_to_vector(pi.ravel(), template.rrot.A)

    def label() -> np.ndarray:
        template.reset()
        template.add(vectors)
        distances, indices = template.search(vectors, k + 1)
        similarity = np.cos(np.pi * distances[:, 1:] / num_bits).astype(np.float32)
        matrix = inputs.sparse_graph(indices[:, 1:], similarity)
        return solve(matrix, y).argmax(axis=1).astype(np.int32)

    return label
