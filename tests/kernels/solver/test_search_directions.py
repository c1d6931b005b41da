"""Columns that share search directions: fewer steps, and nothing wrong where they depend on each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_kernels as reference
from scipy import sparse

from jaxfed.kernels import conjugate_gradient
from jaxfed.kernels.conjugate_gradient import propagate
from jaxfed.kernels.graph import normalized_graph
from jaxfed.kernels.knn import cosine_knn

NUM_CLUSTERS = 6


@pytest.fixture(autouse=True, scope="module")
def few_points_will_do():
    """A size that no other test has: programs are compiled once for a shape."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conjugate_gradient, "FEWEST_POINTS", 0)
        yield


@pytest.fixture(scope="module")
def clusters():
    """Lists of neighbors around six centers, one-hot labels of a fifth of the points, and W in float64."""
    rng = np.random.default_rng(0)
    truth = rng.integers(NUM_CLUSTERS, size=599)
    centers = 0.8 * rng.standard_normal((NUM_CLUSTERS, 20))
    vectors = (centers[truth] + rng.standard_normal((599, 20))).astype(np.float32)
    indices, cosines = cosine_knn(jnp.asarray(vectors), 6)
    y = np.eye(NUM_CLUSTERS, dtype=np.float32)[truth] * (rng.random(599) < 0.2)[:, None]
    weights = jnp.maximum(cosines, 0)
    w = sparse.csr_array(reference.normalized_graph(np.asarray(indices), np.asarray(weights)))
    return normalized_graph(indices, weights), y, w


def residuals(w, z, y, alpha):
    z = np.asarray(z, np.float64)
    left = np.linalg.norm(y - (z - alpha * (w @ z)), axis=0)
    size = np.linalg.norm(y, axis=0)
    return left / np.where(size > 0, size, 1)


@pytest.mark.slow
def test_few_columns_take_fewer_steps_together(clusters):
    graph, y, w = clusters
    z, together = propagate(graph, y, 0.99, tolerance=2e-6)
    assert together.converged.all()
    size = np.linalg.norm(z, axis=0) / np.linalg.norm(y, axis=0)
    rounding = 5e-8 * size  # float32's error of evaluating a residual
    assert (residuals(w, z, y, 0.99) <= 2e-6 + rounding).all()
    alone = [
        int(propagate(graph, y[:, [column]], 0.99, tolerance=2e-6)[1].steps[0])
        for column in range(NUM_CLUSTERS)
    ]
    assert int(together.steps.max()) <= 0.75 * max(alone)
    # Beyond 16 every column goes by itself.
    _, many = propagate(graph, np.tile(y, 3)[:, :17], 0.99, tolerance=2e-6)
    np.testing.assert_allclose(many.steps[:NUM_CLUSTERS], alone, atol=1)


DEPENDENT = {
    "twice the same": lambda y: np.concatenate([y, y], axis=1),
    "multiples": lambda y: np.stack([y[:, 0], -3 * y[:, 0], 1e-6 * y[:, 1]], axis=1),
    "a sum": lambda y: np.concatenate([y, y.sum(axis=1, keepdims=True)], axis=1),
    "nearly the same": lambda y: y[:, :1] + 1e-4 * y[:, :3],
    "none": lambda y: np.concatenate([y, np.zeros_like(y)], axis=1),
    "more than points with labels": lambda y: (
        np.where(np.arange(len(y)) == 3, 1, 0)[:, None] * np.arange(1, 13, dtype=np.float32)
    ),
}


@pytest.mark.parametrize("columns", DEPENDENT.values(), ids=DEPENDENT)
def test_columns_that_depend_on_each_other(clusters, columns):
    graph, y, w = clusters
    y = columns(y).astype(np.float32)
    y = np.pad(y, ((0, 0), (0, 12 - y.shape[1])))  # one program for all
    z, info = propagate(graph, y, 0.95, tolerance=2e-6)
    assert info.converged.all()
    assert info.steps.max() <= 40
    assert (residuals(w, z, y, 0.95) <= 2.2e-6).all()
    np.testing.assert_array_equal(np.asarray(z)[:, ~y.any(axis=0)], 0)


def test_one_that_is_not_finite_spoils_no_other(clusters):
    graph, y, w = clusters
    spoiled = y.copy()
    spoiled[7, 2] = np.nan
    z, info = propagate(graph, spoiled, 0.99, tolerance=2e-6)
    others = np.delete(np.arange(NUM_CLUSTERS), 2)
    np.testing.assert_array_equal(info.converged, np.arange(NUM_CLUSTERS) != 2)
    assert (residuals(w, z[:, others], y[:, others], 0.99) <= 2.2e-6).all()


def test_over_columns_of_many_graphs(clusters):
    """Under vmap the factors of all graphs' G are a batch."""
    graph, y, _ = clusters
    both = jax.tree.map(lambda x: jnp.stack([x, x]), graph)
    together = jax.vmap(lambda graph, y: propagate(graph, y, 0.9)[0])(
        both, np.stack([y, y[:, ::-1]])
    )
    np.testing.assert_allclose(together[1][:, ::-1], together[0], atol=1e-4)
