import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_kernels as reference

from jaxfed.kernels import hamming


def codes_of(n, num_words, seed=0):
    return np.random.default_rng(seed).integers(0, 2**32, (n, num_words), dtype=np.uint32)


def fast_oracle(a, b):
    return np.stack([np.bitwise_count(row ^ b).sum(axis=1, dtype=np.int64) for row in a])


@pytest.mark.gpu
@pytest.mark.parametrize("backend", hamming.BACKENDS)
@pytest.mark.parametrize(
    ("n", "m", "num_words"),
    [
        (0, 3, 2),
        (4, 0, 1),
        (1, 1, 1),
        (31, 33, 7),
        (5, 70, 8),
        (40, 3, 9),
        (17, 17, 128),
    ],
)
@pytest.mark.sample(11)
def test_equals_the_oracle(backend, n, m, num_words):
    a, b = codes_of(n, num_words), codes_of(m, num_words, seed=1)
    distances = hamming.distances(a, b, backend=backend)
    assert distances.dtype == jnp.int32
    np.testing.assert_array_equal(distances, reference.hamming_distances(a, b))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("backend", "n", "m"), [("popcount", 1100, 2300), ("popcount", 3, 1025), ("matmul", 4100, 40)]
)
def test_several_tiles_a_side(backend, n, m):
    a, b = codes_of(n, 3), codes_of(m, 3, seed=1)
    np.testing.assert_array_equal(hamming.distances(a, b, backend=backend), fast_oracle(a, b))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["popcount", "matmul"])
@pytest.mark.parametrize("num_words", [511, 512, 2100])
def test_long_codes_do_not_overflow_the_accumulator(backend, num_words):
    """All bits different, on both sides of the change from 16 to 32-bit sums."""
    a = np.zeros((2, num_words), np.uint32)
    b = np.stack([~a[0], a[0]])
    expected = [[num_words * 32, 0]] * 2
    assert hamming.distances(a, b, backend=backend).tolist() == expected


@pytest.mark.gpu
@pytest.mark.parametrize("backend", hamming.BACKENDS)
def test_vmap(backend):
    a, b = codes_of(12, 4).reshape(3, 4, 4), codes_of(15, 4, seed=1).reshape(3, 5, 4)

    def distances(x, y):
        return hamming.distances(x, y, backend=backend)

    both = jax.vmap(distances)(a, b)
    one = jax.vmap(distances, in_axes=(None, 0))(a[0], b)
    for i in range(3):
        np.testing.assert_array_equal(both[i], reference.hamming_distances(a[i], b[i]))
        np.testing.assert_array_equal(one[i], reference.hamming_distances(a[0], b[i]))


def test_auto_counts_bits_on_cpu_and_multiplies_elsewhere():
    traced = jax.jit(hamming.distances).trace(
        jnp.asarray(codes_of(9, 4)), jnp.asarray(codes_of(8, 4))
    )
    programs = {
        platform: traced.lower(lowering_platforms=(platform,)).as_text()
        for platform in ("cpu", "cuda", "tpu")
    }
    assert "popcnt" in programs["cpu"]
    assert "dot_general" not in programs["cpu"]
    for platform in ("cuda", "tpu"):
        assert "dot_general" in programs[platform]
        assert "popcnt" not in programs[platform]
