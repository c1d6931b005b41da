"""Apply a function of many rows block by block; intermediate results of a block stay in the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def even_size(count: int, size: int) -> int:
    """A block size near `size` that divides `count`, if there is one within a factor of 3/2; else `size`.

    A remainder block is compiled separately, and the results of all blocks are then copied.
    """
    size = max(1, min(size, count))
    sizes = [even for even in range(1, count + 1) if count % even == 0]
    near = [even for even in sizes if 2 * size <= 3 * even and 2 * even <= 3 * size]
    return max(near, default=size)


def block_by_block(
    function: Callable[[jax.Array], jax.Array], size: int, array: jax.Array
) -> jax.Array:
    """function(array [n, ...]) -> [n, ...], for `size` rows at a time; the last block may have fewer."""
    if len(array) <= size:
        return function(array)
    blocks, rest = _blocks(size, array)
    _, done = lax.scan(lambda none, block: (none, function(block)), None, blocks)
    done = done.reshape(-1, *done.shape[2:])
    return jnp.concatenate([done, function(rest)]) if len(rest) else done


def sum_over_blocks(function: Callable[..., Any], size: int, *arrays: jax.Array) -> Any:
    """function(*arrays), a tree of sums over their rows, for `size` rows at a time."""
    if len(arrays[0]) <= size:
        return function(*arrays)
    count = len(arrays[0])
    whole = count // size * size
    sums = jax.eval_shape(function, *(array[:size] for array in arrays))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), sums)

    def add(total: Any, part: Any) -> Any:
        return jax.tree.map(jnp.add, total, part)

    def of_block(number: jax.Array, total: Any) -> Any:
        # Sliced, not reshaped: other readers of the array then share it, and it is computed once.
        return add(
            total,
            function(*(lax.dynamic_slice_in_dim(array, number * size, size) for array in arrays)),
        )

    total = lax.fori_loop(0, whole // size, of_block, zeros)
    if whole == count:
        return total
    return add(total, function(*(array[whole:] for array in arrays)))


def _blocks(size: int, array: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Whole blocks [number, size, ...], and the remaining rows."""
    whole = len(array) // size * size
    return array[:whole].reshape(-1, size, *array.shape[1:]), array[whole:]
