"""Kernels beside scikit-learn's, and the memory of a process of its own."""

import numpy as np
import pytest

from benchmarks import inputs
from benchmarks.kernels import graphs, neighbors


@pytest.fixture
def vectors():
    return np.random.default_rng(0).standard_normal((60, 16)).astype(np.float32)


def test_scikit_learn_finds_the_same_neighbors(vectors):
    codes = np.random.default_rng(0).integers(2**32, size=(60, 4), dtype=np.uint32)
    pairs = np.bitwise_count(codes[:, None] ^ codes).sum(axis=2).astype(np.int32)
    np.fill_diagonal(pairs, 1000)
    found = neighbors._scikit_hamming(codes)()
    np.testing.assert_array_equal(found, np.sort(pairs, axis=1)[:, :10])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -2)
    expected = -np.sort(-cosines, axis=1)[:, :10]
    np.testing.assert_allclose(neighbors._scikit_cosine(vectors)(), expected, atol=1e-5)


def test_scikit_learn_spreads_the_same_labels(monkeypatch):
    rng = np.random.default_rng(0)
    indices = np.stack([rng.permutation(150)[:10] for _ in range(150)])
    indices = np.where(indices == np.arange(150)[:, None], (indices + 1) % 150, indices)
    weights = rng.uniform(0.1, 1, indices.shape).astype(np.float32)
    monkeypatch.setattr(inputs, "neighbors", lambda n, k: (indices, weights))
    matrix = inputs.sparse_graph(indices, weights).astype(np.float64)
    y = inputs.one_hot(150, 62).astype(np.float64)
    assert not y.any(axis=0).all(), "a class without labels is no mistake"
    z = np.linalg.solve(np.eye(150) - graphs.ALPHA * matrix.toarray(), y)
    labels = graphs._scikit_labels(150, 62)()
    assert graphs._both_solve(matrix, y, (z,), labels) == "1.0000 of the labels equal"
    said = graphs._both_solve(matrix, y, (z,), z.copy())
    assert said.endswith("difference 0.0e+00")
    with pytest.raises(AssertionError, match=r"only 0\.0000 of the labels"):
        graphs._both_solve(matrix, y, (z,), labels + 1)
