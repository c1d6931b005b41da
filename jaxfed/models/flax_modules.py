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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

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
_COLLECTIONS = {"params": nnx.Param, "batch_stats": nnx.BatchStat}


def from_flax(
    module: flax.linen.Module | nnx.Module | Callable[[nnx.Rngs], nnx.Module],
    input_shape: Sequence[int],
) -> Model:
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
        given = " ".join(repr(input_shape).split())
        raise UsageError(f"from_flax(input_shape={given}): use tuples, such as (8,)")
    if isinstance(module, flax.linen.Module):
        parts = _linen_parts(module, tuple(input_shape))
    elif isinstance(module, nnx.Module) or callable(module):
        parts = _nnx_parts(module)
    else:
        raise UsageError(
            f"from_flax({type(module).__name__}): use a Linen module, an NNX module, or a "
            "function that makes an NNX module from its nnx.Rngs"
        )
    model = _model(parts)
    _check(model, parts.name, tuple(input_shape))
    if parts.has_features and callable(parts.methods):
        _check_features(model, parts, tuple(input_shape))
    return model


class _Parts(NamedTuple):
    """A network's name, methods, initial state, and call: (method, state, x, key) -> (output, state).

    `key` is None in evaluation.
    """

    name: str
    methods: Any
    init: Callable[[jax.Array], nnx.State]
    call: Callable[..., tuple[jax.Array, nnx.State]]

    @property
    def has_features(self) -> bool:
        # Methods of the class: a submodule named `features` may need other arguments.
        return all(callable(getattr(type(self.methods), n, None)) for n in ("features", "head"))


def _model(parts: _Parts) -> Model:
    whole, last = ("features", "head") if parts.has_features else ("__call__", "")

    def features(state: nnx.State, x: jax.Array) -> jax.Array:
        return parts.call(whole, state, x, None)[0]

    def head(state: nnx.State, features: jax.Array) -> jax.Array:
        return parts.call(last, state, features, None)[0] if last else features

    def train_features(
        state: nnx.State, x: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, nnx.State]:
        return parts.call(whole, state, x, key)

    return compose(init=parts.init, features=features, head=head, train_features=train_features)


