"""Convolution as slices, multiply-adds and matrix products: no convolution operation at all.

XLA:CPU has no fast grouped convolution and slows any convolution inside a loop; `vmap` over
per-client kernels makes every convolution a grouped one. This form avoids both, and so do its derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxfed.kernels.arrays import block_by_block, even_size, sum_over_blocks

_BLOCK_BYTES = 2**22  # of im2col's columns at a time, to stay in a core's cache
# Smallest block; with fewer rows, reading the kernel for every block would take as long as the product.
_BLOCK_ROWS = 1024

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
      otherwise        im2col: the h w strided slices side by side, then one matrix product, for as many
                       images at a time as keep the slices in a core's cache.

    The signature is that of `nnx.Conv(conv_general_dilated=...)`.

    Args:
        images: float [n, H, W, c].
        kernel: float [h, w, c / feature_group_count, o], the dtype of `images`.
        window_strides: two ints.
        padding: "SAME", "VALID", or ((top, bottom), (left, right)) pixels of zeros.
        dimension_numbers: NHWC, HWIO, NHWC; no other layout is supported.
        feature_group_count: 1, or c (depthwise, o = c).
        lhs_dilation: ones; dilation is not supported.
        rhs_dilation: ones; dilation is not supported.
        precision: of the matrix products, as in `jax.lax.dot_general`.
        out_sharding: None; the compiler decides.

    Returns:
        float [n, ceil(H / s), ceil(W / s), o] for "SAME".

    Raises:
        NotImplementedError: another layout, a dilation, an out_sharding, groups not 1 or c.

    Cost: the multiply-adds of the convolution. Im2col holds h w copies of a few images, and makes them again
    for the kernel's derivative. Other memory is a padded input at most. Derivatives of im2col support reverse
    mode only.
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
    strides = (window_strides[0], window_strides[1])
    if depthwise:
        weights = kernel.reshape(height * width, 1, 1, 1, out_channels)
        taps = _taps(images, (height, width), strides)
        out = taps[0] * weights[0]
        for tap, weight in zip(taps[1:], weights[1:], strict=True):
            out += tap * weight
        return out
    if (height, width) == (1, 1):
        (tap,) = _taps(images, (1, 1), strides)
        return jnp.matmul(tap, kernel[0, 0], precision=precision)
    return _im2col(images, kernel, strides, precision)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _im2col(
    images: jax.Array, kernel: jax.Array, strides: tuple[int, int], precision: Any
) -> jax.Array:
    """Convolve padded images by im2col."""
    window, matrix = kernel.shape[:2], kernel.reshape(-1, kernel.shape[-1])

    def product(images: jax.Array) -> jax.Array:
        return jnp.matmul(_columns(images, window, strides), matrix, precision=precision)

    return block_by_block(product, _images_at_once(images, window, strides), images)


def _forward(
    images: jax.Array, kernel: jax.Array, strides: tuple[int, int], precision: Any
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _im2col(images, kernel, strides, precision), (images, kernel)


def _backward(
    strides: tuple[int, int],
    precision: Any,
    inputs: tuple[jax.Array, jax.Array],
    cotangent: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Two loops; XLA drops the first one if the images' derivative is not used."""
    images, kernel = inputs
    window, out_channels = kernel.shape[:2], kernel.shape[-1]
    at_once = _images_at_once(images, window, strides)
    sums = jnp.dtype(jnp.float32) if jnp.finfo(images.dtype).bits < 32 else images.dtype

    def of_images(cotangent: jax.Array) -> jax.Array:
        # Tap by tap: the sum stays in the cache, where columns would be nine times as large.
        total = jnp.zeros((len(cotangent), *images.shape[1:]), sums)
        for (i, j), rows, columns in _window_slices(images, window, strides):
            part = jnp.matmul(cotangent, kernel[i, j].T, precision=precision)
            total = total.at[:, rows, columns].add(part.astype(sums))
        return total.astype(images.dtype)

    def of_kernel(images: jax.Array, cotangent: jax.Array) -> jax.Array:
        columns = _columns(images, window, strides)
        # [o, h w c]: in this order XLA's product takes a fifth less time than in the other.
        return jax.lax.dot_general(
            cotangent.reshape(-1, out_channels),
            columns.reshape(-1, columns.shape[-1]),
            (((0,), (0,)), ((), ())),
            precision=precision,
            preferred_element_type=sums,
        )

    by_images = block_by_block(of_images, at_once, cotangent)
    by_kernel = sum_over_blocks(of_kernel, at_once, images, cotangent)
    return by_images, by_kernel.T.reshape(kernel.shape).astype(kernel.dtype)


_im2col.defvjp(_forward, _backward)


def _images_at_once(images: jax.Array, window: Sequence[int], strides: Sequence[int]) -> int:
    _, *sides, channels = images.shape
    pixels = math.prod(
        (side - size) // stride + 1
        for side, size, stride in zip(sides, window, strides, strict=True)
    )
    num_bytes = pixels * math.prod(window) * channels * images.dtype.itemsize
    least = -(-_BLOCK_ROWS // max(pixels, 1))
    return even_size(len(images), max(_BLOCK_BYTES // max(num_bytes, 1), least))


def _columns(images: jax.Array, window: Sequence[int], strides: Sequence[int]) -> jax.Array:
    """Columns of im2col, [n, y, x, h w c]."""
    return jnp.concatenate(_taps(images, window, strides), axis=-1)


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


def _taps(images: jax.Array, window: Sequence[int], strides: Sequence[int]) -> list[jax.Array]:
    """Pixels under each entry of the window, row by row: h w arrays [n, y, x, c]."""
    return [
        images[:, rows, columns] for _, rows, columns in _window_slices(images, window, strides)
    ]


def _window_slices(
    images: jax.Array, window: Sequence[int], strides: Sequence[int]
) -> list[tuple[tuple[int, int], slice, slice]]:
    """For each entry of the window: (entry, rows, columns of the pixels under it)."""

    def met(first: int, length: int, size: int, stride: int) -> slice:
        return slice(first, first + (length - size) // stride * stride + 1, stride)

    _, height, width, _ = images.shape
    return [
        ((i, j), met(i, height, window[0], strides[0]), met(j, width, window[1], strides[1]))
        for i in range(window[0])
        for j in range(window[1])
    ]
