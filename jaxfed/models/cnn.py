"""A small CNN: two 3 x 3 convolutions with pooling, one dense layer; minutes of FedAvg on a laptop."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import jax
from flax import nnx

from jaxfed.models.layers import (
    Convolution,
    Layers,
    Norm,
    Unit,
    flatten,
    identity,
    image_shape,
    max_pool,
)
from jaxfed.models.model import Model, from_module


def cnn(
    input_shape: Sequence[int],
    num_classes: int | None,
    *,
    channels: Sequence[int] = (16, 32),
    hidden: int = 128,
    norm: Norm = "none",
    groups: int = 8,
    momentum: float = 0.9,
    convolution: Convolution = "auto",
) -> Model:
    """Convolution, norm, ReLU and max-pool 2 for each of `channels`; a dense ReLU layer of features.

    Args:
        input_shape: (H, W, c), 2^len(channels) pixels a side or more.
        num_classes: C; None leaves out the classifier.
        channels: of the convolutions.
        hidden: D, length of the feature vector.
        norm: "none", "batch" or "group".
        groups: of "group".
        momentum: of the running statistics; 0 keeps the last batch's (ProtoFSSL's "sBN" in code).
        convolution: see `jaxfed.models.layers.find_convolution`.

    Raises:
        UsageError: no images, or too small ones; an unknown option.

    Cost: 206,922 parameters and 1.2e6 multiply-adds for an image of 28 x 28 and 10 classes.
    """
    scale = 2 ** len(channels)
    height, width, in_channels = image_shape("cnn", input_shape, smallest=scale)
    num_pixels = (height // scale) * (width // scale)

    def build(rngs: nnx.Rngs) -> _CNN:
        layers = Layers(rngs, convolution, norm_kind=norm, groups=groups, momentum=momentum)
        return _CNN(layers, (in_channels, *channels), num_pixels, hidden, num_classes)

    return from_module(build)


class _CNN(nnx.Module):
    def __init__(
        self,
        layers: Layers,
        channels: Sequence[int],
        num_pixels: int,
        hidden: int,
        num_classes: int | None,
    ):
        self.units = nnx.List(
            Unit(layers.conv(into, out, use_bias=True), layers.norm(out), identity)
            for into, out in pairwise(channels)
        )
        self.dense = layers.linear(num_pixels * channels[-1], hidden)
        self.head = layers.classifier(hidden, num_classes)

    def features(self, x: jax.Array, rngs: nnx.Rngs | None = None) -> jax.Array:
        """The dense layer's activation."""
        for unit in self.units:
            # A ReLU after the pooling gives the same with a quarter of the work.
            x = jax.nn.relu(max_pool(unit(x, rngs is None), 2))
        return jax.nn.relu(self.dense(flatten(x)))
