"""A function of many rows, for so many rows at a time that what it makes on the way stays in the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


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
    pairs = [_blocks(size, array) for array in arrays]
    blocks, rest = [block for block, _ in pairs], [rest for _, rest in pairs]
    zeros = jax.tree.map(
        lambda sums: jnp.zeros(sums.shape, sums.dtype), jax.eval_shape(function, *rest)
    )

    def add(total: Any, part: Any) -> Any:
        return jax.tree.map(jnp.add, total, part)

    total, _ = lax.scan(lambda total, block: (add(total, function(*block)), None), zeros, blocks)
    return add(total, function(*rest)) if len(rest[0]) else total


def _blocks(size: int, array: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[number, size, ...], and what is left over."""
    whole = len(array) // size * size
    return array[:whole].reshape(-1, size, *array.shape[1:]), array[whole:]
