import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_kernels as reference
from hypothesis import given
from hypothesis import strategies as st

from jaxfed.kernels import knn, lsh, nearest

BACKENDS = ["popcount", "matmul"]


def random_codes(n, num_words, seed=0):
    return np.random.default_rng(seed).integers(0, 2**32, (n, num_words), dtype=np.uint32)


def tied_codes(n, num_words, seed=0):
    """Four random bits a point, the rest zero: most distances are equal, many points too."""
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 16, (n, num_words), dtype=np.uint32)
    words[:, 1:] = 0
    return words


def lsh_codes(n, num_words, seed=0):
    """Codes of points in ten clusters."""
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((10, 20), dtype=np.float32)
    vectors = centers[rng.integers(0, 10, n)] + 0.5 * rng.standard_normal((n, 20), dtype=np.float32)
    return np.asarray(lsh.project_bits(vectors, jax.random.key(seed), num_words * 32))


def fast_oracle(bits, k, valid=None):
    """`reference.hamming_knn` by one stable sort a row, for sizes where that takes too long."""
    n, missing = len(bits), bits.shape[1] * 32 + 1
    valid = np.ones(n, bool) if valid is None else valid
    indices, distances = np.full((n, k), -1), np.full((n, k), missing)
    for i in np.flatnonzero(valid):
        row = np.bitwise_count(bits[i] ^ bits).sum(axis=1, dtype=np.int64)
        row[~valid] = missing
        row[i] = missing
        order = np.argsort(row, kind="stable")[:k]
        order = order[row[order] < missing]
        indices[i, : len(order)], distances[i, : len(order)] = order, row[order]
    return indices, distances


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_two_oracles_agree():
    bits, valid = tied_codes(60, 2), np.random.default_rng(0).random(60) < 0.7
    assert_equal(fast_oracle(bits, 9, valid), reference.hamming_knn(bits, 9, valid))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", [*BACKENDS, "auto"])
@pytest.mark.parametrize(
    ("make", "n", "num_words", "k"),
    [
        (random_codes, 0, 2, 3),
        (random_codes, 1, 2, 3),
        (tied_codes, 2, 1, 1),
        (tied_codes, 2, 1, 5),
        (tied_codes, 33, 1, 40),
        (tied_codes, 300, 2, 10),
        (random_codes, 97, 9, 96),
        (lsh_codes, 257, 8, 7),
    ],
)
@pytest.mark.sample(2)
def test_equals_the_oracle(backend, make, n, num_words, k):
    bits = make(n, num_words)
    indices, distances = knn.hamming_knn(bits, k, backend=backend)
    assert indices.dtype == distances.dtype == jnp.int32
    assert_equal((indices, distances), reference.hamming_knn(bits, k))


@pytest.mark.sample(1)
@pytest.mark.gpu
@pytest.mark.parametrize(
    ("make", "n", "num_words", "k"),
    [
        (tied_codes, 1500, 1, 10),
        (random_codes, 2085, 4, 30),
        (lsh_codes, 1025, 128, 10),
    ],
)
def test_several_tiles(make, n, num_words, k):
    bits = make(n, num_words)
    assert_equal(knn.hamming_knn(bits, k, backend="popcount"), fast_oracle(bits, k))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("make", "k"), [(tied_codes, 7), (random_codes, 75)])
@pytest.mark.sample(2)
def test_several_chunks(monkeypatch, backend, make, k):
    """Columns searched in parts, some smaller than k, their results merged."""
    monkeypatch.setattr(nearest, "_CHUNK_COLUMNS", 64)
    small = {name: kernel._replace(width=24) for name, kernel in knn.hamming._KERNELS.items()}
    monkeypatch.setattr(knn.hamming, "_KERNELS", small)
    bits = make(240, 2)
    valid = np.random.default_rng(3).random(240) < 0.8
    search = jax.jit(knn._hamming_knn.__wrapped__, static_argnums=(2, 3))  # no cached program
    found = search(jnp.asarray(bits), jnp.asarray(valid), k, backend)
    assert_equal(found, fast_oracle(bits, k, valid))


