"""Approximate Hamming kNN against all pairs: time, recall, and accuracy of propagated labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks import inputs
from benchmarks.timing.contest import Contest
from jaxfed.kernels import conjugate_gradient, graph, knn, nn_descent

NUM_BITS, NUM_NEIGHBORS, ALPHA, NUM_CLASSES = 4096, 10, 0.99, 10


def approximate_knn(with_peers: bool) -> Iterator[Contest]:
    """Ten neighbors, L = 4096, of noise in 128 dimensions: the hardest case for a search."""
    for n in (32_768, 100_000):
        codes = inputs.codes(n, NUM_BITS, "features")
        peers: dict[str, Callable[[], Any]] = {}
        if with_peers:
            peers["all pairs"] = partial(knn.hamming_knn, codes, NUM_NEIGHBORS)
        yield Contest(
            task="approximate Hamming 10-NN",
            case={"n": n, "num_bits": NUM_BITS},
            ours=partial(nn_descent.approximate_hamming_knn, codes, NUM_NEIGHBORS),
            peers=peers,
            agreement=partial(_recall_and_accuracy, n),
        )


def _recall_and_accuracy(n: int, ours: Any, exact: Any) -> str:
    """Return the recall of the nearest neighbors, and the accuracy of labels over either graph."""
    found, nearest = np.asarray(ours[0]), np.asarray(exact[0])
    recall = np.mean((found[:, :, None] == nearest[:, None]).any(axis=1))
    assert recall > 0.3, f"recall {recall:.3f}"
    farther = np.asarray(ours[1]).mean() / np.asarray(exact[1]).mean() - 1
    right = [_accuracy(n, *neighbors) for neighbors in (ours, exact)]
    return (
        f"recall {recall:.3f}, distances {farther:.1%} longer, "
        f"labels right {right[0]:.4f} for {right[1]:.4f}"
    )


def _accuracy(n: int, indices: Any, distances: Any) -> float:
    weights = jnp.maximum(graph.cosine_from_hamming(distances, NUM_BITS), 0)
    y = inputs.one_hot(n, NUM_CLASSES)
    joint = graph.normalized_graph(indices, weights)
    z, _ = conjugate_gradient.propagate(joint, y, ALPHA, tolerance=1e-5)
    unlabeled = ~y.any(axis=1)
    predicted = np.asarray(z).argmax(axis=1)
    return float(np.mean(predicted[unlabeled] == inputs.features(n, NUM_CLASSES)[1][unlabeled]))
