"""Graph, products and propagation with rows over devices, against the same on one.

Four devices have a process of their own: `test_spread`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_kernels as reference

from jaxfed.errors import UsageError
from jaxfed.kernels import conjugate_gradient
from jaxfed.kernels.components import components
from jaxfed.kernels.conjugate_gradient import propagate, propagate_centered
from jaxfed.kernels.devices import ROWS, by_rows, everywhere, mesh_of, points_mesh, spread
from jaxfed.kernels.graph import GRAPH_ROWS, Graph, add_product, normalized_graph

N = 68
DEVICES = [
    pytest.param(count, id=f"{count}_devices") for count in (2, 4) if count <= jax.device_count()
]


def lists(n, k, seed=0):
    """Neighbors in two groups, even and odd points; everybody's first is one of two hubs of its group."""
    rng = np.random.default_rng(seed)
    half = n // 2
    indices = np.stack(
        [rng.permutation(np.delete(np.arange(half), i % half))[:k] for i in range(n)]
    ).astype(np.int32)
    indices[:, 0] = np.where(np.arange(n) % half == 3, 4, 3)
    indices[half:] += half
    weights = rng.uniform(-0.2, 1, (n, k)).astype(np.float32)
    weights[5] = 0
    indices[6] = -1
    weights[7], weights[indices == 7] = 0, 0  # alone
    number = np.concatenate([np.arange(0, n, 2), np.arange(1, n, 2)]).astype(np.int32)
    named = np.where(indices >= 0, number[indices], -1)
    order = np.argsort(number)
    return named[order], weights[order]


def graph_over(num_devices, n=N, k=4):
    mesh = points_mesh(num_devices)
    indices, weights = lists(n, k)
    return normalized_graph(
        spread(indices, mesh, fill=-1), spread(weights, mesh)
    ), normalized_graph(indices, weights)


def product_of(graph, x):
    """W X, of a graph on one device or over several."""
    mesh = mesh_of(graph.neighbors)
    x = jnp.asarray(x) if mesh is None else spread(x, mesh)

    def product(rows):
        return lambda graph, x: add_product(graph, jnp.zeros_like(x), x, rows)

    return everywhere(jax.jit(by_rows(product, mesh, takes=(GRAPH_ROWS, ROWS)))(graph, x))


@pytest.mark.parametrize("num_devices", DEVICES)
def test_is_the_graph_of_one_device(num_devices):
    there, here = graph_over(num_devices)
    assert {mesh_of(part) for part in there} == {mesh_of(there.neighbors)}
    assert len(there.neighbors.sharding.device_set) == num_devices
    assert here.overflow_rows.size
    eye = np.eye(N, dtype=np.float32)
    product = product_of(there, eye)
    np.testing.assert_allclose(product, reference.normalized_graph(*lists(N, 4)), atol=1e-6)
    np.testing.assert_allclose(everywhere(there.root_degrees), here.root_degrees, rtol=1e-6)
    # Its parts together are a graph like any other.
    whole = Graph(*everywhere(there))
    np.testing.assert_array_equal(whole.overflow_rows, np.sort(whole.overflow_rows))
    is_own = whole.overflow_neighbors == whole.overflow_rows[:, None]
    assert is_own[whole.overflow_weights == 0].all()
    np.testing.assert_allclose(product_of(whole, eye), product, atol=1e-6)


@pytest.mark.parametrize("num_devices", DEVICES)
def test_components_are_those_of_one_device(num_devices):
    there, here = map(components, graph_over(num_devices))
    np.testing.assert_array_equal(everywhere(there.root), here.root)
    np.testing.assert_allclose(everywhere(there.volume), here.volume, rtol=1e-5)
    assert len(set(np.asarray(here.root).tolist())) > 2


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", DEVICES)
def test_propagates_as_one_device(num_devices, monkeypatch):
    num_classes = 40
    monkeypatch.setattr(conjugate_gradient, "_block_columns", lambda n: 16)
    there, here = graph_over(num_devices)
    rng = np.random.default_rng(0)
    y = np.eye(num_classes, dtype=np.float32)[rng.integers(num_classes, size=N)]
    y *= (rng.random(N) < 0.3)[:, None]
    y[1::2] = 0
    expected, _ = propagate(here, y, 0.99, tolerance=4e-6)
    z, info = propagate(there, y, 0.99, tolerance=4e-6)
    assert mesh_of(z) == mesh_of(there.neighbors)
    z = np.asarray(everywhere(z))
    assert info.residual.max() <= 4e-6
    assert info.converged.all()
    np.testing.assert_allclose(z, expected, atol=3e-5 * np.abs(expected).max())
    np.testing.assert_array_equal(z.argmax(axis=1), np.asarray(expected).argmax(axis=1))
    assert not z[1::2].any()  # no label reaches the other group


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", DEVICES)
def test_propagates_beside_leading_eigenvectors(num_devices):
    there, here = graph_over(num_devices)
    y = np.random.default_rng(1).standard_normal((N, 3)).astype(np.float32)
    y[N // 2 :] *= 1e-30  # units are of all rows
    expected, _ = propagate_centered(here, components(here), y, 1.0)
    z, info = propagate_centered(there, components(there), y, 1.0)
    assert info.converged.all()
    np.testing.assert_allclose(everywhere(z), expected, atol=3e-5 * float(jnp.abs(expected).max()))


@pytest.mark.slow
def test_a_device_gathers_one_block_of_columns_and_keeps_its_rows():
    """No array of the compiled program has all rows and all columns."""
    n, num_columns, width = 512, 96, 16
    there, _ = graph_over(2, n)
    y = spread(np.zeros((n, num_columns), np.float32), points_mesh(2))
    solve = conjugate_gradient._propagate.lower(
        there, y, 0.9, 1e-6, 10, block_columns=width, mesh=points_mesh(2)
    )
    program = solve.compile().as_text()
    assert f"f32[{n},{width}]" in program
    assert f"f32[{n},{num_columns}]" not in program
    assert f"f32[{n // 2},{width}]" in program


def test_an_index_beyond_the_last_point_of_all_devices_is_refused():
    indices, weights = (spread(part, points_mesh(2)) for part in lists(N, 4))
    with pytest.raises(UsageError, match="outside"):
        normalized_graph(indices + 2 * N, weights)


def test_propagation_over_devices_lowers_for_gpus():
    there, _ = graph_over(2)
    traced = conjugate_gradient._propagate.trace(
        there, np.zeros((N, 3), np.float32), 0.9, 1e-6, 10, block_columns=16, mesh=points_mesh(2)
    )
    program = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "all_gather" in program
    assert "all_reduce" in program
