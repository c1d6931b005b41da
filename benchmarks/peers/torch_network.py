"""A task's network and images in PyTorch, for all peers that use it."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from benchmarks.peers.task import layers

_CHUNK = 1000  # test images at a time


def network(start: dict[str, np.ndarray]) -> nn.Sequential:
    """The network of these weights (`Task.start`), which takes images [n, c, H, W]."""
    modules: list[nn.Module] = []
    channels = 1
    for name in layers(start):
        kernel, bias = (torch.from_numpy(start[f"{name}.{part}"]) for part in ("kernel", "bias"))
        layer: nn.Conv2d | nn.Linear
        if kernel.ndim == 4:
            channels = kernel.shape[3]
            layer = nn.Conv2d(kernel.shape[2], channels, 3, padding=1)
            modules += [layer, nn.ReLU(), nn.MaxPool2d(2)]
            kernel = kernel.permute(3, 2, 0, 1)
        else:
            if not any(isinstance(before, nn.Linear) for before in modules):
                modules.append(nn.Flatten())
                kernel = _channels_first(kernel, channels)
            layer = nn.Linear(*kernel.shape)
            modules += [layer] if name == "head" else [layer, nn.ReLU()]
            kernel = kernel.T
        with torch.no_grad():
            layer.weight.copy_(kernel)
            layer.bias.copy_(bias)
    return nn.Sequential(*modules)


def images(x: np.ndarray) -> torch.Tensor:
    """float32 [n, c, H, W] from channels last."""
    return torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))


def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the share of correctly classified images."""
    model.eval()
    with torch.no_grad():
        found = torch.cat([model(part).argmax(1) for part in x.split(_CHUNK)])
    return float((found == y).float().mean())


def parameters(model: nn.Sequential, start: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a network's weights by the names and in the layout of `Task.start`."""
    found: dict[str, np.ndarray] = {}
    trained = [layer for layer in model if isinstance(layer, nn.Conv2d | nn.Linear)]
    channels, is_first_dense = 1, True
    for name, layer in zip(layers(start), trained, strict=True):
        kernel = layer.weight.detach().cpu()
        if isinstance(layer, nn.Conv2d):
            channels = len(kernel)
            kernel = kernel.permute(2, 3, 1, 0)
        else:
            kernel = _channels_last(kernel.T, channels) if is_first_dense else kernel.T
            is_first_dense = False
        found[f"{name}.kernel"] = kernel.numpy().copy()
        found[f"{name}.bias"] = layer.bias.detach().cpu().numpy().copy()
    return found


def _channels_first(kernel: torch.Tensor, channels: int) -> torch.Tensor:
    """Reorder the rows of the first dense layer: (height, width, channel) here, channel first in PyTorch."""
    side = math.isqrt(kernel.shape[0] // channels)
    return kernel.reshape(side, side, channels, -1).permute(2, 0, 1, 3).flatten(0, 2)


def _channels_last(kernel: torch.Tensor, channels: int) -> torch.Tensor:
    """Undo `_channels_first`."""
    side = math.isqrt(kernel.shape[0] // channels)
    return kernel.reshape(channels, side, side, -1).permute(1, 2, 0, 3).flatten(0, 2)
