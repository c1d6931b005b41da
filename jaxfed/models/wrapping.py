"""Models made from models: inputs normalized inside, computation in a shorter float type."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

if TYPE_CHECKING:
    from jaxfed.models import Model

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def as_float(x: jax.Array) -> jax.Array:
    """Bytes 0..255 as float32 in [0, 1]; floats as they are."""
    return x.astype(jnp.float32) / 255 if x.dtype == jnp.uint8 else x


def normalized(model: Model, mean: np.ndarray, deviation: np.ndarray) -> Model:
    """The model of (x - mean) / deviation, where x are floats, or bytes read as [0, 1].

    `mean` and `deviation` are one float for each entry of the last axis. So data stay bytes wherever
    they are stored or moved, and augmentation sees images in [0, 1].
    """
    mean, scale = np.asarray(mean, np.float32), 1 / np.asarray(deviation, np.float32)

    def prepare(x: jax.Array) -> jax.Array:
        x = as_float(x)
        shape = (1,) * (x.ndim - 1) + (-1,)
        return (x - mean.reshape(shape)) * scale.reshape(shape)

    return _with_inputs(model, lambda state, x: (state, prepare(x)))


def in_precision(model: Model, dtype: Any) -> Model:
    """The model computed in `dtype` (bfloat16): parameters and inputs rounded, logits float32.

    Parameters stay float32 outside, and so do their gradients and the running statistics.
    """

    def rounded(state: nnx.State, x: jax.Array) -> tuple[nnx.State, jax.Array]:
        parameters, rest = nnx.split_state(state, nnx.Param, ...)
        parameters = jax.tree.map(lambda w: w.astype(dtype), parameters)
        return nnx.merge_state(parameters, rest), x.astype(dtype)

    return _with_inputs(model, rounded)


def _with_inputs(
    model: Model, change: Callable[[nnx.State, jax.Array], tuple[nnx.State, jax.Array]]
) -> Model:
    """The model with `change(state, x)` before each of its functions; its state stays as it is."""

    def features(state: nnx.State, x: jax.Array) -> jax.Array:
        return model.features(*change(state, x)).astype(jnp.float32)

    def head(state: nnx.State, features: jax.Array) -> jax.Array:
        return model.head(state, features)

    def apply(state: nnx.State, x: jax.Array) -> jax.Array:
        return model.apply(*change(state, x)).astype(jnp.float32)

    def train_apply(state: nnx.State, x: jax.Array, key: jax.Array) -> tuple[jax.Array, nnx.State]:
        logits, changed = model.train_apply(*change(state, x), key)
        parameters, statistics = nnx.split_state(state, nnx.Param, ...)
        _, moved = nnx.split_state(changed, nnx.Param, ...)
        moved = jax.tree.map(lambda new, old: new.astype(old.dtype), moved, statistics)
        return logits.astype(jnp.float32), nnx.merge_state(parameters, moved)

    return model._replace(features=features, head=head, apply=apply, train_apply=train_apply)
