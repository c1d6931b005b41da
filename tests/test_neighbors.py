"""LSH codes, Hamming distances and exact kNN, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfed.errors import UsageError
from jaxfed.kernels import hamming, knn, lsh, reference


def random_codes(n, num_words, seed=0, distinct=None):
    """uint32 [n, num_words]; with `distinct`, so many different rows: ties everywhere."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(
        2**32, size=(n if distinct is None else distinct, num_words), dtype=np.uint32
    )
    return codes if distinct is None else codes[rng.integers(distinct, size=n)]


# --- LSH -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "dim", "num_bits"), [(1, 3, 32), (300, 20, 256), (513, 7, 96), (0, 4, 64)]
)
def test_bits_are_the_signs_of_the_projections(n, dim, num_bits):
    vectors = np.random.default_rng(0).standard_normal((n, dim)).astype(np.float32)
    key = jax.random.key(3)
    planes = lsh.hyperplanes(key, num_bits, dim)
    codes = lsh.project_bits(vectors, key, num_bits)
    assert codes.dtype == jnp.uint32
    np.testing.assert_array_equal(codes, reference.project_bits(vectors, planes))


def test_a_point_has_the_same_code_wherever_it_is_projected():
    vectors = np.random.default_rng(0).standard_normal((700, 33)).astype(np.float32)
    key = jax.random.key(0)
    joint = np.asarray(lsh.project_bits(vectors, key, 512))
    for part in (slice(0, 1), slice(5, 300), slice(299, 700)):
        np.testing.assert_array_equal(lsh.project_bits(vectors[part], key, 512), joint[part])
    clients = vectors.reshape(7, 100, 33)
    batched = jax.vmap(lambda v: lsh.project_bits(v, key, 512))(clients)
    np.testing.assert_array_equal(batched.reshape(700, -1), joint)


def test_planes_are_standard_normal_and_grow():
    key = jax.random.key(1)
    planes = np.asarray(lsh.hyperplanes(key, 4096, 50))
    assert abs(planes.mean()) < 0.01
    assert planes.std() == pytest.approx(1, abs=0.01)
    np.testing.assert_array_equal(planes[:64], lsh.hyperplanes(key, 64, 50))
    assert (planes != np.asarray(lsh.hyperplanes(jax.random.key(2), 4096, 50))).all()


def test_zero_vectors_and_scale():
    vectors = np.zeros((2, 5), np.float32)
    codes = lsh.project_bits(vectors, jax.random.key(0), 64)
    assert (codes == np.uint32(2**32 - 1)).all()
    vectors = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    np.testing.assert_array_equal(
        lsh.project_bits(vectors, jax.random.key(0), 64),
        lsh.project_bits(4 * vectors, jax.random.key(0), 64),
    )


@given(st.integers(1, 5), st.integers(0, 99))
def test_packing_is_undone_by_unpacking(num_words, seed):
    bits = np.random.default_rng(seed).random((3, 32 * num_words)) < 0.5
    np.testing.assert_array_equal(lsh.unpack_bits(lsh.pack_bits(jnp.asarray(bits))), bits)


@pytest.mark.parametrize("num_bits", [0, 33, -32])
def test_num_bits_is_a_multiple_of_32(num_bits):
    with pytest.raises(UsageError, match="multiple of 32"):
        lsh.project_bits(np.zeros((1, 2), np.float32), jax.random.key(0), num_bits)


def test_projections_are_never_held_all_at_once():
    """No intermediate of n x L floats: the largest is Pi or a block."""
    n, num_bits = 4096, 4096
    traced = jax.jit(lambda v: lsh.project_bits(v, jax.random.key(0), num_bits)).trace(
        jax.ShapeDtypeStruct((n, 16), jnp.float32)
    )
    analysis = traced.lower().compile().memory_analysis()
    assert analysis.temp_size_in_bytes < n * num_bits * 4 / 2


# --- Hamming distances -----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["auto", "popcount", "matmul"])
@pytest.mark.parametrize(("n", "m", "num_words"), [(5, 7, 1), (40, 33, 3), (100, 1, 20), (0, 4, 2)])
def test_distances(n, m, num_words, backend):
    a, b = random_codes(n, num_words), random_codes(m, num_words, seed=1)
    found = hamming.distances(a, b, backend=backend)
    assert found.dtype == jnp.int32
    np.testing.assert_array_equal(found, reference.hamming_distances(a, b))


@pytest.mark.parametrize("backend", ["popcount", "matmul"])
@pytest.mark.parametrize("num_words", [128, 512, 1200])
def test_distances_of_long_and_opposite_codes(num_words, backend):
    a = random_codes(3, num_words)
    found = np.asarray(hamming.distances(a, np.concatenate([a, ~a]), backend=backend))
    np.testing.assert_array_equal(np.diag(found[:, :3]), 0)
    np.testing.assert_array_equal(np.diag(found[:, 3:]), 32 * num_words)
    np.testing.assert_array_equal(found[:, :3] + found[:, 3:], 32 * num_words)


def test_mistakes_in_codes():
    good = random_codes(2, 2)
    with pytest.raises(UsageError, match="equal lengths"):
        hamming.distances(good, random_codes(2, 3))
    with pytest.raises(UsageError, match="uint32"):
        hamming.distances(good.astype(np.int32), good)
    with pytest.raises(UsageError, match="popcount, matmul"):
        hamming.distances(good, good, backend="magic")


