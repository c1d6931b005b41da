"""Convolution by XLA:CPU's own routine, with both derivatives in the one form that is fast there.

XLA:CPU calls a library that nearly reaches the rate of one core's matrix products, also in a loop, if images
are [n, H, W, c], the kernel is [h, w, c, o], and nothing is dilated or flipped. JAX's own derivatives have
other forms, up to a hundred times slower. With images X, padded, and a cotangent G,

    of the images   G padded by h - 1 and w - 1 pixels, convolved with kernel[::-1, ::-1]^T
    of the kernel   sum_{n, y, x} X[n, y + i, x + j, c] G[n, y, x, o]:  X as c images of n channels, convolved
                    with G as a kernel of H' x W' pixels, n channels in, o out; a few n at a time

are such convolutions again. Under `vmap` kernels differ and XLA:CPU has no routine; there it is im2col.

Alternatives on two cores with AVX-512, for 16 and 32 channels. Im2col takes twice the time on one core, half
of it for columns and half for their product. Columns row by row, summed products by tap, and products batched
by image take no less. Columns or cotangent transposed before the product take more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from jaxfed.kernels.arrays import even_size, sum_over_blocks
from jaxfed.kernels.conv import matmul_conv

Pads = tuple[tuple[int, int], tuple[int, int]]

_LAYOUT = ("NHWC", "HWIO", "NHWC")
# With fewer input channels columns are narrow, and their product is faster than the convolution.
_LEAST_CHANNELS = 8
_COLUMNS = 64  # of a product for images with few channels
_IMAGES_AT_ONCE = 10  # in the kernel's derivative, to stay in a core's cache


def direct_conv(
    images: jax.Array,
    kernel: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    *,
    precision: Any = None,
    **settings: Any,
) -> jax.Array:
    """Convolve as `matmul_conv` does, by XLA:CPU's own convolution where that saves time.

    It saves time for kernels of more than one pixel with stride one, in single precision, in one group, and
    with no more padding than keeps the size. Everything else is `matmul_conv`.

    Arguments, result and errors are those of `matmul_conv`.

    Cost: the multiply-adds of the convolution, and of each derivative; copies of images, cotangent and kernel
    with their axes in another order. Derivatives are for reverse mode.
    """
    strides, window = (window_strides[0], window_strides[1]), kernel.shape[:2]
    pads = pixels_of_zeros(images, kernel, strides, padding)
    fits = (
        is_plain(strides, settings)
        and window != (1, 1)
        and images.dtype == jnp.float32
        and all(
            0 <= pixels < size for pad, size in zip(pads, window, strict=True) for pixels in pad
        )
    )
    if not fits:
        return matmul_conv(images, kernel, strides, pads, precision=precision, **settings)
    return _direct(images, kernel, pads, precision)


def pixels_of_zeros(
    images: jax.Array,
    kernel: jax.Array,
    strides: tuple[int, int],
    padding: str | Sequence[tuple[int, int]],
) -> Pads:
    """Padding as pixels on each side."""
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(images.shape[1:3], kernel.shape[:2], strides, padding)
    (top, bottom), (left, right) = padding
    return ((top, bottom), (left, right))


def is_plain(strides: tuple[int, int], settings: Mapping[str, Any]) -> bool:
    """True without strides, dilation and groups."""
    dilations = (settings.get(name) or () for name in ("lhs_dilation", "rhs_dilation"))
    is_one = all(dilation == 1 for each in dilations for dilation in each)
    return is_one and strides == (1, 1) and settings.get("feature_group_count", 1) == 1


def pads_of_gradient(pads: Pads, kernel: jax.Array) -> Pads:
    """Padding of the images' gradient, a convolution of the cotangent with the flipped kernel [h, w, ...]."""
    height, width = kernel.shape[:2]
    (top, bottom), (left, right) = pads
    return ((height - 1 - top, height - 1 - bottom), (width - 1 - left, width - 1 - right))


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _direct(images: jax.Array, kernel: jax.Array, pads: Pads, precision: Any) -> jax.Array:
    return _convolved(images, kernel, pads, precision)


