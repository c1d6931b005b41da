"""Pytrees of arrays, typed keys, bytes and plain values, as flat records and back.

    {"params": {"kernel": a, "bias": b}, "round": 3}  <->  {"params.kernel": a, "params.bias": b, "round": 3}

A leaf's name is its path. None and empty containers have no leaves, so nothing of them is sent. A typed PRNG
key is sent as its data. Structure, shapes and dtypes come from the reader's template, never from the message:
a message cannot make the reader build anything that it does not expect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.flower.messages.records import BadMessage, Record, Value

_ROOT = "value"  # name of a tree that is a single leaf


def to_record(tree: Any) -> Record:
    """Flatten a pytree; arrays of JAX are copied to the host."""
    record: Record = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = _name(path)
        if name in record:
            raise ValueError(f"two leaves of a tree have the name {name}")
        record[name] = _to_value(name, leaf)
    return record


def from_record(record: Mapping[str, Value], template: Any, *, finite: bool = True) -> Any:
    """Rebuild a pytree of the template's structure.

    Array leaves are NumPy arrays, typed keys are JAX arrays, plain values have the template's type.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    names = [_name(path) for path, _ in leaves]
    if missing := sorted(set(names) - record.keys()):
        raise BadMessage(f"{_some(missing)} missing")
    if unknown := sorted(record.keys() - set(names)):
        raise BadMessage(f"{_some(unknown)} unexpected")
    values = [
        _like(name, leaf, record[name], finite)
        for name, (_, leaf) in zip(names, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, values)


def _name(path: jax.tree_util.KeyPath) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") or _ROOT


def _to_value(name: str, leaf: Any) -> Value:
    if type(leaf) in (bytes, str, bool, int, float):
        return leaf
    if _is_key(leaf):
        leaf = jax.random.key_data(leaf)
    if isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return np.asarray(leaf)
    raise TypeError(f"{name}: {type(leaf).__name__} cannot be sent")


def _like(name: str, leaf: Any, value: Value, finite: bool) -> Any:
    """Check a value against a leaf of the template, and convert it to that leaf's type."""
    if type(leaf) in (bytes, str, bool, int, float):
        if type(value) is not type(leaf):
            raise BadMessage(f"{name} is {type(value).__name__}, not {type(leaf).__name__}")
        if finite and isinstance(value, float) and not math.isfinite(value):
            raise BadMessage(f"{name} is not finite")
        return value
    data = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
    if not isinstance(value, np.ndarray):
        raise BadMessage(f"{name} is {type(value).__name__}, not an array")
    if value.dtype != data.dtype or value.shape != data.shape:
        raise BadMessage(
            f"{name} is {_form(value.dtype, value.shape)}, not {_form(data.dtype, data.shape)}"
        )
    if finite and jnp.issubdtype(value.dtype, jnp.inexact) and not np.isfinite(value).all():
        raise BadMessage(f"{name} is not finite")
    if _is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(value), impl=_key_impl(leaf))
    return value


def _key_impl(leaf: Any) -> Any:
    """Generator of a key, or of the `ShapeDtypeStruct` of a key, which only a tracer reveals."""
    found: list[Any] = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), leaf)
    return found[0]


def _is_key(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)


def _form(dtype: Any, shape: tuple[int, ...]) -> str:
    return f"{dtype} {list(shape)}"


def _some(names: list[str]) -> str:
    """Name the first two, and how many more there are."""
    more = f" and {len(names) - 2} more" if names[2:] else ""
    return f"{', '.join(names[:2])}{more} {'are' if names[1:] else 'is'}"
