"""Weights of a network, from a safetensors file with efficientnet-pytorch's tensor names.

To make such a file from the pretrained weights that efficientnet-pytorch downloads:

    s = efficientnet_pytorch.EfficientNet.from_pretrained("efficientnet-b0").state_dict()
    safetensors.torch.save_file({k: v.contiguous() for k, v in s.items()}, "b0.safetensors")

`contiguous` is required: weights converted from TensorFlow have PyTorch's shapes (OIHW), but TensorFlow's
order (HWIO) in memory. Without it the file has the right names and shapes, and kernels in the wrong order.
Nothing in the file shows that, and its features look plausible.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import SafetensorError, safe_open

from jaxfed.errors import UsageError
from jaxfed.host.location import location

_LAYERS = {
    "stem_conv": "_conv_stem",
    "stem_norm": "_bn0",
    "head_conv": "_conv_head",
    "head_norm": "_bn1",
    "classifier": "_fc",
}
_BLOCK_LAYERS = {
    "expand_conv": "_expand_conv",
    "expand_norm": "_bn0",
    "depthwise_conv": "_depthwise_conv",
    "depthwise_norm": "_bn1",
    "squeeze": "_se_reduce",
    "excite": "_se_expand",
    "project_conv": "_project_conv",
    "project_norm": "_bn2",
}
_VARIABLES = {
    "kernel": "weight",
    "scale": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "var": "running_var",
}
_RECIPE = (
    "safetensors.torch.save_file({k: v.contiguous() for k, v in MODEL.state_dict().items()}, PATH) "
    "with an efficientnet-pytorch MODEL"
)
_IGNORED = ".num_batches_tracked"  # PyTorch's step counters, of no use here

# Axes of a PyTorch tensor from those of a Flax kernel, and back: OIHW, HWIO; [out, in], [in, out].
_TO_PYTORCH = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}
_FROM_PYTORCH = {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}


def find_weights(
    network: str, weights: str | os.PathLike[str] | None = None, root: str | None = None
) -> Path:
    """Find the file of a network's pretrained weights.

    The file is `weights` itself if given. Otherwise it is the first of NETWORK.safetensors,
    weights/NETWORK.safetensors and ../weights/NETWORK.safetensors in the data root (`root`, else
    $JAXFED_DATA).

    Args:
        network: a key of `jaxfed.models.efficientnet.NETWORKS`.
        weights: path of the file.
        root: data root.

    Raises:
        UsageError: no such file; names the places searched, and how to make the file.
    """
    if weights is not None:
        places = [location(weights, "config.preprocessing.weights")]
    else:
        key = "config.dataset.root" if root else "$JAXFED_DATA"
        given = root or os.environ.get("JAXFED_DATA")
        name = f"{network}.safetensors"
        base = location(given, key).absolute() if given else None
        folders = (base, base / "weights", base.parent / "weights") if base else ()
        places = [folder / name for folder in folders]
    for place in places:
        if place.is_file():
            return place
    looked = ", ".join(map(str, places)) or "nowhere: neither a root nor $JAXFED_DATA is set"
    raise UsageError(f"no weights of {network}; looked for: {looked}; to make the file: " + _RECIPE)


def read_weights(
    path: str | os.PathLike[str], template: nnx.State, *, new_head: bool = False
) -> nnx.State:
    """Read a state from a safetensors file; every tensor of the file is used exactly once.

    Args:
        path: the file, named as in efficientnet-pytorch; OIHW kernels, any float dtype.
        template: a state of the network; without `new_head` its shapes suffice, as in
            `jax.eval_shape(init, key)`.
        new_head: keep the template's classifier and ignore the file's, for other classes.

    Returns:
        A state like the template, float32.

    Raises:
        UsageError: not a readable safetensors file; a name missing or unexpected; a wrong shape.
    """
    names = {leaf: Tensor(_pytorch_name(leaf)) for leaf, _ in nnx.to_flat_state(template)}
    head = {leaf: tensor for leaf, tensor in names.items() if leaf[0] == "classifier"}
    wanted = {leaf: tensor for leaf, tensor in names.items() if not (new_head and leaf in head)}
    ignored = {tensor.name for tensor in head.values()} if new_head else set()
    return read_tensors(
        path, template, wanted, unread=lambda name: name in ignored or name.endswith(_IGNORED)
    )


class Tensor(NamedTuple):
    """Name of a tensor in a file; a leaf is one of `parts` equal parts of its first axis."""

    name: str
    part: int = 0
    parts: int = 1


def read_tensors(
    path: str | os.PathLike[str],
    template: nnx.State,
    wanted: Mapping[tuple[Any, ...], Tensor],
    *,
    unread: Callable[[str], bool] = lambda name: True,
    prefix_of: str = "",
) -> nnx.State:
    """Return the template with the leaves of `wanted` from a file, one tensor after another, as float32.

    Args:
        path: of a safetensors file.
        template: a state, whose shapes suffice for the leaves that are read.
        wanted: leaf -> tensor. Axes of kernels are reordered; first axes of length 1 are left out.
        unread: True for the name of a tensor that may be left out.
        prefix_of: tensor whose name in the file shows the prefix of all names.

    Raises:
        UsageError: not a readable safetensors file; a name missing or unexpected; a wrong shape.
    """
    leaves = []
    try:
        with safe_open(path, framework="numpy") as file:
            present = set(file.keys())
            prefix = _prefix(present, prefix_of)
            names = {prefix + tensor.name for tensor in wanted.values()}
            _check_names(
                path, wanted=names, present={n for n in present if n in names or not unread(n)}
            )
            for leaf, variable in nnx.to_flat_state(template):
                if leaf in wanted:
                    tensor = wanted[leaf]._replace(name=prefix + wanted[leaf].name)
                    read = file.get_tensor(tensor.name)
                    value = _leaf(path, read, leaf, tensor, variable.shape)
                    # Without a dtype, `jnp.asarray` compiles a program for each shape.
                    variable = variable.replace(jnp.asarray(value.astype(np.float32), np.float32))
                leaves.append((leaf, variable))
    except (OSError, SafetensorError, TypeError) as error:
        raise UsageError(f"{path} is not a readable safetensors file: {error}") from error
    return nnx.from_flat_state(leaves)


def _prefix(present: Collection[str], name: str) -> str:
    found = [each.removesuffix(name) for each in present if name and each.endswith(name)]
    return min(found, key=len, default="")


def _leaf(
    path: str | os.PathLike[str],
    value: np.ndarray,
    leaf: tuple[Any, ...],
    tensor: Tensor,
    shape: tuple[int, ...],
) -> np.ndarray:
    is_kernel = leaf[-1] == "kernel"
    axes = _TO_PYTORCH[len(shape)] if is_kernel else range(len(shape))
    first, *rest = (shape[axis] for axis in axes)
    if _without_ones(value.shape) != _without_ones((tensor.parts * first, *rest)):
        expected = tensor.parts * first, *rest
        raise UsageError(f"{path}: {tensor.name} has shape {value.shape}, expected {expected}")
    value = value.reshape(-1, *rest)[tensor.part * first :][:first]
    return value.transpose(_FROM_PYTORCH[len(shape)]) if is_kernel else value.reshape(shape)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape without its first axes of length 1."""
    start = next((axis for axis, length in enumerate(shape) if length != 1), len(shape))
    return shape[start:]


def _pytorch_name(path: tuple[Any, ...]) -> str:
    """("blocks", 3, "project_norm", "var") -> "_blocks.3._bn2.running_var"."""
    *layers, variable = map(str, path)
    if layers[0] == "blocks":
        return f"_blocks.{layers[1]}.{_BLOCK_LAYERS[layers[2]]}.{_VARIABLES[variable]}"
    return f"{_LAYERS[layers[0]]}.{_VARIABLES[variable]}"


def _check_names(path: str | os.PathLike[str], *, wanted: set[str], present: set[str]) -> None:
    for adjective, names in (("missing", wanted - present), ("unexpected", present - wanted)):
        if names:
            first = ", ".join(sorted(names)[:3])
            raise UsageError(
                f"{path} has {len(names)} {adjective} tensors for this network, first {first}"
            )