def _nnx_parts(module: nnx.Module | Callable[[nnx.Rngs], nnx.Module]) -> _Parts:
    name = getattr(module, "__name__", type(module).__name__)
    if flax.linen.Module in getattr(module, "__mro__", ()):
        raise UsageError(f"from_flax({name}): is a class; use a Linen module made from it")

    def build(rngs: nnx.Rngs) -> nnx.Module:
        return module if isinstance(module, nnx.Module) else module(rngs)

    with _naming(name, "cannot be made from its nnx.Rngs"):
        shapes = nnx.eval_shape(lambda: build(nnx.Rngs(0)))
    if not isinstance(shapes, nnx.Module):
        raise UsageError(
            f"from_flax: {module!r} makes a {type(shapes).__name__}; use an nnx.Module"
        )
    name = type(shapes).__name__
    for where, array in _bare_arrays(shapes):
        raise UsageError(
            f"{name}: {where} is an array {array.dtype}{list(array.shape)} outside of variables; use an "
            "nnx.Param for what is trained, and make constants in __call__"
        )
    graph, *states = nnx.split(shapes, (nnx.Param, nnx.BatchStat), nnx.RngState, ...)
    _, streams, rest = states
    for path, variable in nnx.to_flat_state(rest):
        raise UsageError(
            f"{name}: {'.'.join(map(str, path))} is an nnx.{type(variable).__name__}; use nnx.Param "
            "and nnx.BatchStat, which clients train and a server averages"
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
        if rngs is None:
            network.eval()
        else:
            network.train()
            keys = nnx.to_flat_state(nnx.state(network, nnx.RngKey))
            streams_used = sorted({variable.tag for _, variable in keys})
            nnx.reseed(network, **{stream: rngs() for stream in streams_used})
        function = getattr(network, method)
        output = function(x, **_mode(name, function, rngs))
        return output, nnx.state(network, (nnx.Param, nnx.BatchStat))

    return _Parts(name, shapes, init, call)


def _bare_arrays(network: nnx.Module) -> Iterator[tuple[str, Any]]:
    """The paths of attributes that are arrays outside of variables; the graph would store them as traced."""
    for path, node in nnx.iter_graph(network):
        if isinstance(node, nnx.Module):
            for attribute, value in vars(node).items():
                if isinstance(value, (jax.Array, np.ndarray, jax.ShapeDtypeStruct)):
                    yield ".".join(map(str, (*path, attribute))), value


def _linen_parts(module: flax.linen.Module, input_shape: tuple[int, ...]) -> _Parts:
    name = type(module).__name__
    example = jnp.zeros((1, *input_shape), jnp.float32)

    def variables_of(key: jax.Array) -> Mapping[str, Any]:
        streams = {"params": key, "dropout": jax.random.fold_in(key, 1)}
        variables = module.init(streams, example, **_mode(name, module.__call__, None))
        return flax.linen.unbox(variables)  # drops names of axes, which nothing uses here

    with _naming(name, f"does not take examples of {input_shape}"):
        shapes = jax.eval_shape(variables_of, jax.random.key(0))
    for collection, content in shapes.items():
        if collection not in _COLLECTIONS and jax.tree.leaves(content):
            raise UsageError(
                f"{name}: has variables in the collection {collection!r}; use 'params' and "
                "'batch_stats', which clients train and a server averages"
            )

    def init(key: jax.Array) -> nnx.State:
        return _state_of(variables_of(key))

    def call(
        method: str, state: nnx.State, x: jax.Array, key: jax.Array | None
    ) -> tuple[jax.Array, nnx.State]:
        variables, function = nnx.to_pure_dict(state), getattr(module, method)
        if key is None:
            logits: Any = module.apply(variables, x, method=method, **_mode(name, function, None))
            return logits, state
        keywords = _mode(name, function, nnx.Rngs(key))
        # Linen takes streams of other names from the one for parameters.
        streams = {"dropout": key, "params": jax.random.fold_in(key, 1)}
        result: Any = module.apply(
            variables, x, method=method, rngs=streams, mutable=["batch_stats"], **keywords
        )
        output, moved = result
        return output, _state_of({**variables, **moved})

    return _Parts(name, module, init, call)


def _state_of(variables: Mapping[str, Any]) -> nnx.State:
    """Linen's nested arrays as a state with typed leaves."""
    return nnx.State(
        {
            collection: jax.tree.map(kind, dict(variables[collection]))
            for collection, kind in _COLLECTIONS.items()
            if variables.get(collection)
        }
    )


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
            given = f"shape {output.shape}" if hasattr(output, "shape") else type(output).__name__
            raise UsageError(
                f"{name}: returns {given} for 2 examples in {mode}; return logits [2, C]"
            )
    before, after = ([path for path, _ in nnx.to_flat_state(s)] for s in (state, moved))
    if before != after:
        raise UsageError(f"{name}: has other variables after a training step than before")


def _check_features(model: Model, parts: _Parts, input_shape: tuple[int, ...]) -> None:
    """Check on two examples that `head(features(x))`, which is trained, is the network's output."""
    key = jax.random.key(0)
    state, x = model.init(key), jax.random.uniform(key, (2, *input_shape))
    parted = jax.jit(model.apply)(state, x)
    whole = jax.jit(lambda state, x: parts.call("__call__", state, x, None)[0])(state, x)
    if np.shape(parted) != np.shape(whole) or not np.allclose(parted, whole, rtol=1e-3, atol=1e-3):
        raise UsageError(
            f"{parts.name}: head(features(x)) differs from __call__(x); make them equal, or rename the two "
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
