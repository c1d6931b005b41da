import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convolutions import LAYOUT, assert_agrees_with_xla, assert_clients_need_no_convolution
from jax import lax

from jaxfed.kernels import direct_conv as module
from jaxfed.kernels.direct_conv import direct_conv

CASES = [  # images, image, window, padding, in, out
    (3, (6, 8), (3, 3), "SAME", 9, 4),
    (4, (7, 5), (3, 2), "VALID", 8, 3),
    (5, (6, 6), (3, 5), ((0, 2), (1, 3)), 8, 2),
    (2, (6, 8), (3, 3), "SAME", 1, 16),  # few channels: 4 pixels of a row at once
    (2, (5, 7), (5, 5), "SAME", 3, 32),  # 7 pixels: one at a time
    (2, (5, 9), (3, 3), ((2, 0), (0, 1)), 2, 20),  # 3 of 8
]


def _operands(images, image, window, in_channels, out_channels, clients=()):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(*clients, images, *image, in_channels)).astype(np.float32)
    shape = (*clients, *window, in_channels, out_channels)
    return x, rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(("images", "image", "window", "padding", "cin", "cout"), CASES)
@pytest.mark.sample(1)
def test_agrees_with_xla_in_value_and_derivatives(
    images, image, window, padding, cin, cout, monkeypatch
):
    monkeypatch.setattr(module, "_IMAGES_AT_ONCE", 2)
    x, kernel = _operands(images, image, window, cin, cout)
    assert_agrees_with_xla(direct_conv, x, kernel, padding)


def test_all_three_are_convolutions_of_the_one_quick_form():
    """Nothing dilated, nothing turned round, no other order of axes, in the program as written."""
    x, kernel = _operands(4, (6, 6), (3, 3), 8, 16)

    def with_derivatives(*operands):
        out, pull = jax.vjp(lambda *a: direct_conv(*a, (1, 1), "SAME"), *operands)
        return out, *pull(out)

    text = jax.jit(with_derivatives).lower(x, kernel).as_text()
    lines = [line for line in text.splitlines() if "stablehlo.convolution" in line]
    assert len(lines) == 3
    for line in lines:
        assert "dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]" in line
        assert "reverse" not in line or "reverse = [false, false]" in line
        assert "dilate = [2" not in line


def test_few_channels_are_columns_of_several_pixels():
    """Three rows of 3 + 4 - 1 pixels, 4 times 16 numbers of each, of a quarter as many places."""
    x, kernel = _operands(2, (6, 8), (3, 3), 1, 16)
    text = jax.jit(lambda *a: direct_conv(*a, (1, 1), "SAME")).lower(x, kernel).as_text()
    assert "stablehlo.convolution" not in text
    assert "tensor<2x6x2x18xf32>, tensor<18x64xf32>" in text


@pytest.mark.sample(1)
@pytest.mark.parametrize("channels", [1, 8])
def test_clients_with_kernels_of_their_own_need_no_convolution(channels):
    operands = _operands(2, (6, 6), (3, 3), channels, 4, clients=(3,))
    assert_clients_need_no_convolution(direct_conv, *operands)


@pytest.mark.parametrize(
    ("window_strides", "padding", "dtype", "groups"),
    [
        ((2, 2), "SAME", jnp.float32, 1),
        ((1, 1), ((3, 0), (0, 0)), jnp.float32, 1),
        ((1, 1), "SAME", jnp.bfloat16, 1),
        ((1, 1), "SAME", jnp.float32, 8),
    ],
)
def test_all_else_is_left_to_the_products(window_strides, padding, dtype, groups):
    x, kernel = _operands(2, (6, 6), (3, 3), 8, 8)
    x, kernel = jnp.asarray(x, dtype), jnp.asarray(kernel[:, :, : 8 // groups], dtype)

    def convolve(conv):
        return lambda *a: conv(
            *a,
            window_strides,
            padding,
            dimension_numbers=LAYOUT,
            feature_group_count=groups,
        )

    ours = jax.jit(convolve(direct_conv))
    assert "stablehlo.convolution" not in ours.lower(x, kernel).as_text()
    expected = convolve(lax.conv_general_dilated)(x, kernel)
    tolerance = 1e-4 if dtype == jnp.float32 else 0.1
    np.testing.assert_allclose(
        ours(x, kernel).astype(np.float32),
        expected.astype(np.float32),
        rtol=tolerance,
        atol=tolerance,
    )
