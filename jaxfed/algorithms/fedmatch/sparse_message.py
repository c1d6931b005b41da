"""Sparse messages: arrays of which only some entries are sent, and their bytes.

A message of n values of b bytes, k of which are sent (those that changed, or that are not 0), is written
in the shortest of three ways:

    dense          b n                   every value
    bitmap         ceil(n / 8) + b k     one bit an entry, then the values that are sent
    coordinates    (4 + b) k             the index of each value that is sent, a uint32, and the value

Float32 goes as coordinates below n / 32 values, as a bitmap up to 31 n / 32, and dense above. Which of
the three it is would take a byte of a header; headers are not counted (`jaxfed.federation.communication`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxfed.federation.communication import num_bytes_of

_INDEX_BYTES = 4


def without_small(tree: Any, threshold: float) -> Any:
    """Set entries of at most `threshold` in absolute value to 0, in float32 pytrees; 0 changes nothing."""
    return jax.tree.map(lambda leaf: jnp.where(jnp.abs(leaf) > threshold, leaf, 0), tree)


def where_changed(before: Any, after: Any, threshold: float) -> tuple[Any, jax.Array]:
    """Update `before` by the entries that changed by more than `threshold`, as the receiver does.

    Returns:
        `after` in the entries that are sent and `before` in the others, and the message's bytes, int32.
    """
    is_sent = jax.tree.map(lambda a, b: jnp.abs(b - a) > threshold, before, after)
    return jax.tree.map(jnp.where, is_sent, after, before), num_bytes(after, is_sent)


def num_bytes_of_nonzero(tree: Any) -> jax.Array:
    """Bytes, int32, of a pytree whose zeros are not sent."""
    return num_bytes(tree, jax.tree.map(lambda leaf: leaf != 0, tree))


def num_bytes(tree: Any, is_sent: Any) -> jax.Array:
    """Bytes, int32, of one message with the pytree's sent entries; `is_sent` is bool, of its form."""
    leaves = jax.tree.leaves(tree)
    counts = [jnp.sum(sent, dtype=jnp.int32) for sent in jax.tree.leaves(is_sent)]
    size = sum(leaf.size for leaf in leaves)
    dense = num_bytes_of(leaves)
    pairs = list(zip(counts, leaves, strict=True))
    values = sum((count * leaf.dtype.itemsize for count, leaf in pairs), jnp.int32(0))
    coordinates = _INDEX_BYTES * sum(counts, jnp.int32(0)) + values
    return jnp.minimum(jnp.minimum(dense, -(-size // 8) + values), coordinates)
