"""The kernels, gone through step by step on a CPU, and lowered for the devices that they are for."""

import math
import re
from functools import partial

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.errors import UsageError
from jaxfed.kernels import knn, reference
from jaxfed.kernels.fused import gpu, search, tpu
from jaxfed.kernels.spread import everywhere, points_mesh, spread

PRODUCTS = ["fused", "fused_bfloat16", "fused_float8"]
POPCOUNT = pytest.param(
    "fused_popcount",
    marks=pytest.mark.skipif(jax.default_backend() == "tpu", reason="counts bits on a GPU only"),
)


def random_codes(n, num_words, seed=0):
    return np.random.default_rng(seed).integers(0, 2**32, (n, num_words), dtype=np.uint32)


def tied_codes(n, num_words, seed=0):
    """Four random bits a point: most distances are equal, many points too."""
    words = np.random.default_rng(seed).integers(0, 16, (n, num_words), dtype=np.uint32)
    words[:, 1:] = 0
    return words


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture
def small_tiles(monkeypatch):
    """And the search without programs of the usual tiles."""
    monkeypatch.setattr(gpu, "PRODUCT", gpu.Tile(16, 16, 32, warps=4, programs=4))
    monkeypatch.setattr(gpu, "POPCOUNT", gpu.Tile(16, 16, 2, warps=4, programs=4))
    return jax.jit(knn._hamming_knn.__wrapped__, static_argnums=(2, 3, 4))


def by_tpu(codes, valid, k):
    """What `search.nearer` does with a TPU's kernel, for one chunk."""
    num_bits = codes.shape[1] * 32
    signs = search._operands("fused", jnp.asarray(codes))
    keys = tpu.search(
        *(signs, signs, ~jnp.asarray(valid), jnp.int32(0)),
        k=k,
        num_bits=num_bits,
        tile=tpu.Tile(queries=32, points=128, depth=128),
        interpret=True,
    )
    best = knn.nearest.nobody(k, len(codes), num_bits + 1, jnp.int32)
    best = search._merged(best, jnp.sort(keys, axis=1), jnp.int32(0), num_bits)
    return knn.nearest.as_rows(best, jnp.asarray(valid), k, num_bits + 1)


CASES = pytest.mark.parametrize(
    ("make", "n", "num_words", "k"),
    [
        (tied_codes, 2, 1, 1),
        (tied_codes, 130, 2, 10),
        (random_codes, 65, 3, 64),
        (tied_codes, 33, 5, 7),
    ],
)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["fused", POPCOUNT])
@CASES
def test_equals_the_oracle(small_tiles, make, n, num_words, k, backend):
    codes, valid = make(n, num_words), np.random.default_rng(1).random(n) < 0.9
    found = small_tiles(jnp.asarray(codes), jnp.asarray(valid), k, backend)
    assert_equal(found, reference.hamming_knn(codes, k, valid))


@CASES
def test_a_tpus_kernel_equals_the_oracle(make, n, num_words, k):
    codes, valid = make(n, num_words), np.random.default_rng(1).random(n) < 0.9
    assert_equal(by_tpu(codes, valid, k), reference.hamming_knn(codes, k, valid))


def test_a_tpus_kernel_sums_in_passes():
    codes, valid = random_codes(40, 12), np.ones(40, bool)
    assert_equal(by_tpu(codes, valid, 3), reference.hamming_knn(codes, 3, valid))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", PRODUCTS[1:])
def test_other_operands_are_exact_too(small_tiles, backend):
    codes = tied_codes(40, 3)
    found = small_tiles(jnp.asarray(codes), jnp.ones(40, bool), 5, backend)
    assert_equal(found, reference.hamming_knn(codes, 5))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["fused", POPCOUNT])
def test_usual_tiles(backend):
    codes, valid = tied_codes(300, 5), np.random.default_rng(1).random(300) < 0.9
    found = knn.hamming_knn(codes, 10, valid=valid, backend=backend)
    assert_equal(found, reference.hamming_knn(codes, 10, valid))


@pytest.mark.parametrize("num_devices", [1, 2])
def test_chunks_and_devices(monkeypatch, small_tiles, num_devices):
    monkeypatch.setattr(search, "_CHUNK", 20)
    n, k, mesh = 66, 30, points_mesh(num_devices)
    codes, valid = tied_codes(n, 2), np.random.default_rng(3).random(n) < 0.8
    arrays = spread(codes, mesh), spread(valid, mesh, fill=False)
    found = everywhere(small_tiles(*arrays, k, "fused", mesh if num_devices > 1 else None))
    assert_equal([x[:n] for x in found], reference.hamming_knn(codes, k, valid))


