"""A small CNN: two 3 x 3 convolutions with pooling, a dense layer or none; minutes of FedAvg on a laptop."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import jax
from flax import nnx

from jaxfed.models.layers import (
    Convolution,
    Identity,
    Layers,
    Norm,
    Unit,
    flatten,
    identity,
    image_shape,
    max_pool,
    pooled_conv,
)
from jaxfed.models.model import Model, from_module
from jaxfed.settings import Count, Ge, Note, Share


def cnn(
    input_shape: Sequence[int],
    num_classes: int | None,
    *,
    channels: Sequence[Count] = (16, 32),
    hidden: Annotated[int, Ge(0), Note("0 is none")] = 128,
    norm: Norm = "none",
    groups: Count = 8,
    momentum: Share = 0.9,
    convolution: Convolution = "auto",
) -> Model:
    """Convolution, norm, ReLU and max-pool 2 for each of `channels`; a dense ReLU layer of features, or none.

    Args:
        input_shape: (H, W, c), 2^len(channels) pixels a side or more.
        num_classes: C; None leaves out the classifier.
        channels: of the convolutions.
        hidden: D, size of the dense layer and length of the feature vector; 0: no such layer, features are
            the last pooled convolution's.
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

    return from_module(build, by_example=norm != "batch")


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
        num_features = num_pixels * channels[-1]
        self.dense = layers.linear(num_features, hidden) if hidden else None
        self.head = layers.classifier(hidden or num_features, num_classes)

    def features(self, x: jax.Array, rngs: nnx.Rngs | None = None) -> jax.Array:
        """The dense layer's activation, or the flattened last convolution."""
        for unit in self.units:
            if isinstance(unit.norm, Identity) and isinstance(unit.linear, nnx.Conv):
                x = pooled_conv(unit.linear, x, 2)
            else:
                x = max_pool(unit(x, rngs is None), 2)
            x = jax.nn.relu(x)  # after the pooling it gives the same with a quarter of the work
        x = flatten(x)
        return x if self.dense is None else jax.nn.relu(self.dense(x))
