"""Conversion of any Flax network, NNX or Linen, to a `Model`.

    model = from_flax(lambda rngs: Net(rngs), (28, 28, 1))      # NNX: a function that makes the module
    model = from_flax(Net(), (28, 28, 1))                       # Linen: the module

The network maps [n, ...] to logits [n, C]. Training mode is set in all ways that Flax has: by
`module.train()` and `.eval()` (NNX), and by those of the arguments `train`, `training`, `is_training`,
`deterministic`, `use_running_average` and `rngs` that `__call__` takes. Dropout draws from a key of the step
alone.

Methods that use features, such as XCLP's pseudo-labels, get `features(x)` if the network's class has the
methods `features(x)` and `head(features)`. Otherwise its logits serve as features; submodules of these names
do not count.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import flax.errors
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.models.model import Model, compose
from jaxfed.settings import Count, is_allowed

# Arguments for the mode -> their values in training.
_MODES = {
    "train": True,
    "training": True,
    "is_training": True,
    "deterministic": False,
    "use_running_average": False,
}


FlaxModule = flax.linen.Module | nnx.Module | Callable[[nnx.Rngs], nnx.Module]
# Method, state, x, key -> output, state; the key is None in evaluation.
_Call = Callable[[str, nnx.State, jax.Array, jax.Array | None], tuple[Any, nnx.State]]


def from_flax(module: FlaxModule, input_shape: Sequence[int]) -> Model:
    """The model of a Flax network for examples of this shape.

    Args:
        module: a Linen module; a function that makes an NNX module from an `nnx.Rngs`, such as its class; or
            an NNX module, whose weights are then the start of every training.
        input_shape: of one example; the network receives bytes as floats in [0, 1].

    Returns:
        A `Model`. Its state holds the network's parameters and running statistics.

    Raises:
        UsageError: the network cannot be trained by clients and averaged by a server: it has variables that
            are neither parameters nor running statistics, parameters that are not float32, another required
            argument, an output that is not [n, C], or `head(features(x))` differs from its output.

    Cost: traces of the network; with `features` and `head`, also two forward passes on two examples.
    """
    if not is_allowed(input_shape, Sequence[Count]):
        shape = " ".join(repr(input_shape).split())
        raise UsageError(f"from_flax(input_shape={shape}): use tuples, such as (8,)")
    if not callable(module):
        raise UsageError(
            f"from_flax({type(module).__name__}): use a Linen module, an NNX module, or a "
            "function that makes an NNX module from its nnx.Rngs"
        )
    name, methods, init, call = _parts(module, tuple(input_shape))
    # Methods of the class: a submodule named `features` may need other arguments.
    has_features = all(callable(getattr(type(methods), n, None)) for n in ("features", "head"))
    whole = "features" if has_features else "__call__"
    model = compose(
        init=init,
        features=lambda state, x: call(whole, state, x, None)[0],
        head=lambda state, z: call("head", state, z, None)[0] if has_features else z,
        train_features=lambda state, x, key: call(whole, state, x, key),
    )
    _check(model, name, tuple(input_shape))
    if has_features and callable(methods):
        _check_features(model, call, name, tuple(input_shape))
    return model


def _parts(
    module: FlaxModule, input_shape: tuple[int, ...]
) -> tuple[str, Any, Callable[[jax.Array], nnx.State], _Call]:
    """A network's name, the object with its methods, its initial state, and its call."""
    name = getattr(module, "__name__", type(module).__name__)
    if flax.linen.Module in getattr(module, "__mro__", ()):
        raise UsageError(f"from_flax({name}): is a class; use a Linen module made from it")
    is_linen = isinstance(module, flax.linen.Module)

    def build(rngs: nnx.Rngs) -> nnx.Module:
        if isinstance(module, flax.linen.Module):
            example = jnp.zeros((1, *input_shape), jnp.float32)
            wrapped = nnx.bridge.ToNNX(module, rngs=rngs)
            return wrapped.lazy_init(example, **_mode(name, module.__call__, None))
        return module if isinstance(module, nnx.Module) else module(rngs)

    taken = f"does not take examples of {input_shape}"
    with _naming(name, taken if is_linen else "cannot be made from its nnx.Rngs"):
        shapes = nnx.eval_shape(lambda: build(nnx.Rngs(0)))
    if not isinstance(shapes, nnx.Module):
        raise UsageError(
            f"from_flax: {module!r} makes a {type(shapes).__name__}; use an nnx.Module"
        )
    methods = module if is_linen else shapes
    name = type(methods).__name__
    graph, *states = nnx.split(shapes, (nnx.Param, nnx.BatchStat), nnx.RngState, ...)
    _, streams, rest = states
    for path, variable in nnx.to_flat_state(rest):
        raise UsageError(
            f"{name}: {'.'.join(map(str, path))} is of type {type(variable).__name__}; use nnx.Param and "
            "nnx.BatchStat (Linen's 'params' and 'batch_stats'), which clients train and a server averages"
        )
    # Random streams are not averaged: each call derives new ones from its key.
    streams = jax.jit(lambda: nnx.state(build(nnx.Rngs(0)), nnx.RngState))() if streams else streams

    def init(key: jax.Array) -> nnx.State:
        return nnx.state(build(nnx.Rngs(key)), (nnx.Param, nnx.BatchStat))

    def call(
        method: str, state: nnx.State, x: jax.Array, key: jax.Array | None
    ) -> tuple[jax.Array, nnx.State]:
        network = nnx.merge(graph, state, streams, copy=True)  # the caller's state must not change
        rngs = None if key is None else nnx.Rngs(key)
        mode = _mode(name, getattr(methods if is_linen else network, method), rngs)
        if rngs is None:
            network.eval()
            mode |= {"rngs": {}} if is_linen else {}
        else:
            network.train()
            mode |= {"mutable": ["batch_stats"]} if is_linen else {}
            keys = nnx.to_flat_state(nnx.state(network, nnx.RngKey))
            streams_used = sorted({variable.tag for _, variable in keys})
            nnx.reseed(network, **{stream: rngs() for stream in streams_used})
        output = getattr(network, method)(x, **mode)
        return output, nnx.state(network, (nnx.Param, nnx.BatchStat))

    return name, methods, init, call


