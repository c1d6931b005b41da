"""3 x 3 convolutions with 16 products instead of 36: F(2x2, 3x3) of Lavin and Gray (2016).

Four pixels of an output channel are a tile Y [2, 2], and the pixels under their windows a tile d [4, 4]. With
a kernel g [3, 3] of one pair of channels

    Y = A^T ( (G g G^T) . (B^T d B) ) A         . entry by entry, summed over input channels

         |1  0 -1  0|         |  1    0    0 |          |1  1  1  0|
    B^T= |0  1  1  0|     G = | 1/2  1/2  1/2|    A^T = |0  1 -1 -1|
         |0 -1  1  0|         | 1/2 -1/2  1/2|
         |0  1  0 -1|         |  0    0    1 |

So each of the 16 entries of all tiles is one matrix product [tiles, c] x [c, o]. B and A have entries 0 and
+-1, and their results are four times a layer's input and output, where im2col has nine times its input. The
derivative by the images is the convolution of the cotangent with the flipped kernel. The derivative by the
kernel is, with Z = A Y' A^T of the cotangent Y', G^T ( sum over tiles Z . (B^T d B) ) G.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxfed.kernels.arrays import block_by_block, even_size, sum_over_blocks
from jaxfed.kernels.direct_conv import (
    Pads,
    direct_conv,
    is_plain,
    kernel_gradient,
    pads_of_gradient,
    pixels_of_zeros,
)

# Below this, transforms cost more than products save (measured on two cores with AVX-512).
_LEAST_CHANNELS = 32
# Largest number of channel pairs for which the kernel's derivative takes longer to transform than to
# convolve, unless all tiles stay in a core's cache.
_FEW_PAIRS = 64 * 64
# Bytes of tiles' 16 entries, of input and output:
_BLOCK_BYTES = 12 * 2**20  # fits the caches
_CORE_BYTES = 3 * 2**20  # fits one core without waiting for the others' cache

# Rows of B^T: entry `first` plus `sign` times entry `second`.
_ROWS = ((0, 2, -1), (1, 2, 1), (2, 1, -1), (1, 3, -1))


def winograd_conv(
    images: jax.Array,
    kernel: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    *,
    precision: Any = None,
    **settings: Any,
) -> jax.Array:
    """Convolve as `matmul_conv` does, by Winograd's products where they save time on a CPU.

    It saves time for a 3 x 3 kernel with 32 channels or more on both sides and stride one, for images of even
    sides, in single precision, with at least as many tiles in the batch as channels (else reading 16 kernels
    would take longer than the products). Everything else is `direct_conv`.

    Arguments, result and errors are those of `matmul_conv`; rounding errors are a few times those of the
    definition.

    Cost: 4/9 of the multiply-adds; 12 MiB in addition to padded images and result. Derivatives support
    reverse mode only.
    """
    strides = (window_strides[0], window_strides[1])
    pads = pixels_of_zeros(images, kernel, strides, padding)
    if is_plain(strides, settings) and _saves(images, kernel, pads):
        return _winograd(images, kernel, pads, precision)
    return direct_conv(images, kernel, strides, pads, precision=precision, **settings)


def _saves(images: jax.Array, kernel: jax.Array, pads: Pads) -> bool:
    count, height, width, _ = images.shape
    out = [side + sum(pad) - 2 for side, pad in zip((height, width), pads, strict=True)]
    return (
        kernel.shape[:2] == (3, 3)
        and images.dtype == jnp.float32
        and min(kernel.shape[2:]) >= _LEAST_CHANNELS
        and all(side % 2 == 0 for side in (height, width, *out))
        and all(0 <= pixels <= 2 for pad in pads for pixels in pad)
        and count * out[0] * out[1] >= 4 * max(kernel.shape[2:])
    )


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _winograd(images: jax.Array, kernel: jax.Array, pads: Pads, precision: Any) -> jax.Array:
    return _convolved(images, kernel, pads, precision, over=0)


def _convolved(
    images: jax.Array, kernel: jax.Array, pads: Pads, precision: Any, *, over: int
) -> jax.Array:
    """Convolve, with sums over the kernel's input channels (`over` 0) or its output channels (1)."""
    matrices = _of_kernel(kernel)
    dimensions = (((1,), (over,)), ((), ()))

    def convolve(images: jax.Array) -> jax.Array:
        padded = _padded(images, pads)
        products = [
            lax.dot_general(tiles, matrix, dimensions, precision=precision)
            for tiles, matrix in zip(_tiles(padded), matrices, strict=True)
        ]
        _, height, width, _ = padded.shape
        return _joined(products, height - 2, width - 2)

    return block_by_block(convolve, _images_at_once(images, kernel), images)


