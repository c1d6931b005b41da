"""Components and what is left without their leading eigenvectors, against dense NumPy and SciPy."""

import jax.numpy as jnp
import numpy as np
import pytest
import reference_kernels as reference
from scipy.sparse.csgraph import connected_components

from jaxfed.kernels.components import component_sums, components, without_leading
from jaxfed.kernels.conjugate_gradient import propagate, propagate_centered
from jaxfed.kernels.graph import normalized_graph


def graph_in_parts(sizes, k=3, seed=0):
    """Up to k of 3 random neighbors within parts of these sizes, shuffled; a part of one has no edges."""
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    place = rng.permutation(n)
    indices, weights = np.full((n, 3), -1, np.int32), np.zeros((n, 3), np.float32)
    start = 0
    for size in sizes:
        for own in range(size) if size > 1 else ():
            others = np.setdiff1d(np.arange(size), [own])
            found = rng.choice(others, min(k, len(others)), replace=False)
            # A chain holds the part together, whatever was drawn.
            found[0] = own + 1 if own + 1 < size else own - 1
            found = np.unique(found)
            indices[place[start + own], : len(found)] = place[start + found]
            weights[place[start + own], : len(found)] = rng.uniform(0.1, 1, len(found))
        start += size
    return indices, weights


PARTS = {  # 40 points each, whose programs are compiled once
    "one": [40],
    "several": [30, 7, 2, 1],
    "pairs, which are bipartite": [2] * 20,
    "points without edges": [1] * 40,
    "a long chain": [40],
}


@pytest.fixture(params=PARTS, scope="module")
def parts(request):
    indices, weights = graph_in_parts(PARTS[request.param], k=1 if "chain" in request.param else 3)
    return normalized_graph(indices, weights), reference.normalized_graph(indices, weights)


def dense_leading(w, graph):
    """(component of every point, projection on v_K of all components), float64."""
    _, part = connected_components(w > 0)
    v = np.where(
        part[:, None] == part, np.asarray(graph.root_degrees, float), 0
    )  # rows: components
    v = np.unique(v, axis=0)
    v = v[(v > 0).any(axis=1)]
    v = v / np.linalg.norm(v, axis=1, keepdims=True)
    return part, v.T @ v


@pytest.mark.sample(2)
def test_components_are_those_of_scipy(parts):
    graph, w = parts
    found = components(graph)
    part, _ = dense_leading(w, graph)
    smallest = np.array([np.flatnonzero(part == own)[0] for own in part])
    np.testing.assert_array_equal(found.root, smallest)
    degree = np.asarray(graph.root_degrees, float) ** 2
    np.testing.assert_allclose(found.volume, [degree[part == own].sum() for own in part], rtol=1e-5)
    ones = jnp.ones((len(w), 2))
    counts = [[np.sum(part == own)] * 2 for own in part]
    np.testing.assert_array_equal(component_sums(found.root, ones), counts)


@pytest.mark.sample(3)
@pytest.mark.gpu
@pytest.mark.parametrize("alpha", [0.5, 0.99, 0.9999, 1.0])
def test_solves_beside_the_leading_eigenvectors(parts, alpha):
    graph, w = parts
    n, (_, leading) = len(w), dense_leading(w, graph)
    y = np.zeros((n, 3), np.float32)
    y[np.arange(0, n, 4), np.arange(0, n, 4) % 3] = 1
    z, info = propagate_centered(graph, components(graph), y, alpha)
    inverse = np.linalg.inv(np.eye(n) - alpha * w + leading)  # as good as without, beside them
    expected = inverse @ (np.eye(n) - leading) @ y
    size = np.abs(expected).max() or 1
    np.testing.assert_allclose(z, expected, atol=5e-5 * size)
    # NumPy's product: a GPU's own would round to TF32.
    np.testing.assert_allclose(leading @ np.asarray(z), 0, atol=2e-6 * size)
    assert np.isfinite(info.residual).all()
    assert info.steps.max() <= 100  # a chain of 60 takes 64; more only where rounding is solved for


@pytest.mark.sample(2)
def test_at_alpha_below_one_only_the_leading_part_is_missing(parts):
    graph, w = parts
    y = np.eye(len(w), dtype=np.float32)[:, :2]
    whole, _ = propagate(graph, y, 0.9)
    rest, _ = propagate_centered(graph, components(graph), y, 0.9)
    _, leading = dense_leading(w, graph)
    np.testing.assert_allclose(rest + leading @ y / 0.1, whole, atol=2e-5)


def test_nothing_is_left_of_a_leading_eigenvector(parts):
    graph, _ = parts
    v = graph.root_degrees[:, None]
    np.testing.assert_allclose(without_leading(graph, components(graph), v), 0, atol=1e-6)
