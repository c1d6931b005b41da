"""Pytrees of arrays, bytes and plain values, as flat records and back.

    {"params": {"kernel": a, "bias": b}, "round": 3}  <->  {"params.kernel": a, "params.bias": b, "round": 3}

A leaf's name is its path. None and empty containers have no leaves, so nothing of them is sent. Structure,
shapes and dtypes come from the reader's template, never from the message: a message cannot make the reader
build anything that it does not expect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.flower.messages.records import PLAIN, BadMessage, Record, Value

_ROOT = "value"  # name of a tree that is a single leaf


def to_record(tree: Any) -> Record:
    """Flatten a pytree; arrays of JAX are copied to the host."""
    return {
        _name(path): np.asarray(leaf) if hasattr(leaf, "dtype") else leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def from_record(record: Mapping[str, Value], template: Any, *, finite: bool = True) -> Any:
    """Rebuild a pytree of the template's structure.

    Array leaves are NumPy arrays, plain values have the template's type; `finite`: no number is infinite.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    forms = {_name(path): leaf for path, leaf in leaves}
    if different := sorted(forms.keys() ^ record.keys()):
        wrong = "missing" if different[0] in forms else "unexpected"
        raise BadMessage(f"{different[0]} is {wrong}")
    for name, form in forms.items():
        value = record[name]
        if (form_of_value := _described(value)) != (wanted := _described(form)):
            raise BadMessage(f"{name} is {form_of_value}, not {wanted}")
        is_number = isinstance(value, float) or jnp.issubdtype(
            getattr(value, "dtype", np.int32), jnp.inexact
        )
        if finite and is_number and not np.isfinite(value).all():
            raise BadMessage(f"{name} is not finite")
    return jax.tree.unflatten(structure, [record[name] for name in forms])


def _name(path: jax.tree_util.KeyPath) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") or _ROOT


def _described(leaf: Any) -> str:
    is_plain = type(leaf) in (bytes, *PLAIN)
    return type(leaf).__name__ if is_plain else f"{leaf.dtype} {list(leaf.shape)}"
