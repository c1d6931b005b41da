"""A task's network in JAX's own operations, for peers that take a function of parameters."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers.task import layers

_CHUNK = 1000  # test images at a time


def logits(parameters: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
    """[n, C] from images [n, H, W, c]; parameters as `Task.start`."""
    for name in layers(parameters):
        kernel, bias = parameters[f"{name}.kernel"], parameters[f"{name}.bias"]
        if kernel.ndim == 4:
            layout = ("NHWC", "HWIO", "NHWC")
            x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)
            window = (1, 2, 2, 1)
            x = jax.nn.relu(x + bias)
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")
        else:
            x = x.reshape(len(x), -1) @ kernel + bias
            x = x if name == "head" else jax.nn.relu(x)
    return x


def mean_loss(parameters: Mapping[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    """Cross-entropy, the batch's mean."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits(parameters, x)), y[:, None], axis=1)
    return -chosen.mean()


@jax.jit
def _classes(parameters: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
    return logits(parameters, x).argmax(axis=1)


def accuracy(parameters: Mapping[str, jax.Array], x: np.ndarray, y: np.ndarray) -> float:
    """Return the share of correctly classified images."""
    parts = [_classes(parameters, x[first : first + _CHUNK]) for first in range(0, len(x), _CHUNK)]
    return float((np.concatenate(parts) == y).mean())
