import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfed.kernels.ring_product import ring_product


def oracle(a, b):
    return (a.astype(np.int64) @ b.astype(np.int64).T).astype(np.uint16)


@pytest.mark.gpu
@given(st.sampled_from([(1, 1, 1), (3, 5, 70), (8, 0, 4)]), st.booleans(), st.integers(0, 2**31))
def test_equals_int64(shape, with_bits, seed):
    n, m, d = shape
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 1 << 16, (n, d), dtype=np.uint16)
    b = (
        rng.integers(0, 2, (m, d), dtype=np.int8)
        if with_bits
        else rng.integers(0, 1 << 16, (m, d), dtype=np.uint16)
    )
    product = ring_product(a, b)
    assert product.dtype == jnp.uint16
    np.testing.assert_array_equal(product, oracle(a, b))


@pytest.mark.parametrize("value", [0x7F7F, 0x8080, 0x8000, 0x0080, 0xFFFF, 0x7FFF])
def test_extreme_sums(value):
    """Bytes of the largest size, at the largest d of a secure Hamming distance."""
    a = np.full((2, 65535), value, np.uint16)
    np.testing.assert_array_equal(ring_product(a, a), oracle(a, a))


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_lowers_to_int8_products(platform):
    a = jax.ShapeDtypeStruct((16, 64), jnp.uint16)
    text = jax.jit(ring_product).trace(a, a).lower(lowering_platforms=(platform,)).as_text()
    assert text.count("dot_general") == 3
    assert "tensor<16x64xi8>, tensor<16x64xi8>) -> tensor<16x16xi32>" in text
