"""Rows over devices: every number of them that there is here, and in a process of its own four."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import reference_kernels as reference
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from jaxfed.kernels import knn, nearest
from jaxfed.kernels.devices import (
    AXIS,
    ROWS,
    by_rows,
    everywhere,
    mesh_of,
    points_mesh,
    spread,
)

DEVICES = [
    pytest.param(count, id=f"{count}_devices") for count in (1, 2, 4) if count <= jax.device_count()
]


def codes(n, num_words=1, seed=0):
    """Four random bits a word: most distances are equal, many points too."""
    return np.random.default_rng(seed).integers(0, 16, (n, num_words), dtype=np.uint32)


def together(arrays, n):
    return [np.asarray(array)[:n] for array in everywhere(arrays)]


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.skipif(jax.device_count() > 2, reason="this is the process of its own")
def test_four_devices_pass_too():
    others = [
        str(Path(__file__).parents[1] / name)
        for name in ("test_spread_graph.py", "neighbors/test_symmetric_knn.py")
    ]
    flags = "--xla_force_host_platform_device_count=4"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "3_devices or 4_devices", __file__, *others],
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("num_devices", DEVICES)
@pytest.mark.parametrize("n", [1, 8, 11])
def test_rows_are_spread_in_order_and_come_together_again(num_devices, n):
    mesh = points_mesh(num_devices)
    array = np.arange(3 * n, dtype=np.int32).reshape(n, 3)
    there = spread(array, mesh, fill=-1)
    rows = -(-n // num_devices)
    assert [part.data.shape for part in there.addressable_shards] == [(rows, 3)] * num_devices
    assert mesh_of(there) == (mesh if num_devices > 1 else None)
    assert num_devices == 1 or spread(there, mesh) is there
    back = everywhere(there)
    assert len(back.devices()) == 1
    assert_equal([back[:n]], [array])
    assert (np.asarray(back)[n:] == -1).all()


def test_only_rows_over_points_have_a_mesh():
    mesh = points_mesh(2)
    assert mesh_of(np.zeros(4)) is None
    assert mesh_of(jnp.zeros(4)) is None
    assert mesh_of(jax.device_put(jnp.zeros(4), NamedSharding(mesh, PartitionSpec()))) is None
    clients = jax.sharding.Mesh(jax.devices()[:2], ("clients",))
    assert (
        mesh_of(jax.device_put(jnp.zeros(4), NamedSharding(clients, PartitionSpec("clients"))))
        is None
    )
    assert jax.jit(lambda x: x == (mesh_of(x) is None))(spread(np.ones(2, bool), mesh)).all()
    of_two_axes = jax.sharding.Mesh(np.reshape(jax.devices()[:2], (1, 2)), (AXIS, "models"))
    assert mesh_of(jax.device_put(jnp.zeros(4), NamedSharding(of_two_axes, ROWS))) is None


@pytest.mark.parametrize("num_devices", DEVICES)
@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.sample(2)
def test_what_one_device_has_all_hear_of(num_devices, place):
    """Loops of all devices end together: each asks whether anything is left on any."""
    x = np.zeros(4, np.float32)
    x[place] = 3

    def told(rows):
        def of_rows(x):
            is_there = x > 0
            heard = rows.any(is_there), rows.all(~is_there), rows.all(~is_there | is_there)
            return *(jnp.reshape(one, 1) for one in heard), rows.total(x.sum(keepdims=True))

        return of_rows

    mesh = points_mesh(num_devices)
    found = by_rows(told, mesh if num_devices > 1 else None)(spread(x, mesh))
    expected = [True], [False], [True], [3]
    assert_equal(everywhere(found), [one * num_devices for one in expected])


# ---- nearest neighbors ----


@pytest.mark.parametrize("num_devices", DEVICES)
@pytest.mark.parametrize(
    ("n", "num_words", "k", "backend"),
    [
        (1, 1, 3, "auto"),
        (41, 2, 60, "popcount"),
        (97, 9, 10, "matmul"),
    ],
)
@pytest.mark.sample(2)
def test_neighbors_over_devices_equal_the_oracle(num_devices, n, num_words, k, backend):
    bits, valid = codes(n, num_words), np.random.default_rng(1).random(n) < 0.9
    mesh = points_mesh(num_devices)
    found = knn.hamming_knn(
        spread(bits, mesh), k, valid=spread(valid, mesh, fill=False), backend=backend
    )
    assert {mesh_of(array) for array in found} == {mesh if num_devices > 1 else None}
    assert_equal(together(found, n), reference.hamming_knn(bits, k, valid))


@given(st.integers(0, 24), st.booleans(), st.integers(0, 2**31))
def test_ties_and_padding_over_two_devices(n, many_neighbors, seed):
    bits, k = codes(24, seed=seed), 30 if many_neighbors else 5
    valid = np.random.default_rng(seed).permutation(np.arange(24) < n)
    found = knn.hamming_knn(spread(bits, points_mesh(2)), k, valid=valid)
    assert_equal(together(found, 24), reference.hamming_knn(bits, k, valid))


@pytest.mark.parametrize("num_devices", DEVICES)
@pytest.mark.sample(1)
def test_tiles_and_chunks_of_every_device(monkeypatch, num_devices):
    monkeypatch.setattr(nearest, "_CHUNK_COLUMNS", 128)
    small = {name: kernel._replace(width=32) for name, kernel in knn.hamming._KERNELS.items()}
    monkeypatch.setattr(knn.hamming, "_KERNELS", small)
    n, k, mesh = 660, 25, points_mesh(num_devices)
    bits, valid = codes(n, 2), np.random.default_rng(3).random(n) < 0.8
    arrays = spread(bits, mesh), spread(valid, mesh, fill=False)
    search = jax.jit(knn._hamming_knn.__wrapped__, static_argnums=(2, 3, 4))  # no cached program
    found = search(*arrays, k, "popcount", mesh)
    alone = search(jnp.asarray(bits), jnp.asarray(valid), k, "popcount", None)
    assert_equal(together(found, n), alone)


@pytest.mark.parametrize("num_devices", DEVICES)
def test_cosines_over_devices(num_devices):
    mesh, n = points_mesh(num_devices), 90
    vectors = np.random.default_rng(0).standard_normal((n, 7), dtype=np.float32)
    vectors[30:60] = vectors[:30]
    valid = spread(np.ones(n, bool), mesh, fill=False)
    indices, cosines = together(knn.cosine_knn(spread(vectors, mesh), 6, valid=valid), n)
    expected_indices, expected = reference.cosine_knn(vectors, 6)
    np.testing.assert_allclose(cosines, expected, atol=2e-6)
    assert (indices != expected_indices).mean() < 0.02  # where float32 cannot tell two apart


def test_codes_go_round_and_are_never_gathered():
    n, num_words, k = 4096, 128, 10
    mesh = points_mesh(2)
    bits = spread(np.zeros((n, num_words), np.uint32), mesh)
    valid = spread(np.ones(n, bool), mesh)
    compiled = knn._hamming_knn.lower(bits, valid, k, "popcount", mesh).compile()
    assert "collective-permute" in compiled.as_text()
    assert "all-gather" not in compiled.as_text()
    part = n // 2 * num_words * 4
    tile = 1024 * (n // 2) * 2
    assert compiled.memory_analysis().temp_size_in_bytes < 6 * part + 2 * tile


@pytest.mark.parametrize("backend", ["auto", "popcount"])
def test_neighbors_over_devices_lower_for_gpus(backend):
    mesh = points_mesh(2)
    bits, valid = spread(codes(64), mesh), spread(np.ones(64, bool), mesh)
    program = jax.export.export(knn._hamming_knn, platforms=["cuda"])(bits, valid, 3, backend, mesh)
    text = program.mlir_module()
    assert "collective_permute" in text
    assert ("popcnt" in text) == (backend == "popcount")
