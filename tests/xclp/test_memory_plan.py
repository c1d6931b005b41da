"""A labeling within a limit of memory: the same labels by smaller blocks, or one line of refusal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.errors import BeyondMemory
from jaxfed.federation.execution.settings import Execution, bytes_text
from jaxfed.kernels import conjugate_gradient, knn, knn_in_parts
from jaxfed.kernels.devices import footprint
from jaxfed.kernels.graph import graph_bytes, normalized_graph
from jaxfed.xclp import Parameters, algorithm, memory_plan, propagate_labels

MB = 10**6
POINTS, CLASSES = 2000, 40  # few enough that the search in one piece takes more than the system
SETTINGS = {"num_classes": CLASSES, "num_bits": 256, "tolerance": 1e-6}


@pytest.fixture(scope="module")
def clients():
    rng = np.random.default_rng(0)
    truth = rng.integers(CLASSES, size=POINTS)
    vectors = 2 * rng.standard_normal((CLASSES, 48))[truth] + rng.standard_normal((POINTS, 48))
    labels = np.where(rng.random(POINTS) < 0.1, truth, -1)
    return np.array_split(vectors.astype(np.float32), 3), np.array_split(labels, 3)


def plan_of(limit, p=None):
    """Points of a part, and bytes of each stage."""
    found = []

    class Watched(Execution):
        def take_stages(self, what, stages):
            found.append(stages)

    execution = Watched(memory_limit=limit)
    p = p or Parameters(**SETTINGS)
    part = memory_plan.planned_part("labeling", POINTS, 48, p, execution)
    return part, found[0]


def most_bytes(plan):
    return max(plan[1].values())


def test_the_same_labels_under_a_limit(clients):
    """Bit for bit, as codes come in parts."""
    free = propagate_labels(*clients, **SETTINGS)
    limit, said = 6 * MB, []
    plan = plan_of(limit)
    assert plan[0]
    assert most_bytes(plan) <= limit
    held = propagate_labels(
        *clients, **SETTINGS, execution=Execution(memory_limit=limit, tell=said.append)
    )
    held_to = f"of {bytes_text(limit)} (execution.memory_limit={limit})"
    taken = bytes_text(most_bytes(plan))
    stages = ", ".join(f"{name} {bytes_text(size)}" for name, size in plan[1].items())
    assert said == [f"memory: labeling of 2,000 points ({stages}) takes {taken} {held_to}"]
    for ours, theirs in zip(held, free, strict=True):
        np.testing.assert_array_equal(ours.labels, theirs.labels)
        np.testing.assert_array_equal(ours.scores, theirs.scores)


def test_parts_are_smaller_the_smaller_the_limit():
    tight, loose = plan_of(6 * MB), plan_of(1000 * MB)
    assert loose[0] is None
    assert tight[0] in (1024, 2048)
    assert list(tight[1])[1] == f"neighbors in parts of {tight[0]:,} points"
    assert list(loose[1]) == ["codes", "neighbors", "graph", "propagation"]


def test_what_cannot_be_kept_is_refused_with_the_smallest_that_can(clients, monkeypatch):
    monkeypatch.setattr(algorithm, "client_codes", None)  # nothing is computed first
    with pytest.raises(
        BeyondMemory, match=r"execution.memory_limit='1 kB': labeling of 2,000"
    ) as no:
        propagate_labels(*clients, **SETTINGS, execution=Execution(memory_limit="1 kB"))
    message = str(no.value)
    smallest = int(message.split("use ")[1].split()[0])
    assert "\n" not in message
    assert most_bytes(plan_of(smallest)) == smallest
    assert most_bytes(plan_of(smallest - 1)) == smallest


def test_what_was_analyzed_is_not_compiled_again(caplog):
    bits = np.random.default_rng(1).integers(2**32, size=(1000, 8), dtype=np.uint32)
    with jax.log_compiles():
        knn.hamming_knn_footprint(1000, 8, 5)
        knn.hamming_knn(bits, 5)
    compiled = [line for line in caplog.messages if line.startswith("Finished XLA compilation")]
    assert sum("jit(_hamming_knn)" in line for line in compiled) == 1


@pytest.mark.parametrize(
    ("n", "k", "part_points"), [(700, 7, 256), (700, 1, 300), (50, 60, 64), (200, 150, 32)]
)
@pytest.mark.sample(2)
def test_neighbors_in_parts_are_those_in_one_piece(n, k, part_points):
    bits = np.random.default_rng(2).integers(4, size=(n, 2), dtype=np.uint32)  # many are equal
    found = knn_in_parts.hamming_knn_in_parts(bits, k, part_points=part_points)
    for ours, theirs in zip(found, knn.hamming_knn(bits, k), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_parts_are_the_largest_that_take_no_more():
    limit = knn_in_parts.footprint_of_parts(2048, 8, 10).total
    part = knn_in_parts.part_within(2 * limit, 10**6, 8, 10)
    assert part >= 2048
    assert knn_in_parts.footprint_of_parts(part, 8, 10).total <= 2 * limit
    assert knn_in_parts.part_within(1, 10**6, 8, 10) == knn_in_parts.SMALLEST_PART


def test_parts_are_those_that_fit_whatever_was_estimated(monkeypatch):
    limit = knn_in_parts.footprint_of_parts(2048, 8, 10).total
    monkeypatch.setattr(knn_in_parts, "_estimate", lambda *_: 0)
    assert knn_in_parts.part_within(limit, 4000, 8, 10) == 2048
    assert knn_in_parts.part_within(1 << 40, 4000, 8, 10) == 4096  # all of them


def test_codes_take_pi_and_two_blocks_of_vectors():
    blocks = 2 * 2048 * (4 * 48 + 256 // 8)
    assert plan_of(1000 * MB)[1]["codes"] == 4 * 256 * (48 + 256) + blocks


@pytest.mark.slow
@pytest.mark.parametrize("columns", [20, 70, 4])
def test_bounds_of_graph_and_system_hold(columns):
    n, k = 4096, 10
    shapes = [jax.ShapeDtypeStruct((n, k), dtype) for dtype in (jnp.int32, jnp.float32)]
    whole = jax.eval_shape(normalized_graph, *shapes)
    overflow = {
        name: jax.ShapeDtypeStruct((n // 6, *part.shape[1:]), part.dtype)
        for name, part in whole._asdict().items()
        if name.startswith("overflow")
    }
    y = jax.ShapeDtypeStruct((n, columns), jnp.float32)
    solved = jax.jit(lambda graph, y: conjugate_gradient.propagate(graph, y, 0.99))
    taken = footprint(solved, whole._replace(**overflow), y).total
    assert taken <= conjugate_gradient.propagation_bytes(n, k, columns)
    building = footprint(jax.jit(normalized_graph), *shapes).total
    assert building <= graph_bytes(n, k)