@pytest.mark.gpu
@given(st.integers(0, 40), st.booleans(), st.booleans(), st.integers(0, 2**31))
def test_ties_and_padding(n, tied, many_neighbors, seed):
    # One padded shape, so that one program per k serves every n.
    bits, k = (tied_codes if tied else random_codes)(40, 1, seed), 50 if many_neighbors else 7
    valid = np.random.default_rng(seed).permutation(np.arange(40) < n)
    expected = reference.hamming_knn(bits, k, valid)
    for backend in BACKENDS:
        assert_equal(knn.hamming_knn(bits, k, valid=valid, backend=backend), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", BACKENDS)
def test_clients_under_vmap_equal_clients_alone(backend):
    sizes, padded, k = [50, 0, 1, 33, 7], 50, 8
    bits = tied_codes(len(sizes) * padded, 2).reshape(len(sizes), padded, 2)
    valid = np.arange(padded)[None, :] < np.array(sizes)[:, None]
    found = jax.vmap(lambda b, v: knn.hamming_knn(b, k, valid=v, backend=backend))(bits, valid)
    found = [np.asarray(x) for x in found]  # whose parts need no programs
    for client, size in enumerate(sizes):
        mine = [x[client, :size] for x in found]
        assert_equal(mine, reference.hamming_knn(bits[client, :size], k))
        assert (found[0][client, size:] == -1).all()
        assert (found[1][client, size:] == 65).all()


@pytest.mark.gpu
@pytest.mark.parametrize("num_words", [511, 512])
def test_long_codes(num_words):
    """Excluded pairs stay beyond the farthest on both sides of the change to 32-bit sums."""
    bits = np.zeros((3, num_words), np.uint32)
    bits[1] = 2**32 - 1
    for backend in BACKENDS:
        indices, distances = knn.hamming_knn(bits, 3, backend=backend)
        assert indices.tolist() == [[2, 1, -1], [0, 2, -1], [0, 1, -1]]
        far, missing = num_words * 32, num_words * 32 + 1
        assert distances.tolist() == [[0, far, missing], [far, far, missing], [0, far, missing]]


@pytest.mark.parametrize("backend", [*BACKENDS, "auto"])
def test_lowers_for_every_platform(backend):
    def clients(bits, valid):
        return jax.vmap(lambda b, v: knn.hamming_knn(b, 3, valid=v, backend=backend))(bits, valid)

    traced = jax.jit(clients).trace(jnp.zeros((2, 40, 2), jnp.uint32), jnp.ones((2, 40), bool))
    # What is asked for, where "auto" would take the other.
    asked = {"popcount": ("cuda",), "matmul": ("cpu",), "auto": ("cpu", "cuda", "tpu")}
    for platform in asked[backend]:
        program = traced.lower(lowering_platforms=(platform,)).as_text()
        matmul = backend == "matmul" or (backend == "auto" and platform != "cpu")
        assert ("dot_general" in program) == matmul
        assert ("popcnt" in program) != matmul


@pytest.mark.parametrize("what", ["hamming", "cosine"])
def test_many_points_are_compared_once_a_pair_and_never_all_at_once(what):
    """On a CPU a distance counts for both of its points, by minima of strips of 16 points.

    No array of the compiled program is larger than a row of tiles, codes or result.
    """
    n, k = 4096, 3
    if what == "hamming":
        traced = jax.jit(lambda x: knn.hamming_knn(x, k)).trace(jnp.zeros((n, 4), jnp.uint32))
    else:
        traced = jax.jit(lambda x: knn.cosine_knn(x, k)).trace(jnp.zeros((n, 4)))
    program, other = (traced.lower(lowering_platforms=(name,)) for name in ("cpu", "cuda"))
    of_strips = f"tensor<4x{n // 16}x1024x{'i16' if what == 'hamming' else 'f32'}>"
    assert of_strips in program.as_text()
    assert of_strips not in other.as_text()
    compiled = program.compile()
    shapes = re.findall(r"\b[a-z]+\d+\[([\d,]+)\]", compiled.as_text())
    largest = max(math.prod(map(int, dims.split(","))) for dims in shapes)
    assert 1024 * 1000 < largest <= 1024 * (n + 5 * 32)  # the tile is there to be found
    element = 2 if what == "hamming" else 4
    assert compiled.memory_analysis().temp_size_in_bytes < 2 * element * 1024 * n + 2**24


# ---- cosine ----


def distinct_vectors(n, dim, seed=0):
    return np.random.default_rng(seed).standard_normal((n, dim), dtype=np.float32)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("n", "dim", "k"), [(1100, 16, 5), (0, 3, 2), (300, 40, 10), (45, 7, 44), (2, 1, 5), (1, 3, 2)]
)
@pytest.mark.sample(2)
def test_cosine_equals_the_oracle(n, dim, k):
    vectors = distinct_vectors(n, dim)
    indices, similarities = knn.cosine_knn(vectors, k)
    expected_indices, expected = reference.cosine_knn(vectors, k)
    assert similarities.dtype == jnp.float32
    np.testing.assert_allclose(similarities, expected, atol=2e-6)
    # Where float32 cannot tell two neighbors apart their order is free.
    swapped = np.asarray(indices) != expected_indices
    assert swapped.sum() <= swapped.size // 1000


