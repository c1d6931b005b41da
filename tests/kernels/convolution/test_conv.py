import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convolutions import assert_agrees_with_xla, assert_clients_need_no_convolution

from jaxfed.kernels import conv
from jaxfed.kernels.arrays import even_size
from jaxfed.kernels.conv import matmul_conv

CASES = [  # image, window, strides, padding, in, out, groups
    ((7, 9), (1, 1), (1, 1), "SAME", 5, 4, 1),
    ((7, 9), (1, 1), (2, 2), "SAME", 5, 4, 1),
    ((8, 8), (3, 3), (2, 2), "SAME", 3, 6, 1),
    ((7, 10), (3, 5), (1, 2), "SAME", 3, 6, 1),
    ((9, 8), (3, 2), (2, 1), "VALID", 2, 3, 1),
    ((6, 6), (3, 3), (1, 1), ((0, 2), (1, 0)), 2, 3, 1),
    ((8, 8), (3, 3), (1, 1), "SAME", 4, 4, 4),
    ((8, 11), (5, 5), (2, 2), "SAME", 6, 6, 6),
    ((9, 7), (5, 3), (2, 2), "VALID", 6, 6, 6),
    ((5, 5), (3, 3), (2, 2), "SAME", 1, 1, 1),
]


def _operands(image, window, in_channels, out_channels, groups, clients=()):
    rng = np.random.default_rng(0)
    images = rng.normal(size=(*clients, 2, *image, in_channels)).astype(np.float32)
    shape = (*clients, *window, in_channels // groups, out_channels)
    return images, rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(("image", "window", "strides", "padding", "cin", "cout", "groups"), CASES)
@pytest.mark.sample(2)
def test_agrees_with_xla_in_value_and_derivatives(
    image, window, strides, padding, cin, cout, groups
):
    images, kernel = _operands(image, window, cin, cout, groups)
    assert_agrees_with_xla(matmul_conv, images, kernel, padding, strides, groups, atol=2e-5)


@pytest.mark.parametrize("num_images", [4, 5])
@pytest.mark.sample(1)
def test_blocks_of_images_change_nothing(num_images, monkeypatch):
    rng = np.random.default_rng(0)
    images = rng.normal(size=(num_images, 9, 8, 3)).astype(np.float32)
    kernel = rng.normal(size=(3, 3, 3, 4)).astype(np.float32)

    def derivatives(block_bytes):
        monkeypatch.setattr(conv, "_BLOCK_BYTES", block_bytes)
        monkeypatch.setattr(conv, "_BLOCK_ROWS", 1)
        out, pull = jax.vjp(lambda *a: matmul_conv(*a, (2, 1), "SAME"), images, kernel)
        return out, *pull(jax.numpy.cos(out))

    bytes_of_two = 2 * (5 * 8) * (3 * 3 * 3) * 4
    for ours, theirs in zip(derivatives(bytes_of_two), derivatives(2**30), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_derivatives_in_half_precision_are_summed_in_single(monkeypatch):
    """In the program as written: a compiler may keep more digits than it is asked for."""
    monkeypatch.setattr(conv, "_BLOCK_BYTES", 1)
    monkeypatch.setattr(conv, "_BLOCK_ROWS", 1)
    images, kernel = jnp.ones((8, 3, 3, 1), jnp.bfloat16), jnp.ones((3, 3, 1, 2), jnp.bfloat16)

    def total(images, kernel):
        return jnp.sum(matmul_conv(images, kernel, (1, 1), "VALID"), dtype=jnp.bfloat16)

    derivatives = jax.jit(jax.grad(total, argnums=(0, 1)))
    text = derivatives.lower(images, kernel).as_text()
    assert "tensor<2x9xf32>" in text  # of the kernel, over blocks
    assert "tensor<1x3x3x1xf32>" in text  # of an image, over the kernel's entries
    by_images, by_kernel = derivatives(images, kernel)
    assert by_images.dtype == by_kernel.dtype == jnp.bfloat16
    assert (by_images == 2).all()
    assert (by_kernel == 8).all()


@pytest.mark.parametrize("groups", [1, 4])
def test_clients_with_kernels_of_their_own_need_no_convolution(groups):
    operands = _operands((6, 6), (3, 3), 4, 4, groups, clients=(3,))
    assert_clients_need_no_convolution(matmul_conv, *operands, feature_group_count=groups)


@pytest.mark.parametrize(
    ("count", "size", "even"), [(50, 4, 5), (50, 12, 10), (50, 80, 50), (7, 3, 3), (6, 0, 1)]
)
@pytest.mark.sample(2)
def test_blocks_leave_nothing_over_where_their_size_may_be_near(count, size, even):
    assert even_size(count, size) == even