def _mode(name: str, function: Callable[..., Any], rngs: nnx.Rngs | None) -> dict[str, Any]:
    """The arguments for the mode that a method takes beside x; training mode with `rngs`.

    Raises:
        UsageError: the method requires another argument.
    """
    _, *parameters = inspect.signature(function).parameters.values()
    trains = rngs is not None
    keywords: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if parameter.name in _MODES:
            keywords[parameter.name] = _MODES[parameter.name] == trains
        elif parameter.name == "rngs":
            keywords["rngs"] = rngs
        elif parameter.default is parameter.empty:
            allowed = ", ".join([*_MODES, "rngs"])
            raise UsageError(
                f"{name}.{function.__name__}: requires the argument {parameter.name!r}; beside the examples "
                f"use {allowed}, and arguments with a default"
            )
    return keywords


def _check(model: Model, name: str, input_shape: tuple[int, ...]) -> None:
    """Run the network on shapes, in both modes."""
    key = jax.random.key(0)
    state = jax.eval_shape(model.init, key)
    for path, leaf in nnx.to_flat_state(state):
        if leaf.dtype != jnp.float32:
            where = ".".join(map(str, path))
            raise UsageError(
                f"{name}: {where} is {leaf.dtype}; parameters and statistics must be float32 "
                "(config.execution.precision computes in bfloat16)"
            )
    if not jax.tree.leaves(nnx.filter_state(state, nnx.Param)):
        raise UsageError(f"{name}: has no parameters")
    x = jax.ShapeDtypeStruct((2, *input_shape), jnp.float32)
    with _naming(name, f"does not take examples of {input_shape}"):
        logits = jax.eval_shape(model.apply, state, x)
        trained, moved = jax.eval_shape(model.train_apply, state, x, key)
    for mode, output in (("evaluation", logits), ("training", trained)):
        if not hasattr(output, "shape") or len(output.shape) != 2 or output.shape[0] != 2:
            kind = f"shape {output.shape}" if hasattr(output, "shape") else type(output).__name__
            raise UsageError(
                f"{name}: returns {kind} for 2 examples in {mode}; return logits [2, C]"
            )
    before, after = ([path for path, _ in nnx.to_flat_state(s)] for s in (state, moved))
    if before != after:
        raise UsageError(f"{name}: has other variables after a training step than before")


def _check_features(model: Model, call: _Call, name: str, input_shape: tuple[int, ...]) -> None:
    """Check on two examples that `head(features(x))`, which is trained, is the network's output."""
    key = jax.random.key(0)
    state, x = model.init(key), jax.random.uniform(key, (2, *input_shape))
    parted = jax.jit(model.apply)(state, x)
    whole = jax.jit(lambda state, x: call("__call__", state, x, None)[0])(state, x)
    if np.shape(parted) != np.shape(whole) or not np.allclose(parted, whole, rtol=1e-3, atol=1e-3):
        raise UsageError(
            f"{name}: head(features(x)) differs from __call__(x); make them equal, or rename the two "
            "methods"
        )


@contextmanager
def _naming(name: str, what: str) -> Iterator[None]:
    """Turn an error of Flax or of the network into one line."""
    try:
        yield
    except UsageError:
        raise
    except (TypeError, ValueError, AttributeError, flax.errors.FlaxError) as error:
        line = " ".join(str(error).split())[:300]
        raise UsageError(f"{name} {what}: {line}") from error