def test_cosine_of_exact_ties_zero_vectors_and_extreme_scales():
    """Axis-parallel vectors have exact cosines 1, 0, -1 whatever their length."""
    axes = np.array([0, 0, 1, 0, 2, 1, 0, 3])
    signs = np.array([1, 1, 1, -1, 1, 1, 1, 1], np.float32)
    vectors = np.eye(5, dtype=np.float32)[axes] * signs[:, None]
    vectors *= np.array([1, 1e-30, 1e30, 3, 1, 2, 1e25, 0], np.float32)[:, None]
    indices, similarities = knn.cosine_knn(vectors, 7)
    expected_indices, expected = reference.cosine_knn(vectors, 7)
    np.testing.assert_array_equal(indices, expected_indices)
    np.testing.assert_array_equal(similarities, expected)
    assert (np.asarray(similarities)[7] == 0).all()


@given(st.integers(0, 20), st.sampled_from([4, 25]), st.integers(0, 2**31))
def test_cosine_ties_and_padding(n, k, seed):
    """Signed unit axes: every cosine is exact in float32, so indices must be too."""
    rng = np.random.default_rng(seed)
    vectors = np.eye(3, dtype=np.float32)[rng.integers(0, 3, 20)]
    vectors *= rng.choice(np.array([-1, 0, 1], np.float32), 20)[:, None]
    valid = rng.permutation(np.arange(20) < n)
    assert_equal(knn.cosine_knn(vectors, k, valid=valid), reference.cosine_knn(vectors, k, valid))


def test_cosine_under_vmap():
    sizes, padded, k = [30, 0, 1, 12], 30, 5
    vectors = distinct_vectors(len(sizes) * padded, 6).reshape(len(sizes), padded, 6)
    valid = np.arange(padded)[None, :] < np.array(sizes)[:, None]
    found = jax.vmap(lambda x, v: knn.cosine_knn(x, k, valid=v))(vectors, valid)
    indices, similarities = map(np.asarray, found)
    for client, size in enumerate(sizes):
        expected_indices, expected = reference.cosine_knn(vectors[client, :size], k)
        np.testing.assert_array_equal(indices[client, :size], expected_indices)
        np.testing.assert_allclose(similarities[client, :size], expected, atol=2e-6)
        assert (indices[client, size:] == -1).all()
        assert (similarities[client, size:] == -2).all()


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_cosine_lowers_at_full_precision(platform):
    traced = jax.jit(lambda x: knn.cosine_knn(x, 3)).trace(jnp.ones((40, 5)))
    assert "HIGHEST" in traced.lower(lowering_platforms=(platform,)).as_text()
