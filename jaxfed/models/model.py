"""A model as pure functions of its state, the conversion of a Flax module to it, and models that wrap models.

A state is a pytree of float32 `nnx.Param` leaves, which are trained, and `nnx.BatchStat` leaves: the
running mean and variance of every BatchNorm. Training updates them, and only evaluation reads them. A model
without BatchNorm has no such leaves. `nnx.split_state(state, nnx.Param, ...)` separates the two. Averaging of
statistics is decided in the training of clients, never in a model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}

# state, x, key -> features [n, D] or logits [n, C] in training mode, and the state with updated statistics
InTraining = Callable[[nnx.State, jax.Array, jax.Array], tuple[jax.Array, nnx.State]]


class Model(NamedTuple):
    """A network as pure functions of its state, for plain `jax.jit`, `grad` and `vmap`.

    x is float32 [n, ...]: images [n, H, W, c], or vectors. Bytes are read as [0, 1].

    init: key -> state, with random weights.
    features: state, x -> float32 [n, D], the input of the last layer; running statistics, no dropout.
    head: state, features -> logits [n, C]. A model built for no classes has none: its logits are
        its features.
    apply: state, x -> logits [n, C]; `head` of `features`.
    train_features: state, x, key -> (features, state): statistics of the batch, dropout drawn from
        the key, also the dropout between features and head.
    train_apply: state, x, key -> (logits, state); `head` of `train_features`. A loss of both features
        and logits calls those two itself.
    by_example: True if training too computes each example independently, without statistics of the batch or
        randomness; a batch may then be split.
    """

    init: Callable[[jax.Array], nnx.State]
    features: Callable[[nnx.State, jax.Array], jax.Array]
    head: Callable[[nnx.State, jax.Array], jax.Array]
    apply: Callable[[nnx.State, jax.Array], jax.Array]
    train_features: InTraining
    train_apply: InTraining
    by_example: bool = False


def as_float(x: jax.Array) -> jax.Array:
    """Bytes 0..255 as float32 in [0, 1]; other integers and booleans as float32; floats as they are."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        return x
    return x.astype(jnp.float32) / (255 if x.dtype == jnp.uint8 else 1)


def compose(
    *,
    init: Callable[[jax.Array], nnx.State],
    features: Callable[[nnx.State, jax.Array], jax.Array],
    head: Callable[[nnx.State, jax.Array], jax.Array],
    train_features: InTraining,
    by_example: bool = False,
) -> Model:
    """Build a model from these parts, whose x are floats, with `apply` and `train_apply` composed of them."""

    def evaluated(state: nnx.State, x: jax.Array) -> jax.Array:
        return features(state, as_float(x))

    def trained(state: nnx.State, x: jax.Array, key: jax.Array) -> tuple[jax.Array, nnx.State]:
        return train_features(state, as_float(x), key)

    def apply(state: nnx.State, x: jax.Array) -> jax.Array:
        return head(state, evaluated(state, x))

    def train_apply(state: nnx.State, x: jax.Array, key: jax.Array) -> tuple[jax.Array, nnx.State]:
        features, moved = trained(state, x, key)
        return head(state, features), moved

    return Model(init, evaluated, head, apply, trained, train_apply, by_example)


def from_module(build: Callable[[nnx.Rngs], Any], *, by_example: bool = False) -> Model:
    """Convert the Flax module that `build` makes; its graph is traced once, without computing.

    The module has `features(x, rngs=None)`, [n, D], in training mode if `rngs` are given, and
    `head(features)`, logits [n, C]. It holds no random streams.
    """

    def init(key: jax.Array) -> nnx.State:
        return nnx.state(build(nnx.Rngs(key)))

    graph = nnx.graphdef(nnx.eval_shape(lambda: build(nnx.Rngs(0))))

    def features(state: nnx.State, x: jax.Array) -> jax.Array:
        return nnx.merge(graph, state).features(x)

    def head(state: nnx.State, features: jax.Array) -> jax.Array:
        return nnx.merge(graph, state).head(features)

    def train_features(
        state: nnx.State, x: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, nnx.State]:
        module = nnx.merge(graph, state, copy=True)  # its statistics move; the caller's must not
        trained = module.features(x, nnx.Rngs(dropout=key))
        return trained, nnx.state(module)

    return compose(
        init=init,
        features=features,
        head=head,
        train_features=train_features,
        by_example=by_example,
    )


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

    return compose(
        init=model.init,
        features=features,
        head=model.head,
        train_features=train_features,
        by_example=model.by_example,
    )


def _prepared(model: Model, prepare: Callable[[jax.Array], jax.Array]) -> Model:
    """The model of prepare(x)."""
    return compose(
        init=model.init,
        features=lambda state, x: model.features(state, prepare(x)),
        head=model.head,
        train_features=lambda state, x, key: model.train_features(state, prepare(x), key),
        by_example=model.by_example,
    )