# --- kNN -------------------------------------------------------------------------------------------------

SIZES = [
    (1, 1, 3, None),
    (2, 2, 3, None),
    (30, 1, 10, None),
    (50, 3, 49, None),
    (100, 2, 10, 7),  # heavy ties
    (257, 4, 10, None),
    (300, 1, 100, 3),
    (700, 2, 13, None),
    (1100, 1, 5, 40),
]


@pytest.mark.parametrize("backend", ["popcount", "matmul"])
@pytest.mark.parametrize(("n", "num_words", "k", "distinct"), SIZES)
def test_hamming_knn(n, num_words, k, distinct, backend):
    codes = random_codes(n, num_words, distinct=distinct)
    indices, distances = knn.hamming_knn(codes, k, backend=backend)
    expected = reference.hamming_knn(codes, k)
    assert indices.dtype == distances.dtype == jnp.int32
    np.testing.assert_array_equal(distances, expected[1])
    np.testing.assert_array_equal(indices, expected[0])


@given(
    n=st.integers(1, 60),
    k=st.integers(1, 8),
    distinct=st.integers(1, 20),
    num_valid=st.integers(0, 60),
    seed=st.integers(0, 99),
)
def test_hamming_knn_with_ties_and_padding(n, k, distinct, num_valid, seed):
    codes = random_codes(64, 1, seed=seed, distinct=distinct)
    valid = np.zeros(64, bool)
    valid[np.random.default_rng(seed).permutation(64)[: min(n, num_valid)]] = True
    indices, distances = knn.hamming_knn(codes, k, valid=jnp.asarray(valid))
    expected = reference.hamming_knn(codes, k, valid)
    np.testing.assert_array_equal(distances, expected[1])
    np.testing.assert_array_equal(indices, expected[0])


def test_knn_of_padded_clients_is_each_clients_own():
    sizes, capacity = [40, 1, 64, 0], 64
    codes = np.stack([random_codes(capacity, 2, seed=s) for s in range(4)])
    valid = np.arange(capacity) < np.array(sizes)[:, None]
    indices, distances = jax.jit(jax.vmap(lambda c, v: knn.hamming_knn(c, 5, valid=v)))(
        codes, valid
    )
    for row, size in enumerate(sizes):
        if size:
            alone = knn.hamming_knn(codes[row, :size], 5)
            np.testing.assert_array_equal(indices[row, :size], alone[0])
            np.testing.assert_array_equal(distances[row, :size], alone[1])
        assert (indices[row, size:] == -1).all()


@pytest.mark.parametrize(("n", "dim", "k"), [(1, 3, 2), (60, 8, 10), (500, 5, 17), (1300, 4, 3)])
def test_cosine_knn(n, dim, k):
    vectors = np.random.default_rng(0).standard_normal((n, dim)).astype(np.float32)
    vectors[n // 2] = 0
    indices, cosines = knn.cosine_knn(vectors, k)
    expected = reference.cosine_knn(vectors, k)
    np.testing.assert_allclose(cosines, expected[1], atol=1e-5)
    assert indices.dtype == jnp.int32
    # Rounding may exchange neighbors of equal cosine, never admit a worse one.
    assert np.mean(np.asarray(indices) == expected[0]) > 0.99
    assert (np.asarray(indices) != np.arange(n)[:, None]).all()


def test_cosine_knn_of_padded_clients():
    vectors = np.random.default_rng(0).standard_normal((2, 32, 6)).astype(np.float32)
    valid = np.arange(32) < np.array([[20], [32]])
    indices, cosines = jax.jit(jax.vmap(lambda x, v: knn.cosine_knn(x, 4, valid=v)))(vectors, valid)
    expected = reference.cosine_knn(vectors[0, :20], 4)
    np.testing.assert_array_equal(indices[0, :20], expected[0])
    np.testing.assert_allclose(cosines[0, :20], expected[1], atol=1e-5)
    assert (indices[0, 20:] == -1).all()


@pytest.mark.parametrize("search", [knn.hamming_knn, knn.cosine_knn])
def test_mistakes_in_a_search(search):
    points = random_codes(4, 2) if search is knn.hamming_knn else np.zeros((4, 2), np.float32)
    with pytest.raises(UsageError, match="at least 1"):
        search(points, 0)
    with pytest.raises(UsageError, match="valid"):
        search(points, 1, valid=jnp.ones(3, jnp.bool_))


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_search_lowers_for_accelerators(platform):
    codes = jax.ShapeDtypeStruct((300, 4), jnp.uint32)
    lowered = jax.jit(lambda c: knn.hamming_knn(c, 5)).trace(codes)
    assert "dot_general" in lowered.lower(lowering_platforms=(platform,)).as_text()


def test_search_never_holds_all_pairs():
    """16,384 points: all pairs would be 512 MiB of int16."""
    codes = jax.ShapeDtypeStruct((16_384, 8), jnp.uint32)
    compiled = jax.jit(lambda c: knn.hamming_knn(c, 10)).trace(codes).lower().compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 2**28
