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
from pathlib import Path
from typing import Any

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
    names = {leaf: _pytorch_name(leaf) for leaf, _ in nnx.to_flat_state(template)}
    head = {leaf: name for leaf, name in names.items() if leaf[0] == "classifier"}
    wanted = {leaf: name for leaf, name in names.items() if not (new_head and leaf in head)}
    try:
        with safe_open(path, framework="numpy") as file:
            present = {name for name in file.keys() if not name.endswith(_IGNORED)}  # noqa: SIM118
            if new_head:
                present -= set(head.values())
            _check_names(path, wanted=set(wanted.values()), present=present)
            tensors = {name: file.get_tensor(name) for name in sorted(present)}
    except (OSError, SafetensorError, TypeError) as error:
        raise UsageError(f"{path} is not a readable safetensors file: {error}") from error

    leaves = []
    for leaf_path, variable in nnx.to_flat_state(template):
        if leaf_path in wanted:
            tensor = tensors[wanted[leaf_path]]
            expected = tuple(variable.shape[axis] for axis in _TO_PYTORCH[len(variable.shape)])
            if tensor.shape != expected:
                raise UsageError(
                    f"{path}: {wanted[leaf_path]} has shape {tensor.shape}, expected {expected}"
                )
            value = tensor.transpose(_FROM_PYTORCH[tensor.ndim])
            # Without a dtype, `jnp.asarray` compiles a program for each shape.
            variable = variable.replace(jnp.asarray(value.astype(np.float32), np.float32))
        leaves.append((leaf_path, variable))
    return nnx.from_flat_state(leaves)


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
