"""Label propagation at small alpha beside a float64 twin: every entry is exact, far from all labels too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.kernels.conjugate_gradient import propagate
from jaxfed.kernels.devices import everywhere, points_mesh, spread
from jaxfed.kernels.graph import normalized_graph

N, K, NUM_CLASSES = 300, 4, 3


def case(num_labels, seed=0):
    """Points on a line, so that some are many edges from every label: W float64, its graph, and Y."""
    rng = np.random.default_rng(seed)
    x = rng.random(N)
    gaps = np.abs(x[:, None] - x)
    np.fill_diagonal(gaps, np.inf)
    indices = np.argsort(gaps, axis=1)[:, :K].astype(np.int32)
    weights = rng.uniform(0.3, 1, (N, K)).astype(np.float32)
    b = np.zeros((N, N))
    b[np.arange(N)[:, None], indices] = weights
    b += b.T
    scale = b.sum(1) ** -0.5
    y = np.zeros((N, NUM_CLASSES), np.float32)
    y[rng.choice(N, num_labels, replace=False), rng.integers(NUM_CLASSES, size=num_labels)] = 1
    return scale[:, None] * b * scale, (indices, weights), y


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.3, 0.49, 0.5, 0.7, 0.84, 0.9])
@pytest.mark.parametrize("num_labels", [12, 60, 150])
def test_labels_and_scores_are_the_graphs(alpha, num_labels):
    w, lists, y = case(num_labels)
    exact = np.linalg.inv(np.eye(N) - alpha * w) @ y
    z, info = propagate(normalized_graph(*lists), y, alpha)
    z = np.asarray(z)
    assert np.asarray(info.converged).all()
    assert (z.argmax(1) == exact.argmax(1)).all()
    if alpha < 0.85:
        np.testing.assert_allclose(z, exact, rtol=5e-6, atol=1e-30)
    else:
        np.testing.assert_allclose(z, exact, atol=2e-5 * exact.max())


def test_columns_stop_by_themselves_and_bad_ones_alone():
    w, lists, y = case(60)
    graph = normalized_graph(*lists)
    signed = np.random.default_rng(1).standard_normal((N, 1)).astype(np.float32)
    bad = np.full((N, 1), np.nan, np.float32)
    columns = np.concatenate([y, np.zeros((N, 1), np.float32), bad, signed, 1e30 * y], axis=1)
    z, info = propagate(graph, columns, 0.3)
    alone, _ = propagate(graph, y, 0.3)
    np.testing.assert_array_equal(z[:, :3], alone)
    assert not np.asarray(z[:, 3]).any()
    assert np.isnan(np.asarray(z[:, 4])).all()
    exact = np.linalg.solve(np.eye(N) - 0.3 * w, signed)
    np.testing.assert_allclose(z[:, 5:6], exact, atol=1e-5)
    np.testing.assert_allclose(z[:, 6:] / 1e30, alone, rtol=1e-6)
    assert np.asarray(info.steps)[3] == 0
    assert list(np.asarray(info.converged)) == [True] * 4 + [False] + [True] * 4
    _, cut = propagate(graph, y, 0.3, max_steps=2)
    assert not np.asarray(cut.converged).any()
    assert (np.asarray(cut.steps) == 2).all()


def test_rows_over_devices_and_a_traced_alpha():
    _, lists, y = case(60)
    graph = normalized_graph(*lists)
    alone, _ = propagate(graph, y, 0.3)
    mesh = points_mesh(2)
    there = normalized_graph(*(spread(part, mesh, fill=-1) for part in lists))
    z, _ = propagate(there, y, 0.3)
    np.testing.assert_allclose(everywhere(z), alone, rtol=1e-6)
    traced, _ = jax.jit(lambda alpha: propagate(graph, y, alpha))(jnp.float32(0.3))
    np.testing.assert_allclose(traced, alone, atol=1e-5)
