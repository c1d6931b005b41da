"""Edges in the order of their targets, by XLA and by NumPy, against a stable sort."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.kernels import edges, graph

TARGETS = {
    "no edges": (np.zeros(0, np.int32), 3),
    "one": (np.array([1]), 2),
    "nowhere": (np.full(9, 4), 4),
    "some nowhere": (np.random.default_rng(2).integers(0, 5, 300), 4),
    "few points": (np.random.default_rng(0).integers(0, 4, 300), 3),
    "more points than edges": (np.random.default_rng(1).integers(0, 701, 90), 700),
    "a hub": (np.where(np.arange(500) % 3, 499, np.arange(500)), 500),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("word_bits", [32, 13, 10])
def test_is_a_stable_sort(monkeypatch, name, word_bits):
    """Shorter words have a digit or several: 3 bits of 13, of 300 edges."""
    monkeypatch.setattr(edges, "_WORD_BITS", word_bits)
    targets, n = TARGETS[name]
    order = np.argsort(targets, kind="stable")
    starts = np.searchsorted(targets[order], np.arange(n + 1))
    given = jnp.asarray(targets.astype(np.int32))
    for sort in (edges.by_target, edges.by_target_on_host):
        found = sort(given, n)
        assert found.order.dtype == found.starts.dtype == jnp.int32
        np.testing.assert_array_equal(found.order[: starts[-1]], order[: starts[-1]])
        np.testing.assert_array_equal(found.starts, starts)
        assert found.order.shape == targets.shape
        assert ((np.asarray(found.order) >= 0) & (found.order < max(len(targets), 1))).all()


def test_a_graph_on_the_host_is_sorted_by_numpy(monkeypatch):
    """Arrays alone: what is traced is not there yet."""
    sorted_here = []

    def watched(targets, n):
        sorted_here.append(n)
        return edges.by_target_on_host(targets, n)

    monkeypatch.setattr(graph, "by_target_on_host", watched)
    lists = np.array([[1], [2], [0]]), np.ones((3, 1), np.float32)
    graph.normalized_graph(*lists)
    jax.jit(graph.normalized_graph)(*lists)
    assert sorted_here == ([3] if jax.default_backend() == "cpu" else [])
