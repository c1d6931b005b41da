"""A network's head within its state: the parameters that `Model.head` reads, and a dense head's kernel.

    logits = head(features; v),    a dense head: logits = features W + b,  v = (W, b),  W [D, C]

Column c of W is the classifier's row of class c. Names of layers do not matter: the head is traced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.errors import UsageError

if TYPE_CHECKING:
    from jaxfed.models.model import Model

Path = tuple[Any, ...]  # names of layers, and of a parameter


class DenseHead(NamedTuple):
    """A head of one dense layer: the path of its kernel [D, C], and the two sizes."""

    kernel: Path
    num_features: int
    num_classes: int


def head_paths(model: Model, method: str) -> frozenset[Path]:
    """Return the paths of the parameters that the head reads; it is traced without computing.

    Raises:
        UsageError: `method` needs a head and a body, and the network lacks one.
    """
    paths = read_by_head(model)
    if not paths or len(paths) == len(nnx.to_flat_state(_template(model))):
        raise UsageError(
            f"{method} needs a network of a body and a head: this one has "
            + ("nothing below its head" if paths else "no head with parameters"),
            key="model",
        )
    return paths


def dense_head(model: Model, method: str) -> DenseHead:
    """Return the path and sizes of a dense head.

    Raises:
        UsageError: the head that `method` needs is missing, or is not exactly one dense layer.
    """
    paths = head_paths(model, method)
    kernels = [path for path in paths if path[-1] == "kernel"]
    leaves = dict(nnx.to_flat_state(_template(model)))
    is_dense = len(kernels) == 1 and all(
        path[:-1] == kernels[0][:-1] and path[-1] in ("kernel", "bias") for path in paths
    )
    if not is_dense or len(leaves[kernels[0]].shape) != 2:
        names = ", ".join(sorted(".".join(map(str, path)) for path in paths))
        raise UsageError(
            f"{method} needs a head of one dense layer: this one has the parameters {names}",
            key="model",
        )
    return DenseHead(kernels[0], *leaves[kernels[0]].shape)


def split_head(state: nnx.State, paths: frozenset[Path]) -> tuple[nnx.State, nnx.State]:
    """Return the head, which has the parameters at `paths`, and the body, which has all the rest."""
    head, body = nnx.split_state(state, lambda path, _: path in paths, ...)
    return head, body


def leaf_of(state: nnx.State, path: Path) -> Any:
    """Return the array at a path."""
    value: Any = state
    for name in path:
        value = value[name]
    return value[...]


def with_leaf(state: nnx.State, path: Path, value: jax.Array) -> nnx.State:
    """Return the state with another array at a path."""
    return nnx.from_flat_state(
        (at, leaf.replace(value) if at == path else leaf) for at, leaf in nnx.to_flat_state(state)
    )


def read_by_head(model: Model) -> frozenset[Path]:
    """Return the paths of the parameters that the head reads; none without a head."""
    paths, leaves = zip(*nnx.to_flat_state(_template(model)), strict=True)

    def head(leaves: tuple[Any, ...], features: jax.Array) -> jax.Array:
        return model.head(nnx.from_flat_state(zip(paths, leaves, strict=True)), features)

    for dim in sorted({leaf.shape[0] for leaf in leaves if len(leaf.shape) == 2}):
        try:
            traced = jax.make_jaxpr(head)(leaves, jax.ShapeDtypeStruct((1, dim), jnp.float32))
        except (TypeError, ValueError):  # shapes do not fit: the features have another dimension
            continue
        seen = {id(v) for step in traced.eqns for v in step.invars}
        seen |= {id(v) for v in traced.jaxpr.outvars}
        variables = traced.jaxpr.invars[:-1]
        return frozenset(path for path, v in zip(paths, variables, strict=True) if id(v) in seen)
    return frozenset()


def _template(model: Model) -> nnx.State:
    return jax.eval_shape(model.init, jax.random.key(0))