def _forward(
    images: jax.Array, kernel: jax.Array, pads: Pads, precision: Any
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _direct(images, kernel, pads, precision), (images, kernel)


def _backward(
    pads: Pads, precision: Any, inputs: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    images, kernel = inputs
    rest = pads_of_gradient(pads, kernel)
    turned = lax.optimization_barrier(kernel[::-1, ::-1].swapaxes(2, 3))
    by_images = _convolved(cotangent, turned, rest, precision)
    return by_images, kernel_gradient(images, cotangent, pads, precision)


_direct.defvjp(_forward, _backward)


def _convolved(images: jax.Array, kernel: jax.Array, pads: Pads, precision: Any) -> jax.Array:
    def by_columns(images: jax.Array, kernel: jax.Array) -> jax.Array:
        return _side_by_side(images, kernel, pads, precision)

    if kernel.shape[2] < _LEAST_CHANNELS:
        return by_columns(images, kernel)

    def by_library(images: jax.Array, kernel: jax.Array) -> jax.Array:
        return _native(images, kernel, pads, precision)

    return _one_or_many(by_library, by_columns)(images, kernel)


def _side_by_side(images: jax.Array, kernel: jax.Array, pads: Pads, precision: Any) -> jax.Array:
    """im2col with some neighboring pixels of a row in one row of the product, of s o columns.

    With few channels in and out, the time of a product is proportional to its number of rows. s neighbors
    together read h (w + s - 1) pixels instead of s h w, with a kernel padded by zeros.
    """
    height, width, in_channels, out_channels = kernel.shape
    out_width = images.shape[2] + sum(pads[1]) - width + 1
    together = max(
        count for count in range(1, max(_COLUMNS // out_channels, 1) + 1) if out_width % count == 0
    )
    wide = jnp.stack(
        [
            jnp.pad(kernel, ((0, 0), (offset, together - 1 - offset), (0, 0), (0, 0)))
            for offset in range(together)
        ],
        axis=3,
    ).reshape(height, width + together - 1, in_channels, together * out_channels)
    out = matmul_conv(images, wide, (1, together), pads, precision=precision)
    return out.reshape(*out.shape[:2], out_width, out_channels)


def kernel_gradient(
    images: jax.Array, cotangent: jax.Array, pads: Pads, precision: Any
) -> jax.Array:
    """The derivative by the kernel of a convolution with stride one, float [h, w, c, o]."""

    def of_block(images: jax.Array, cotangent: jax.Array) -> jax.Array:
        # Without the barriers XLA would choose the form of convolution that is slow.
        turned, kernel = lax.optimization_barrier(
            (images.transpose(3, 1, 2, 0), cotangent.transpose(1, 2, 0, 3))
        )
        return lax.optimization_barrier(_native(turned, kernel, pads, precision))

    def by_library(images: jax.Array, cotangent: jax.Array) -> jax.Array:
        size = even_size(len(images), _IMAGES_AT_ONCE)
        sums: jax.Array = sum_over_blocks(of_block, size, images, cotangent)
        return sums.transpose(1, 2, 0, 3)

    def by_columns(images: jax.Array, cotangent: jax.Array) -> jax.Array:
        (top, bottom), (left, right) = pads
        window = (
            images.shape[1] + top + bottom - cotangent.shape[1] + 1,
            images.shape[2] + left + right - cotangent.shape[2] + 1,
        )
        kernel = jnp.zeros((*window, images.shape[-1], cotangent.shape[-1]), images.dtype)
        _, pull = jax.vjp(
            lambda kernel: matmul_conv(images, kernel, (1, 1), pads, precision=precision), kernel
        )
        return pull(cotangent)[0]

    return _one_or_many(by_library, by_columns)(images, cotangent)


def _native(images: jax.Array, kernel: jax.Array, pads: Pads, precision: Any) -> jax.Array:
    return lax.conv_general_dilated(
        images, kernel, (1, 1), pads, dimension_numbers=_LAYOUT, precision=precision
    )


def _one_or_many(
    one: Callable[..., jax.Array], many: Callable[..., jax.Array]
) -> Callable[..., jax.Array]:
    """`one`, replaced by the `vmap` of `many` under `vmap`."""
    chosen = custom_vmap(one)

    @chosen.def_vmap
    def rule(axis_size: int, in_batched: Sequence[bool], *arrays: jax.Array) -> tuple[Any, bool]:
        del axis_size
        axes = tuple(0 if batched else None for batched in in_batched)
        return jax.vmap(many, in_axes=axes)(*arrays), True

    return chosen