def test_a_chunk_has_no_more_points_than_a_key_has_numbers(monkeypatch, small_tiles):
    """Of which longer codes leave fewer: 16 here, as of 2^26 bits."""
    monkeypatch.setattr(search.running_best, "column_bits", lambda num_bits: 4)
    codes, valid = tied_codes(66, 2), np.random.default_rng(3).random(66) < 0.8
    found = small_tiles(jnp.asarray(codes), jnp.asarray(valid), 10, "fused")
    assert_equal(found, reference.hamming_knn(codes, 10, valid))


@pytest.mark.gpu
def test_clients_under_vmap_equal_clients_alone(small_tiles):
    codes = tied_codes(60, 1).reshape(3, 20, 1)
    valid = np.arange(20)[None] < np.array([20, 0, 7])[:, None]
    one = partial(knn._hamming_knn.__wrapped__, num_neighbors=4, backend="fused")
    found = jax.vmap(one)(codes, valid)
    for client in range(3):
        mine = [x[client] for x in found]
        assert_equal(mine, reference.hamming_knn(codes[client], 4, valid[client]))


def test_no_points():
    indices, distances = knn.hamming_knn(np.zeros((0, 2), np.uint32), 3, backend="fused")
    assert indices.shape == distances.shape == (0, 3)


@pytest.mark.gpu
def test_points_with_no_valid_other(small_tiles):
    codes, valid = tied_codes(3, 1), np.array([False, True, False])
    indices, distances = small_tiles(codes, valid, 3, "fused")
    assert (indices == -1).all()
    assert (distances == 33).all()


# ---- lowered for devices that are not here ----

_TRITON = [
    jax.export.DisabledSafetyCheck.custom_call(name)
    for name in ("__gpu$xla.gpu.triton", "triton_kernel_call_ffi")
]


def lowered(backend, platform, mesh=None, n=20_000):
    search = jax.jit(
        partial(knn._hamming_knn.__wrapped__, num_neighbors=10, backend=backend, mesh=mesh)
    )
    codes = jax.ShapeDtypeStruct((n, 128), jnp.uint32)
    valid = jax.ShapeDtypeStruct((n,), jnp.bool_)
    exported = jax.export.export(search, platforms=[platform], disabled_checks=_TRITON)
    return exported(codes, valid).mlir_module()


@pytest.mark.parametrize(
    ("platform", "backend", "kernel"),
    [
        *[("cuda", backend, "triton") for backend in search.OPERANDS],
        *[("tpu", backend, "tpu_custom_call") for backend in PRODUCTS],
    ],
)
def test_lowers_without_distances_in_memory(platform, backend, kernel):
    program = lowered(backend, platform)
    assert re.search(rf"custom_call @\S*{kernel}", program)
    assert "stablehlo.dot_general" not in program  # but in the kernel
    sizes = [
        math.prod(int(size) for size in shape.rstrip("x").split("x"))
        for shape in re.findall(r"tensor<((?:\d+x)+)[a-z]", program)
    ]
    assert max(sizes) <= 1.05 * 20_000 * 4096  # the signs; distances are five times as many


def test_lowers_over_devices():
    program = lowered("fused", "cuda", points_mesh(2), n=2_000)
    assert "collective_permute" in program
    assert "triton" in program


# ---- what is asked for ----


def test_the_names_are_those_of_the_kernels():
    assert tuple(search.OPERANDS) == tuple(name for name in knn.BACKENDS if "fused" in name)


@pytest.mark.parametrize(
    ("codes", "k", "backend", "message"),
    [
        (random_codes(3, 2), 65, "fused", "at most 64 neighbors, got num_neighbors=65"),
        (random_codes(3, 2), 1, "fuse", "backend must be one of .*fused_popcount, got 'fuse'"),
        (np.zeros((1, 2**19), np.uint32), 1, "fused", "codes below 2.24 bits, got 524288 words"),
    ],
)
def test_mistakes_are_named(codes, k, backend, message):
    with pytest.raises(UsageError, match=message):
        knn.hamming_knn(codes, k, backend=backend)


def test_a_tpu_counts_no_bits_in_a_kernel(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    with pytest.raises(UsageError, match="'fused_popcount' is for GPUs"):
        knn.hamming_knn(random_codes(3, 2), 1, backend="fused_popcount")
