import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_kernels as reference
from hypothesis import given
from hypothesis import strategies as st

from jaxfed.kernels import lsh


def vectors_of(n, dim, seed=0):
    return np.random.default_rng(seed).standard_normal((n, dim), dtype=np.float32)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("n", "dim", "num_bits"),
    [(1, 1, 32), (2, 3, 64), (7, 128, 96), (255, 16, 32), (257, 5, 4096), (700, 33, 256)],
)
@pytest.mark.sample(2)
def test_bits_equal_the_float64_oracle_away_from_the_hyperplanes(n, dim, num_bits):
    vectors, key = vectors_of(n, dim), jax.random.key(n)
    planes = np.asarray(lsh.hyperplanes(key, num_bits, dim))
    words = lsh.project_bits(vectors, key, num_bits)
    assert words.dtype == jnp.uint32
    assert words.shape == (n, num_bits // 32)
    differs = np.asarray(lsh.unpack_bits(words)) != np.asarray(
        lsh.unpack_bits(jnp.asarray(reference.project_bits(vectors, planes)))
    )
    products = vectors.astype(np.float64) @ planes.T.astype(np.float64)
    assert np.abs(products[differs]).max(initial=0) < 1e-5
    assert differs.sum() <= 2


@pytest.mark.gpu
@given(st.sampled_from([0, 3]), st.sampled_from([1, 4]), st.integers(0, 2**31))
def test_packing_has_the_documented_order_and_an_inverse(n, num_words, seed):
    bits = np.random.default_rng(seed).random((n, num_words * 32)) < 0.5
    words = lsh.pack_bits(jnp.asarray(bits))
    packed_bytes = np.packbits(bits, axis=1, bitorder="little")
    np.testing.assert_array_equal(np.asarray(words), packed_bytes.view("<u4"))
    np.testing.assert_array_equal(np.asarray(lsh.unpack_bits(words)), bits)


@pytest.mark.gpu
def test_a_point_has_the_same_code_wherever_it_is_projected():
    """Points alone, in parts, together, reordered, and stacked by client under vmap."""
    num_bits, key = 4096, jax.random.key(5)
    vectors = vectors_of(900, 130)
    together = np.asarray(lsh.project_bits(vectors, key, num_bits))

    bounds = [0, 1, 301, 900]
    parts = [lsh.project_bits(vectors[a:b], key, num_bits) for a, b in itertools.pairwise(bounds)]
    np.testing.assert_array_equal(np.concatenate(parts), together)

    order = np.random.default_rng(1).permutation(900)
    np.testing.assert_array_equal(lsh.project_bits(vectors[order], key, num_bits), together[order])

    stacked = jax.vmap(lambda v: lsh.project_bits(v, key, num_bits))(vectors.reshape(9, 100, 130))
    np.testing.assert_array_equal(stacked.reshape(900, -1), together)


def test_vmap_over_keys_and_nested_vmap():
    vectors = jnp.asarray(vectors_of(6, 4).reshape(3, 2, 4))
    keys = jax.random.split(jax.random.key(0), 3)
    by_key = jax.vmap(lambda key: lsh.project_bits(vectors[0], key, 64))(keys)
    both = jax.vmap(lambda v, key: lsh.project_bits(v, key, 64))(vectors, keys)
    nested = jax.vmap(jax.vmap(lambda v: lsh.project_bits(v, keys[0], 64)))(vectors[:, None])
    for i in range(3):
        np.testing.assert_array_equal(by_key[i], lsh.project_bits(vectors[0], keys[i], 64))
        np.testing.assert_array_equal(both[i], lsh.project_bits(vectors[i], keys[i], 64))
        np.testing.assert_array_equal(nested[i, 0], lsh.project_bits(vectors[i], keys[0], 64))


def test_hyperplanes_are_standard_normal_and_grow_by_rows():
    key = jax.random.key(2)
    planes = np.asarray(lsh.hyperplanes(key, 4096, 64))
    assert planes.dtype == np.float32
    assert abs(planes.mean()) < 0.01
    assert abs(planes.std() - 1) < 0.01
    np.testing.assert_array_equal(planes[:96], lsh.hyperplanes(key, 96, 64))
    assert not np.array_equal(planes, lsh.hyperplanes(jax.random.key(3), 4096, 64))


def test_share_of_differing_bits_is_the_angle_over_pi():
    """Equation of Appendix C.2, within four standard deviations."""
    num_bits, angles = 8192, np.linspace(0.1, 3.0, 9)
    vectors = np.zeros((10, 6), np.float32)
    vectors[0, 0] = 2.0
    vectors[1:, 0], vectors[1:, 3] = np.cos(angles), np.sin(angles)
    words = np.asarray(lsh.project_bits(vectors, jax.random.key(11), num_bits))
    share = np.bitwise_count(words[1:] ^ words[:1]).sum(axis=1) / num_bits
    deviation = np.sqrt(angles / np.pi * (1 - angles / np.pi) / num_bits)
    assert (np.abs(share - angles / np.pi) < 4 * deviation).all()


def test_zero_vectors_have_every_bit_set_and_scale_does_not_matter():
    vectors = vectors_of(3, 8)
    vectors[1] = 0
    words = np.asarray(lsh.project_bits(vectors, jax.random.key(0), 64))
    assert (words[1] == 2**32 - 1).all()
    np.testing.assert_array_equal(lsh.project_bits(vectors * 2.0**20, jax.random.key(0), 64), words)


def test_a_vector_with_a_nan_gets_all_zeros():
    vectors = np.ones((2, 3), np.float32)
    vectors[1, 2] = np.nan
    codes = np.asarray(lsh.project_bits(vectors, jax.random.key(0), 64))
    assert codes[0].any()
    assert not codes[1].any()


@pytest.mark.parametrize("clients", [None, 5])
def test_projections_of_all_points_are_never_held(clients):
    n, num_bits = 3000, 1024

    def project(vectors):
        return lsh.project_bits(vectors, jax.random.key(0), num_bits)

    if clients is None:
        text = jax.jit(project).lower(jnp.zeros((n, 8))).compile().as_text()
    else:
        shape = (clients, n // clients, 8)
        text = jax.jit(jax.vmap(project)).lower(jnp.zeros(shape)).compile().as_text()
    assert "f32[256,1024]" in text  # the block is there to be found
    sizes = array_sizes(text)
    assert max(sizes) < n * num_bits // 4


def array_sizes(hlo):
    """Number of elements of every array that a compiled program names."""
    return [
        math.prod(int(d) for d in dims.split(","))
        for dims in re.findall(r"\b[a-z]+\d+\[([\d,]+)\]", hlo)
    ]


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_lowers_for_accelerators_at_full_precision(platform):
    traced = jax.jit(lambda v: lsh.project_bits(v, jax.random.key(0), 64)).trace(jnp.ones((9, 4)))
    assert "HIGHEST" in traced.lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize("power", [-120, -100, -30, 30, 100, 123])
def test_bits_do_not_depend_on_a_vectors_scale(power):
    """Products with entries near the ends of float32's range would vanish, or be infinite."""
    vectors = np.random.default_rng(0).normal(size=(40, 30)).astype(np.float32)
    vectors[0] = 0
    vectors[1:, 0] = 1  # no smaller entry is the largest
    expected = np.asarray(lsh.project_bits(vectors, jax.random.key(0), 256))
    scaled = np.ldexp(vectors, np.where(np.arange(40) % 3 == 0, power, 0)[:, None])
    np.testing.assert_array_equal(lsh.project_bits(scaled, jax.random.key(0), 256), expected)
