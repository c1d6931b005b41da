"""Convolution as slices, multiply-adds and matrix products: no convolution operation at all.

XLA:CPU has no fast grouped convolution and slows any convolution inside a loop; `vmap` over
per-client kernels makes every convolution a grouped one. This form has neither trouble, and its
derivatives are free of convolutions too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_NHWC = lax.ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))


def matmul_conv(
    images: jax.Array,
    kernel: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    *,
    dimension_numbers: Any = ("NHWC", "HWIO", "NHWC"),
    feature_group_count: int = 1,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    precision: Any = None,
    out_sharding: Any = None,
) -> jax.Array:
    """Convolve NHWC `images` with an HWIO `kernel`; `lax.conv_general_dilated` up to rounding.

    out[n, y, x, o] = sum_{i, j, c} images[n, s y + i - p, s x + j - q, c] kernel[i, j, c, o]

    One of three forms, by the kernel's shape:
      1 x 1            one matrix product [n h w, c] x [c, o];
      depthwise        h w shifted multiply-adds, which XLA fuses into one loop over channels;
      otherwise        im2col: the h w strided slices side by side, then one matrix product.

    The signature is what `nnx.Conv(conv_general_dilated=...)` calls.

    Args:
        images: float [n, H, W, c].
        kernel: float [h, w, c / feature_group_count, o], the dtype of `images`.
        window_strides: two ints.
        padding: "SAME", "VALID", or ((top, bottom), (left, right)) pixels of zeros.
        dimension_numbers: NHWC, HWIO, NHWC; the only layout there is.
        feature_group_count: 1, or c (depthwise, o = c).
        lhs_dilation: ones; no dilation is offered.
        rhs_dilation: ones; no dilation is offered.
        precision: of the matrix products, as in `jax.lax.dot_general`.
        out_sharding: None; the compiler decides.

    Returns:
        float [n, ceil(H / s), ceil(W / s), o] for "SAME".

    Raises:
        NotImplementedError: another layout, a dilation, an out_sharding, groups not 1 or c.

    Cost: the multiply-adds of the convolution; im2col holds h w copies of its input, the other two
    forms a padded one at most.
    """
    layout = lax.conv_dimension_numbers(images.shape, kernel.shape, dimension_numbers)
    dilations = (*(lhs_dilation or ()), *(rhs_dilation or ()))
    if layout != _NHWC or any(d != 1 for d in dilations) or out_sharding is not None:
        raise NotImplementedError(
            "matmul_conv takes NHWC images, HWIO kernels, no dilation and no sharding"
        )
    height, width, in_channels, out_channels = kernel.shape
    depthwise = feature_group_count == images.shape[-1] == out_channels and in_channels == 1
    if feature_group_count != 1 and not depthwise:
        raise NotImplementedError(
            f"matmul_conv takes 1 group or one a channel, not {feature_group_count} groups of "
            f"{images.shape[-1]} channels"
        )
    images = _pad(images, (height, width), window_strides, padding)
    taps = _taps(images, (height, width), window_strides)
    if depthwise:
        weights = kernel.reshape(height * width, 1, 1, 1, out_channels)
        out = taps[0] * weights[0]
        for tap, weight in zip(taps[1:], weights[1:], strict=True):
            out += tap * weight
        return out
    columns = jnp.concatenate(taps, axis=-1)
    matrix = kernel.reshape(height * width * in_channels, out_channels)
    return jnp.matmul(columns, matrix, precision=precision)


def _pad(
    images: jax.Array,
    window: tuple[int, int],
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
) -> jax.Array:
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(images.shape[1:3], window, strides, padding)
    if not any(pixels for sides in padding for pixels in sides):
        return images
    return jnp.pad(images, ((0, 0), *padding, (0, 0)))


def _taps(images: jax.Array, window: tuple[int, int], strides: Sequence[int]) -> list[jax.Array]:
    """The pixels that each entry of the window meets, row by row: h w arrays [n, y, x, c]."""
    n, rows, columns, channels = images.shape
    down, across = strides
    last_row = (rows - window[0]) // down * down
    last_column = (columns - window[1]) // across * across
    return [
        lax.slice(
            images,
            (0, i, j, 0),
            (n, i + last_row + 1, j + last_column + 1, channels),
            (1, down, across, 1),
        )
        for i in range(window[0])
        for j in range(window[1])
    ]
