"""Models that wrap models: with normalized inputs, or computed in bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.models.model import InTraining, Model, compose

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def normalized(model: Model, mean: np.ndarray, deviation: np.ndarray) -> Model:
    """The model of (x - mean) / deviation, where x are floats, or bytes read as [0, 1].

    `mean` and `deviation` have one float for each entry of the last axis. Because the model normalizes, data
    are stored and moved as bytes, and augmentation gets images in [0, 1].
    """
    mean, scale = np.asarray(mean, np.float32), 1 / np.asarray(deviation, np.float32)

    def prepare(x: jax.Array) -> jax.Array:
        shape = (1,) * (x.ndim - 1) + (-1,)
        return (x - mean.reshape(shape)) * scale.reshape(shape)

    return _prepared(model, prepare)


def of_first_row(model: Model) -> Model:
    """Return the model of x[:, 0], for examples [B, rows, D]; examples [B, D] stay as they are."""

    def first(x: jax.Array) -> jax.Array:
        return x[:, 0] if x.ndim == 3 else x

    return _prepared(model, first)


def in_precision(model: Model, dtype: Any) -> Model:
    """The model whose features are computed in `dtype` (bfloat16), parameters and inputs rounded.

    Norms (`jaxfed.models.layers`) and the head still compute in float32. Parameters are stored in float32, as
    are their gradients and the running statistics; features are float32.
    """

    def rounded(state: nnx.State) -> nnx.State:
        parameters, statistics = nnx.split_state(state, nnx.Param, ...)
        parameters = jax.tree.map(lambda w: w.astype(dtype), parameters)
        return nnx.merge_state(parameters, statistics)

    def features(state: nnx.State, x: jax.Array) -> jax.Array:
        return model.features(rounded(state), x.astype(dtype)).astype(jnp.float32)

    def train_features(
        state: nnx.State, x: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, nnx.State]:
        trained, changed = model.train_features(rounded(state), x.astype(dtype), key)
        parameters, _ = nnx.split_state(state, nnx.Param, ...)
        _, moved = nnx.split_state(changed, nnx.Param, ...)
        return trained.astype(jnp.float32), nnx.merge_state(parameters, moved)

    return _wrapped(model, features, train_features)


def _prepared(model: Model, prepare: Callable[[jax.Array], jax.Array]) -> Model:
    """The model of prepare(x)."""

    def features(state: nnx.State, x: jax.Array) -> jax.Array:
        return model.features(state, prepare(x))

    def train_features(
        state: nnx.State, x: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, nnx.State]:
        return model.train_features(state, prepare(x), key)

    return _wrapped(model, features, train_features)


def _wrapped(model: Model, features: Callable[..., jax.Array], train_features: InTraining) -> Model:
    return compose(
        init=model.init,
        features=features,
        head=model.head,
        train_features=train_features,
        by_example=model.by_example,
    )
