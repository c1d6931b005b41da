"""Array helpers of kernels: float32 arguments, unchecked gathers, a random permutation, blocks of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jaxfed.errors import UsageError


def as_float32(name: str, values: ArrayLike) -> jax.Array:
    """Convert an argument to float32. Complex ones are refused: a cast would drop their imaginary part."""
    if np.iscomplexobj(values):
        dtype = getattr(values, "dtype", "complex")  # lists have none
        raise UsageError(f"{name} must be real, got dtype {dtype}")
    return jnp.asarray(values, jnp.float32)


def gather_unchecked(x: jax.Array, indices: jax.Array) -> jax.Array:
    """Gather rows without bounds checks: x[indices], [n, ...], [...] -> [..., ...].

    The indices must be valid: integers in [0, len(x)).

    Plain indexing first maps negative numbers, which count from the end, in a separate pass over `indices`. A
    compiled loop stores the result for every slice of them.
    """
    return x.at[indices].get(mode="promise_in_bounds", wrap_negative_indices=False)


def narrow_product(
    x: jax.Array, kernel: jax.Array, dimension_numbers: Any, **options: Any
) -> jax.Array:
    """x W, [..., C], as x (W^T)^T, for a kernel W [D, C] of few columns: `dot_general` of a dense layer.

    W's gradient is then a product with C rows, g^T x, not with C columns, x^T g; the latter takes XLA:CPU
    four times as long for C = 10. Results agree up to rounding.
    """
    ((axis,), (_,)), batch = dimension_numbers
    # Without the barrier XLA would undo the transposition.
    turned = jax.lax.optimization_barrier(kernel.T)
    return jax.lax.dot_general(x, turned, (((axis,), (1,)), batch), **options)


_ROUNDS = 24
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def permuted(key: jax.Array, position: jax.Array, count: jax.Array) -> jax.Array:
    """Images of some positions under a random permutation of 0..n-1.

    The swap-or-not shuffle (Hoang, Morris, Rogaway, CRYPTO 2012): a round draws k from 0..n-1, pairs x with
    k - x modulo n, and swaps the two of a pair if a random bit of the pair is set. A round is a
    permutation for every n, and so are all of them together. The order that remains after 24 rounds matters
    against an adversary, but not for an order of examples.

    A loop that takes 64 of 100,000 examples a step needs 64 positions, not the whole permutation.

    Args:
        key: typed; determines the permutation.
        position: int32 [B], 0..n-1 each.
        count: int32 scalar, n, 1 or more; it may be traced.

    Returns:
        int32 [B]. The image of a position does not depend on the other positions in the call, or on the
        length of the arrays that are indexed.

    Cost: 24 hashes a position, and no memory; `jax.random.permutation` sorts n numbers.
    """

    turn_key, pair_key = jax.random.split(key)
    turns = jax.random.randint(turn_key, (_ROUNDS,), 0, count)

    def swapped(x: jax.Array, of_round: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        turn, round_key = of_round
        partner = jnp.where(turn >= x, turn - x, turn - x + count)
        hashed = _folded_in(round_key, jnp.maximum(x, partner))
        return jnp.where(hashed >> 31 == 1, partner, x), None

    return jax.lax.scan(swapped, position, (turns, jax.random.split(pair_key, _ROUNDS)))[0]


def _folded_in(key: jax.Array, number: jax.Array) -> jax.Array:
    """The first word of `jax.random.fold_in(key, number)`, uint32 [B], of int32 numbers [B] of 0 or more.

    Threefry's 20 rounds (Salmon, Moraes, Dror, Shaw, SC 2011) are one loop over the numbers here. JAX's own
    is a loop over rounds on a CPU, of a dozen small operations each.
    """
    words = jax.random.key_data(key)
    if words.shape != (2,):  # another generator than Threefry
        hashed = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, number)
        return jax.random.key_data(hashed)[:, 0]
    keys = words[0], words[1], words[0] ^ words[1] ^ jnp.uint32(0x1BD11BDA)
    x = jnp.full_like(number, 0, jnp.uint32) + keys[0]
    y = number.astype(jnp.uint32) + keys[1]
    for group in range(5):
        for shift in _ROTATIONS[group % 2]:
            x = x + y
            y = (y << shift) | (y >> (32 - shift))
            y = x ^ y
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return x


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
    """function(array [n, ...]) -> [n, ...], for `size` rows at a time; the last block may have fewer.

    Intermediate results of a block stay in the cache.
    """
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
