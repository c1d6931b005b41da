"""Maxima of windows of images, with derivatives that are fast on a CPU.

On a CPU a windowed reduction is fast, but its derivative takes longer than the rest of a training step. So
2 x 2 has a custom derivative for reverse mode, and other sizes use maxima of strided slices.
"""

from __future__ import annotations

from functools import reduce

import jax
import jax.numpy as jnp


def max_pool(x: jax.Array, size: int) -> jax.Array:
    """Maximum of every size x size block of [n, H, W, c]; rows and columns left over are dropped."""
    whole = x[:, : x.shape[1] // size * size, : x.shape[2] // size * size]
    return _max_of_pairs(whole) if size == 2 else _max_of_blocks(whole, size)


def _max_of_blocks(x: jax.Array, size: int) -> jax.Array:
    for axis in (1, 2):
        taps = [jax.lax.slice_in_dim(x, tap, None, size, axis) for tap in range(size)]
        x = reduce(jnp.maximum, taps)
    return x


@jax.custom_vjp
def _max_of_pairs(x: jax.Array) -> jax.Array:
    """Maximum of every 2 x 2 block."""
    lowest = jnp.array(-jnp.inf, x.dtype)
    window = (1, 2, 2, 1)
    return jax.lax.reduce_window(x, lowest, jax.lax.max, window, window, "VALID")


def _pairs_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _max_of_pairs(x), x


def _pairs_backward(x: jax.Array, cotangent: jax.Array) -> tuple[jax.Array]:
    """Backward pass in one loop over x. Ties within a column share its cotangent, and so do tied columns."""
    n, height, width, channels = x.shape
    pairs = x.reshape(n, height // 2, 2, width // 2, 2, channels)
    across = pairs[:, :, ::-1]
    of_column = jnp.maximum(pairs, across)
    share = _share(of_column, of_column[:, :, :, :, ::-1]) * _share(pairs, across)
    return ((cotangent[:, :, None, :, None] * share).reshape(x.shape),)


def _share(one: jax.Array, other: jax.Array) -> jax.Array:
    """Share of a maximum's cotangent for `one`: 1, 0, or 1/2 for a tie."""
    half = jnp.asarray(0.5, one.dtype)
    return jnp.where(one > other, 2 * half, jnp.where(one == other, half, 0 * half))


_max_of_pairs.defvjp(_pairs_forward, _pairs_backward)


def overlapping_max_pool(x: jax.Array) -> jax.Array:
    """Maximum over 3 x 3 windows, 2 apart, of [n, H, W, c] with one pixel of -inf around."""
    for axis in (1, 2):
        pads = [(0, 0, 0)] * x.ndim
        pads[axis] = (1, 1, 0)
        padded = jax.lax.pad(x, jnp.array(-jnp.inf, x.dtype), pads)
        length = (x.shape[axis] + 1) // 2
        taps = [
            jax.lax.slice_in_dim(padded, tap, tap + 2 * length - 1, 2, axis) for tap in range(3)
        ]
        x = jnp.maximum(jnp.maximum(taps[0], taps[1]), taps[2])
    return x
