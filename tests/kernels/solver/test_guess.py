"""Solving from a guess: the same solution, fewer steps, and nothing that only the guess had."""

import numpy as np
import pytest
import reference_kernels as reference

from jaxfed.kernels.conjugate_gradient import propagate
from jaxfed.kernels.graph import normalized_graph

ALPHA, N = 0.95, 90


def system(num_columns, seed=0):
    """Two rings of random chords, of 60 and 30 points; labels in the first alone."""
    rng = np.random.default_rng(seed)
    sizes, first = (60, 30), (0, 60)
    indices = np.concatenate(
        [
            f + (np.arange(s)[:, None] + rng.integers(1, s, (s, 3))) % s
            for s, f in zip(sizes, first, strict=True)
        ]
    ).astype(np.int32)
    weights = rng.uniform(0.2, 1, indices.shape).astype(np.float32)
    y = np.zeros((N, num_columns), np.float32)
    y[rng.permutation(60)[:20], rng.integers(num_columns, size=20)] = 1
    return normalized_graph(indices, weights), y, reference.normalized_graph(indices, weights)


@pytest.mark.parametrize("num_columns", [3, 10, 40])  # alone, padded, more than a block of 32
def test_the_solution_is_that_of_the_system(num_columns, monkeypatch):
    monkeypatch.setattr("jaxfed.kernels.conjugate_gradient._block_columns", lambda n: 32)
    graph, y, w = system(num_columns)
    z = reference.propagate(w, y, ALPHA)
    near = z * (1 + 0.05 * np.random.default_rng(1).standard_normal(z.shape))
    for guess in (near, np.zeros_like(z), 1e3 * np.ones_like(z)):
        found, info = propagate(graph, y, ALPHA, start=guess)
        np.testing.assert_allclose(found, z, rtol=1e-4, atol=2e-6 * z.max())
        assert info.converged.all()
    _, cold = propagate(graph, y, ALPHA)
    _, warm = propagate(graph, y, ALPHA, start=z)
    assert warm.steps.max() <= 1 < cold.steps.max()


def test_what_only_the_guess_had_is_gone():
    """Components and columns without labels are exactly zero, and no number that is not one is read."""
    graph, y, w = system(4)
    y[:, 2] = 0
    guess = np.full((N, 4), 7.0)
    guess[5, 0] = np.nan
    found, info = propagate(graph, y, ALPHA, start=guess)
    np.testing.assert_array_equal(found[60:], 0)
    np.testing.assert_array_equal(found[:, 2], 0)
    np.testing.assert_allclose(found, reference.propagate(w, y, ALPHA), rtol=1e-4, atol=1e-5)
    assert info.converged.all()


def test_a_guess_of_the_part_along_the_leading_eigenvector_costs_nothing():
    """It is found without a step, so a guess that is wrong along it alone is as good as the solution."""
    graph, y, w = system(3)
    z = reference.propagate(w, y, ALPHA)
    along = np.where(np.arange(N) < 60, np.asarray(graph.root_degrees), 0)[:, None]
    _, info = propagate(graph, y, ALPHA, start=z + 5 * along, tolerance=1e-4)
    assert info.steps.max() == 0
