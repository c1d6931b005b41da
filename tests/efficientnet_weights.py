"""Weights files as efficientnet-pytorch writes them, for tests of what reads them."""

import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from jaxfed.models.efficientnet import NAMES
from jaxfed.models.pretrained import pytorch_name


def write_weights(path, state):
    """Write a state to a safetensors file that `read_weights` and efficientnet-pytorch can load.

    Args:
        path: of the file.
        state: of an EfficientNet; kernels are HWIO here and OIHW in the file.
    """
    tensors = {}
    for leaf_path, variable in nnx.to_flat_state(state):
        value = np.asarray(variable[...])
        transposed = value.transpose({4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}[value.ndim])
        tensors[pytorch_name(leaf_path, NAMES)] = np.ascontiguousarray(transposed)
    save_file(tensors, path)
