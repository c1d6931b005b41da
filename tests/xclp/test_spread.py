"""XCLP with its graph over two devices, against the same on one."""

import numpy as np
import pytest
from dense_xclp import clustered_clients

from jaxfed.federation.execution import Execution
from jaxfed.kernels import knn
from jaxfed.kernels.devices import mesh_of, points_mesh
from jaxfed.xclp import Parameters, cross_client_label_propagation
from jaxfed.xclp.steps import propagation_matrix

SIZES = (40, 0, 25, 61)
TWO = Execution(num_devices=2)
SWITCHES = [
    {},
    {"influence": "columns"},
    {"label_matrix": "class_balanced", "confidence": "calibrated"},
]


@pytest.fixture
def meshes(monkeypatch):
    """What the points of searches and of systems are spread over."""
    found = {"search": [], "system": []}

    def watched(function, seen, points_of):
        def watching(first, *arguments, **keywords):
            seen.append(mesh_of(points_of(first)))
            return function(first, *arguments, **keywords)

        return watching

    search = watched(knn.hamming_knn, found["search"], lambda x: x)
    monkeypatch.setattr(knn, "hamming_knn", search)
    solve = watched(propagation_matrix.propagate, found["system"], lambda graph: graph.neighbors)
    monkeypatch.setattr(propagation_matrix, "propagate", solve)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_labels_over_two_devices_are_those_of_one(meshes, switches):
    vectors, labels, _ = clustered_clients(SIZES)
    p = Parameters(num_classes=3, num_bits=512, **switches)
    alone = cross_client_label_propagation(vectors, labels, p)
    assert {*meshes["search"], *meshes["system"]} == {None}  # by default: they are one CPU's
    for seen in meshes.values():
        seen.clear()
    both = cross_client_label_propagation(vectors, labels, p, TWO)
    assert set(meshes["search"]) == set(meshes["system"]) == {points_mesh(2)}
    for one, other in zip(alone.predictions, both.predictions, strict=True):
        np.testing.assert_array_equal(one.labels, other.labels)
        np.testing.assert_allclose(one.scores, other.scores, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(
        np.concatenate(alone.artifacts.codes), np.concatenate(both.artifacts.codes)
    )


def test_neighbors_over_devices_are_remembered():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, (10, 2), dtype=np.uint32)
    remembering = Execution(memory={}, num_devices=2)
    found = [remembering.once(knn.hamming_knn, remembering.spread(bits), 3) for _ in range(2)]
    assert found[0] is found[1]
