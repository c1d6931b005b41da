"""The graph and label propagation over it, against dense float64 and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_kernels as reference

from jaxfed.kernels import conjugate_gradient
from jaxfed.kernels.components import reachable
from jaxfed.kernels.conjugate_gradient import propagate
from jaxfed.kernels.graph import (
    add_product,
    normalized_graph,
    scaled,
    subtract_product,
)
from jaxfed.kernels.knn import cosine_knn


def knn_lists(n, k, seed=0, hub=False):
    """Distinct neighbors and weights of every point; with `hub`, everybody's first is point 0."""
    rng = np.random.default_rng(seed)
    indices = np.stack([rng.permutation(np.delete(np.arange(n), i))[:k] for i in range(n)])
    if hub:
        for i in range(1, n):
            indices[i] = np.concatenate([[0], indices[i][indices[i] != 0]])[:k]
    return indices.astype(np.int32), rng.uniform(-0.2, 1, (n, k)).astype(np.float32)


def product(graph, x):
    return add_product(graph, jnp.zeros_like(x), x)


def dense(graph, n):
    return np.asarray(product(graph, jnp.eye(n, dtype=jnp.float32)))


# What is not about sizes is of 40 points with 4 neighbors and 3 classes, whose programs are compiled once.
GRAPHS = {
    "usual": lambda: knn_lists(40, 4),
    "one neighbor": lambda: knn_lists(9, 1),
    "everybody": lambda: knn_lists(8, 7),
    "many slots": lambda: knn_lists(90, 40),
    "hub": lambda: knn_lists(60, 3, hub=True),
    "missing neighbors": lambda: (
        np.where(knn_lists(40, 4)[0] % 3 == 0, -1, knn_lists(40, 4)[0]),
        knn_lists(40, 4)[1],
    ),
    "no edges": lambda: (knn_lists(6, 2)[0], -np.ones((6, 2), np.float32)),
    "one point": lambda: (np.full((1, 2), -1, np.int32), np.ones((1, 2), np.float32)),
    "listed twice": lambda: (np.array([[1, 1], [0, 2], [1, 1]]), np.ones((3, 2), np.float32)),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.sample(2)
def test_is_the_dense_graph(name):
    """Unused slots name their own row: whoever follows edges need not ask which slots are used."""
    indices, weights = GRAPHS[name]()
    expected = reference.normalized_graph(indices, weights)
    for graph in (normalized_graph(indices, weights), jax.jit(normalized_graph)(indices, weights)):
        np.testing.assert_allclose(dense(graph, len(indices)), expected, atol=1e-6)
        assert unused_name_their_own_row(graph)


def unused_name_their_own_row(graph):
    whole = np.arange(len(graph.neighbors)), graph.neighbors, graph.weights
    overflow = graph.overflow_rows, graph.overflow_neighbors, graph.overflow_weights
    return all(
        ((neighbors == rows[:, None]) | (weights > 0)).all()
        for rows, neighbors, weights in (whole, overflow)
    )


@pytest.mark.parametrize("index", [-9, 40, 2**31 - 1])
def test_inside_jit_an_index_out_of_range_is_no_edge(index):
    indices, weights = knn_lists(40, 4)
    indices[5, 1] = index
    expected = weights.copy()
    expected[5, 1] = 0
    graph = jax.jit(normalized_graph)(indices, weights)
    np.testing.assert_allclose(
        dense(graph, 40), dense(normalized_graph(knn_lists(40, 4)[0], expected), 40), atol=1e-6
    )


def test_product_with_the_system_and_with_the_graph_agree():
    graph = normalized_graph(*knn_lists(40, 4, hub=True))
    x = jnp.asarray(np.random.default_rng(0).standard_normal((40, 40)), jnp.float32)
    np.testing.assert_allclose(
        subtract_product(scaled(graph, jnp.float32(0.9)), x, x),
        x - 0.9 * product(graph, x),
        atol=1e-5,
    )


def test_reachable_follows_edges_both_ways_and_through_hubs():
    indices = np.array([[1], [2], [1], [4], [3], [-1]])
    graph = normalized_graph(indices, np.ones((6, 1), np.float32))
    start = np.zeros(6, bool)
    start[2] = True
    np.testing.assert_array_equal(
        reachable(graph, jnp.asarray(start)), [True, True, True, False, False, False]
    )
    indices, weights = knn_lists(40, 4, hub=True)
    graph = normalized_graph(indices, np.abs(weights) + 0.1)
    assert reachable(graph, jnp.arange(40) == 7).all()


def one_hot(n, num_classes, labeled=0.3, seed=0):
    rng = np.random.default_rng(seed)
    y = np.eye(num_classes, dtype=np.float32)[rng.integers(num_classes, size=n)]
    return y * (rng.random(n) < labeled)[:, None]


@pytest.mark.gpu
@pytest.mark.parametrize("alpha", [0.1, 0.9, 0.99, 0.999])
@pytest.mark.parametrize("num_classes", [1, 5, 10, 62, 150])
@pytest.mark.sample(2)
def test_solves_the_dense_system(alpha, num_classes):
    indices, weights = knn_lists(40, 4)
    y = one_hot(40, num_classes)
    graph = normalized_graph(indices, weights)
    z, info = propagate(graph, y, alpha, tolerance=1e-6)
    exact = reference.propagate(reference.normalized_graph(indices, weights), y, alpha)
    np.testing.assert_allclose(z, exact, atol=3e-6 * max(exact.max(), 1) / (1 - alpha) ** 0.5)
    assert z.dtype == jnp.float32
    assert info.steps.shape == info.residual.shape == info.converged.shape == (num_classes,)
    empty = ~y.any(axis=0)
    np.testing.assert_array_equal(np.asarray(z)[:, empty], 0)
    np.testing.assert_array_equal(np.asarray(info.steps)[empty], 0)


@pytest.mark.gpu
def test_reported_residual_is_the_true_one():
    indices, weights = knn_lists(200, 5)
    y = one_hot(200, 10)
    graph = normalized_graph(indices, weights)
    z, info = propagate(graph, y, 0.99, tolerance=2e-6)
    w = reference.normalized_graph(indices, weights)
    residual = y - (np.asarray(z, np.float64) - 0.99 * w @ np.asarray(z, np.float64))
    true = np.linalg.norm(residual, axis=0) / np.linalg.norm(y, axis=0)
    assert info.converged.all()
    assert (true <= 2.2e-6).all()
    size = np.linalg.norm(z, axis=0) / np.linalg.norm(y, axis=0)
    assert (np.abs(info.residual - true) <= 5e-8 * size).all()  # float32's error of evaluating it


def test_a_hub_of_thousands_is_not_lost_in_rounding():
    """What a hub gets of each of many is far below what it has: one by one, sums went astray by 1.5e-4."""
    indices = np.zeros((4097, 3), np.int32)
    indices[0] = -1
    graph = normalized_graph(indices, np.ones(indices.shape, np.float32))
    y = np.eye(4097, 1, dtype=np.float32)
    z, info = propagate(graph, y, 0.1)
    z, root = np.asarray(z, np.float64)[:, 0], np.sqrt(4096.0)
    left = y[:, 0] - z  # W_0j = 1 / 64
    left[0] += 0.1 * z[1:].sum() / root
    left[1:] += 0.1 * z[0] / root
    assert info.converged.all()
    assert np.linalg.norm(left) <= 1e-6


@pytest.mark.parametrize("tolerance", [1e-6, 1e-8])
@pytest.mark.sample(1)
def test_a_tolerance_below_rounding_ends_at_rounding(tolerance):
    """And not far above it: at such alpha float32 leaves more than was asked, steps after that nothing."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        vectors = rng.standard_normal((256, 6)).astype(np.float32)
        indices, cosines = cosine_knn(jnp.asarray(vectors), 3)
        y = np.eye(256, dtype=np.float32)[:, rng.choice(256, 48, replace=False)]
        weights = jnp.maximum(cosines, 0)
        graph = normalized_graph(indices, weights)
        z, info = propagate(graph, y, 0.999, tolerance=tolerance, max_steps=300)
        assert info.residual.max() < 3e-5
        # The recursion's residual is far below the true one here, which is what is told.
        w = reference.normalized_graph(np.asarray(indices), np.asarray(weights))
        z = np.asarray(z, np.float64)
        true = np.linalg.norm(y - (z - 0.999 * w @ z), axis=0)
        assert (np.abs(info.residual - true) <= 1e-7 * np.linalg.norm(z, axis=0)).all()
        assert not info.converged[true > 2 * tolerance].any()
        if (
            tolerance == 1e-6
        ):  # the recursion gets there, the true residual does not, and that is seen
            assert info.steps.max() <= 150


@pytest.mark.gpu
def test_columns_do_not_depend_on_their_companions(monkeypatch):
    graph = normalized_graph(*knn_lists(40, 4))
    y = one_hot(40, 12)
    together = propagate(graph, y, 0.99, tolerance=1e-6)[0]
    for columns in (slice(0, 1), slice(3, 12)):
        alone = propagate(graph, y[:, columns], 0.99, tolerance=1e-6)[0]
        np.testing.assert_allclose(alone, together[:, columns], atol=3e-5 * float(together.max()))
    monkeypatch.setattr(conjugate_gradient, "_block_columns", lambda n: 4)
    blocked = propagate(graph, y, 0.99, tolerance=1e-6)[0]
    np.testing.assert_allclose(blocked, together, atol=3e-5 * float(together.max()))


def test_the_largest_labels_and_a_power_of_two_change_nothing_else():
    indices, weights = knn_lists(40, 4)
    graph = normalized_graph(indices, np.abs(weights))
    y = np.asarray(np.random.default_rng(5).random((40, 3)), np.float32)
    z, _ = propagate(graph, y, 0.2)
    for power in (-90, 120):
        of_scaled, _ = propagate(graph, np.ldexp(y, power), 0.2)
        np.testing.assert_array_equal(of_scaled, np.ldexp(np.asarray(z), power))
    largest = np.zeros((40, 3), np.float32)
    largest[3, 0] = 3e38
    assert np.asarray(propagate(graph, largest, 0.01)[0])[3, 0] > 2.9e38


def test_a_column_that_is_not_finite_ends_and_says_so():
    graph = normalized_graph(*knn_lists(40, 4))
    y = one_hot(40, 3)
    y[0, 1] = np.nan
    z, info = propagate(graph, y, 0.9)
    np.testing.assert_array_equal(info.converged, [True, False, True])
    assert np.isfinite(z[:, [0, 2]]).all()
    assert np.isnan(z[:, 1]).all()
    assert np.isnan(info.residual[1])


def test_a_graph_that_is_not_finite_ends_and_says_so():
    """Which is refused outside of jit."""
    indices, weights = knn_lists(40, 4)
    weights[3, 1] = np.inf
    solve = jax.jit(lambda weights, y: propagate(normalized_graph(indices, weights), y, 0.9))
    z, info = solve(weights, one_hot(40, 3))
    assert not info.converged.any()
    assert np.isnan(z).any(axis=0).all()


def test_components_without_labels_stay_exactly_zero():
    near, far = knn_lists(20, 4), knn_lists(20, 4)
    indices = np.concatenate([near[0], far[0] + 20])
    graph = normalized_graph(indices, np.concatenate([near[1], far[1]]))
    y = np.zeros((40, 3), np.float32)
    y[3, 0] = y[5, 1] = y[6, 2] = 1
    z = propagate(graph, y, 0.99)[0]
    np.testing.assert_array_equal(z[20:], 0)


def test_over_many_graphs_at_once():
    lists = [knn_lists(40, 4, seed=seed) for seed in range(3)]
    y = np.stack([one_hot(40, 3, seed=seed) for seed in range(3)])

    def solve(indices, weights, y):
        return propagate(normalized_graph(indices, weights), y, 0.95)[0]

    stacked = [np.stack(part) for part in zip(*lists, strict=True)]
    together = jax.jit(jax.vmap(solve))(*stacked, y)
    for row, (indices, weights) in enumerate(lists):
        np.testing.assert_allclose(together[row], solve(indices, weights, y[row]), atol=1e-4)


def test_max_steps_is_kept_and_told():
    graph = normalized_graph(*knn_lists(40, 4))
    _, info = propagate(graph, one_hot(40, 3), 0.999, max_steps=3)
    assert (info.steps <= 3).all()
    assert not info.converged.any()


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_lowers_for_accelerators(platform):
    indices, weights = knn_lists(64, 4)

    def solve(indices, weights, y):
        return propagate(normalized_graph(indices, weights), y, 0.99)

    lowered = jax.jit(solve).trace(indices, weights, one_hot(64, 20))
    assert "while" in lowered.lower(lowering_platforms=(platform,)).as_text()
