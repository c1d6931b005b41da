"""The weights of a network from a safetensors file with PyTorch's names and axes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import SafetensorError, safe_open

from jaxfed.errors import UsageError

_VARIABLES = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}
# Axes of a PyTorch tensor from those of a Flax kernel, and back: OIHW, HWIO; [out, in], [in, out].
_TO_PYTORCH = {4: (3, 2, 0, 1), 2: (1, 0)}
_FROM_PYTORCH = {4: (2, 3, 1, 0), 2: (1, 0)}


def pytorch_name(leaf: tuple[Any, ...], names: Mapping[str, str]) -> str:
    """("blocks", 3, "norm1", "scale") -> "encoder.layer.3.norm1.weight", by names of layers."""
    parts = map(str, leaf)
    return ".".join(names.get(part, _VARIABLES.get(part, part)) for part in parts)


class Tensor(NamedTuple):
    """Name of a tensor in a file; a leaf is one of `parts` equal parts of its first axis."""

    name: str
    part: int = 0
    parts: int = 1


def read_tensors(
    path: str | os.PathLike[str],
    template: nnx.State,
    tensor_of: Callable[[tuple[Any, ...]], Tensor],
    *,
    unread: Callable[[str], bool] = lambda name: True,
    without: str = "",
    prefix_of: str = "",
) -> nnx.State:
    """Return the template with the leaves of a file, one tensor after another, as float32.

    Args:
        path: of a safetensors file, of any float dtype.
        template: a state, whose shapes suffice for the leaves that are read.
        tensor_of: leaf of the template -> its tensor. Axes of kernels are reordered; axes of length 1 may be
            more or fewer.
        unread: True for the name of a tensor that may be left out.
        without: a layer that stays as it is in the template.
        prefix_of: tensor whose name in the file shows the prefix of all names.

    Raises:
        UsageError: not a readable safetensors file; a name missing or unexpected; a wrong shape.
    """
    leaves = dict(nnx.to_flat_state(template))
    try:
        with safe_open(path, framework="numpy") as file:
            present = set(file.keys())
            ends = (name for name in present if prefix_of and name.endswith(prefix_of))
            prefix = min(ends, key=len, default=prefix_of).removesuffix(prefix_of)
            wanted = {leaf: tensor_of(leaf) for leaf in leaves if leaf[0] != without}
            used = {prefix + tensor.name for tensor in wanted.values()}
            unexpected = {name for name in present - used if not unread(name)}
            for adjective, some in (("missing", used - present), ("unexpected", unexpected)):
                if some:
                    first = f"{len(some)} {adjective} tensors for this network, first "
                    raise UsageError(f"{path} has {first}{', '.join(sorted(some)[:3])}")
            for leaf, tensor in wanted.items():
                tensor = tensor._replace(name=prefix + tensor.name)
                value = _leaf(path, file.get_tensor(tensor.name), tensor, leaf, leaves[leaf].shape)
                # Without a dtype, `jnp.asarray` compiles a program for each shape.
                array = jnp.asarray(value.astype(np.float32), np.float32)
                leaves[leaf] = leaves[leaf].replace(array)
    except (OSError, SafetensorError, TypeError) as error:
        raise UsageError(f"{path} is not a readable safetensors file: {error}") from error
    return nnx.from_flat_state(leaves.items())


def _leaf(
    path: str | os.PathLike[str],
    value: np.ndarray,
    tensor: Tensor,
    leaf: tuple[Any, ...],
    shape: tuple[int, ...],
) -> np.ndarray:
    is_kernel = leaf[-1] == "kernel"
    first, *rest = (shape[axis] for axis in _TO_PYTORCH[len(shape)]) if is_kernel else shape
    expected = tensor.parts * first, *rest
    if [n for n in value.shape if n != 1] != [n for n in expected if n != 1]:
        raise UsageError(f"{path}: {tensor.name} has shape {value.shape}, expected {expected}")
    value = value.reshape(expected)[tensor.part * first :][:first]
    return value.transpose(_FROM_PYTORCH[len(shape)]) if is_kernel else value
