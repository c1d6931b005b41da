"""A network's head within its state: the parameters that `Model.head` reads, and a dense head's kernel.

    logits = head(features; v),    a dense head: logits = features W + b,  v = (W, b),  W [D, C]

Column c of W is the classifier's row of class c. Names of layers do not matter: the head is traced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.tree_util import DictKey

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
    """Return the paths of the parameters that the head reads.

    Args:
        model: the network; its head is traced without computing.
        method: the method that needs it, for the error.

    Raises:
        UsageError: the network has no head, or nothing below it.
    """
    found = read_by_head(model)
    if not found or len(found) == len(_by_path(jax.eval_shape(model.init, jax.random.key(0)))):
        raise UsageError(
            f"{method} needs a network of a body and a head: this one has "
            + ("nothing below its head" if found else "no head with parameters"),
            key="model",
        )
    return found


def dense_head(model: Model, method: str) -> DenseHead:
    """Return the path and sizes of a dense head.

    Args:
        model: the network.
        method: the method that needs it, for the error.

    Raises:
        UsageError: the head is missing, or is not exactly one dense layer.
    """
    paths = head_paths(model, method)
    kernels = [path for path in paths if path[-1] == "kernel"]
    leaves = _by_path(jax.eval_shape(model.init, jax.random.key(0)))
    is_dense = len(kernels) == 1 and all(
        path[:-1] == kernels[0][:-1] and path[-1] in ("kernel", "bias") for path in paths
    )
    if not is_dense or leaves[kernels[0]].ndim != 2:
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
    found: Any = state
    for name in path:
        found = found[name]
    return found[...]


def with_leaf(state: nnx.State, path: Path, value: jax.Array) -> nnx.State:
    """Return the state with another array at a path."""

    def put(at: Any, leaf: jax.Array) -> jax.Array:
        return value if _plain(at) == path else leaf

    return jax.tree_util.tree_map_with_path(put, state)


def _by_path(state: Any) -> dict[Path, Any]:
    return {_plain(at): leaf for at, leaf in jax.tree_util.tree_leaves_with_path(state)}


def _plain(at: Any) -> Path:
    return tuple(key.key for key in at if isinstance(key, DictKey))


def read_by_head(model: Model) -> frozenset[Path]:
    """Return the paths of the parameters that the head reads; none without a head."""
    state = jax.eval_shape(model.init, jax.random.key(0))
    leaves = _by_path(state)
    for dim in sorted({leaf.shape[0] for leaf in leaves.values() if leaf.ndim == 2}):
        try:
            traced = jax.make_jaxpr(model.head)(state, jax.ShapeDtypeStruct((1, dim), jnp.float32))
        except (TypeError, ValueError):  # shapes do not fit: the features have another dimension
            continue
        seen = {id(v) for step in traced.eqns for v in step.invars} | {
            id(v) for v in traced.jaxpr.outvars
        }
        read = (id(v) in seen for v in traced.jaxpr.invars[:-1])
        return frozenset(path for path, is_read in zip(leaves, read, strict=True) if is_read)
    return frozenset()