def _forward(
    images: jax.Array, kernel: jax.Array, pads: Pads, precision: Any
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _winograd(images, kernel, pads, precision), (images, kernel)


def _backward(
    pads: Pads, precision: Any, inputs: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    images, kernel = inputs
    rest = pads_of_gradient(pads, kernel)
    by_images = _convolved(cotangent, kernel[::-1, ::-1], rest, precision, over=1)
    many_bytes = len(images) * _bytes_of_tiles(images, kernel) > _CORE_BYTES
    if many_bytes and math.prod(kernel.shape[2:]) <= _FEW_PAIRS:
        return by_images, kernel_gradient(images, cotangent, pads, precision)

    def sums(images: jax.Array, cotangent: jax.Array) -> list[jax.Array]:
        return [
            lax.dot_general(tiles, spread, (((0,), (0,)), ((), ())), precision=precision)
            for tiles, spread in zip(_tiles(_padded(images, pads)), _spread(cotangent), strict=True)
        ]

    size = _images_at_once(images, kernel)
    return by_images, _to_kernel(sum_over_blocks(sums, size, images, cotangent))


_winograd.defvjp(_forward, _backward)


# Transforms return lists of 16 arrays. XLA would copy stacked ones, and its products would be slower.


def _of_kernel(kernel: jax.Array) -> list[jax.Array]:
    """G g G^T: 16 times [c, o]."""

    def transformed(a: jax.Array, b: jax.Array, c: jax.Array) -> list[jax.Array]:
        return [a, (a + b + c) / 2, (a - b + c) / 2, c]

    columns = [transformed(*kernel[:, j]) for j in range(3)]  # [j][row of G g]
    return [entry for row in zip(*columns, strict=True) for entry in transformed(*row)]


def _to_kernel(sums: list[jax.Array]) -> jax.Array:
    """G^T s G of 16 times [c, o]: [3, 3, c, o]."""

    def transformed(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> list[jax.Array]:
        return [a + (b + c) / 2, (b - c) / 2, (b + c) / 2 + d]

    rows = [transformed(*sums[i : i + 4]) for i in range(0, 16, 4)]  # [row][column of s G]
    columns = [transformed(*column) for column in zip(*rows, strict=True)]
    entries = [columns[j][i] for i, j in product(range(3), range(3))]
    # The barrier gives each entry its own loop. Fused with stacking, every element would select its entry.
    return jnp.stack(lax.optimization_barrier(entries)).reshape(3, 3, *sums[0].shape)


def _tiles(images: jax.Array) -> list[jax.Array]:
    """B^T d B of padded images: 16 times [tiles, c]."""
    _, height, width, channels = images.shape

    def pixels(row: int, column: int) -> jax.Array:
        return images[:, row : row + height - 3 : 2, column : column + width - 3 : 2]

    return [
        ((pixels(a, c) + t * pixels(a, d)) + s * (pixels(b, c) + t * pixels(b, d))).reshape(
            -1, channels
        )
        for (a, b, s), (c, d, t) in product(_ROWS, _ROWS)
    ]


def _joined(products: list[jax.Array], height: int, width: int) -> jax.Array:
    """A^T m A of 16 times [tiles, o]: the output [n, height, width, o]."""
    shape = (-1, height // 2, width // 2, products[0].shape[-1])
    entries = [array.reshape(shape) for array in products]
    rows = [entries[i : i + 4] for i in range(0, 16, 4)]
    by_row = [
        [first + second + third for first, second, third, _ in zip(*rows, strict=True)],
        [second - third - last for _, second, third, last in zip(*rows, strict=True)],
    ]
    pixels = [jnp.stack([r[0] + r[1] + r[2], r[1] - r[2] - r[3]], axis=3) for r in by_row]
    return jnp.stack(pixels, axis=2).reshape(-1, height, width, shape[-1])


def _spread(cotangent: jax.Array) -> list[jax.Array]:
    """A Y' A^T of [n, H', W', o]: 16 times [tiles, o]."""
    channels = cotangent.shape[-1]
    (a, b), (c, d) = (
        [cotangent[:, row::2, column::2].reshape(-1, channels) for column in range(2)]
        for row in range(2)
    )
    rows = [(a, b), (a + c, b + d), (a - c, b - d), (-c, -d)]
    return [entry for left, right in rows for entry in (left, left + right, left - right, -right)]


def _padded(images: jax.Array, pads: Pads) -> jax.Array:
    return jnp.pad(images, ((0, 0), *pads, (0, 0)))


def _images_at_once(images: jax.Array, kernel: jax.Array) -> int:
    return even_size(len(images), _BLOCK_BYTES // _bytes_of_tiles(images, kernel))


def _bytes_of_tiles(images: jax.Array, kernel: jax.Array) -> int:
    """Bytes of the tiles of one image."""
    _, height, width, _ = images.shape
    num_bytes: int = 4 * height * width * sum(kernel.shape[2:]) * images.dtype.itemsize
    return num_bytes
