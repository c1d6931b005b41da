"""ResNet-18, with the stem of ImageNet or of CIFAR, and the ResNet-8 of SAGE and ProxyFL.

K. He, X. Zhang, S. Ren, J. Sun. "Deep residual learning for image recognition". CVPR 2016. A stem,
then eight blocks of two 3 x 3 convolutions, of 64, 64, 128, 128, 256, 256, 512 and 512 channels; the
first block of 128, 256 and 512 halves the image:

    y = relu(norm(conv(relu(norm(conv(x))))) + x),   x -> norm(conv 1 x 1 (x)) where shapes differ

XCLP trains it on Mini-ImageNet of 84 x 84 with the ImageNet stem (A.2; D = 512). ProtoFSSL's
ResNet-18, and its ResNet-17 without the last layer, have the CIFAR stem and a 4 x 4 max-pool at the
end. All else is from ProtoFSSL's code, as the paper does not specify it.

The ResNet-8 of SAGE (CVPR 2025) and ProxyFL for images of 32 x 32 has the CIFAR stem and three blocks of 64,
128 and 256 channels. `resnet8` is another network, of ProtoFSSL (`jaxfed.models.resnet9`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.models.layers import (
    HE_FAN_OUT_INIT,
    PYTORCH_INIT,
    Activation,
    Convolution,
    Layers,
    Norm,
    Unit,
    identity,
    image_shape,
    overlapping_max_pool,
    unit_vectors,
)
from jaxfed.models.model import Model, from_module, without_head
from jaxfed.settings import Count, Share

Stem = Literal["imagenet", "cifar"]
Pool = Literal["mean", "max"]
_CHANNELS = (64, 64, 128, 128, 256, 256, 512, 512)


def resnet18(
    input_shape: Sequence[int],
    num_classes: int | None,
    *,
    stem: Stem = "imagenet",
    pool: Pool = "mean",
    normalize_features: bool = False,
    norm: Norm = "batch",
    groups: Count = 32,
    momentum: Share = 0.9,
    convolution: Convolution = "auto",
) -> Model:
    """Build a ResNet-18.

    Args:
        input_shape: (H, W, c), any H and W.
        num_classes: C; None leaves out the classifier.
        stem: "imagenet", 7 x 7 by 2 and an overlapping max-pool by 2; or "cifar", 3 x 3 by 1.
        pool: over the last pixels: "mean", or "max" as in ProtoFSSL.
        normalize_features: divide features by their norm, as in XCLP's code (`isL2`); not in its text.
        norm: "batch" as in the papers, "group" or "none".
        groups: of "group".
        momentum: of the running statistics; 0 keeps the last batch's (ProtoFSSL's "sBN" in code).
        convolution: see `jaxfed.models.layers.find_convolution`.

    Raises:
        UsageError: no images; an unknown option.

    Cost: 11.2e6 parameters; 0.56e9 multiply-adds an image of 32 x 32 with the CIFAR stem, 0.3e9 for
    84 x 84 with the other.
    """
    for option, value, allowed in (
        ("stem", stem, ("imagenet", "cifar")),
        ("pool", pool, ("mean", "max")),
    ):
        if value not in allowed:
            raise UsageError(f"unknown {option} {value!r}; allowed: {', '.join(allowed)}")
    return _resnet(
        *("resnet18", _CHANNELS, stem, pool, normalize_features, input_shape, num_classes),
        norm=norm,
        groups=groups,
        momentum=momentum,
        convolution=convolution,
    )


def _resnet(
    name: str,
    blocks: Sequence[int],
    stem: Stem,
    pool: Pool,
    normalize_features: bool,
    input_shape: Sequence[int],
    num_classes: int | None,
    *,
    norm: Norm = "batch",
    groups: Count = 32,
    momentum: Share = 0.9,
    convolution: Convolution = "auto",
) -> Model:
    *_, channels = image_shape(name, input_shape)

    def build(rngs: nnx.Rngs) -> _ResNet:
        layers = Layers(
            rngs, convolution, HE_FAN_OUT_INIT, norm_kind=norm, groups=groups, momentum=momentum
        )
        return _ResNet(layers, channels, num_classes, blocks, stem, pool, normalize_features)

    return from_module(build)


# 1,227,594 parameters for RGB and ten classes; 0.20e9 multiply-adds an image of 32 x 32.
cifar_resnet8 = partial(_resnet, "cifar_resnet8", (64, 128, 256), "cifar", "mean", False)
resnet17 = without_head(partial(resnet18, stem="cifar", pool="max"))  # of ProtoFSSL


class _BasicBlock(nnx.Module):
    def __init__(self, layers: Layers, in_channels: int, out_channels: int):
        stride = 1 if in_channels == out_channels else 2

        def unit(into: int, size: int, stride: int, activation: Activation) -> Unit:
            conv = layers.conv(into, out_channels, size, stride)
            return Unit(conv, layers.norm(out_channels), activation)

        self.first = unit(in_channels, 3, stride, jax.nn.relu)
        self.second = unit(out_channels, 3, 1, identity)
        if stride != 1:
            self.shortcut = unit(in_channels, 1, stride, identity)

    def __call__(self, x: jax.Array, frozen: bool) -> jax.Array:
        h = self.second(self.first(x, frozen), frozen)
        return jax.nn.relu(h + (self.shortcut(x, frozen) if hasattr(self, "shortcut") else x))


class _ResNet(nnx.Module):
    def __init__(
        self,
        layers: Layers,
        in_channels: int,
        num_classes: int | None,
        blocks: Sequence[int],
        stem: Stem,
        pool: Pool,
        normalize_features: bool,
    ):
        size, stride = (7, 2) if stem == "imagenet" else (3, 1)
        self.stem = Unit(layers.conv(in_channels, 64, size, stride), layers.norm(64))
        self.stem_pool = overlapping_max_pool if stem == "imagenet" else identity
        self.blocks = nnx.List(
            _BasicBlock(layers, into, out) for into, out in pairwise((64, *blocks))
        )
        self.pool = jnp.max if pool == "max" else jnp.mean
        self.normalize_features = normalize_features
        self.head = replace(layers, kernel_init=PYTORCH_INIT).classifier(blocks[-1], num_classes)

    def features(self, x: jax.Array, rngs: nnx.Rngs | None = None) -> jax.Array:
        """Mean or maximum over pixels of the last activation."""
        frozen = rngs is None
        x = self.stem_pool(self.stem(x, frozen))
        for block in self.blocks:
            x = block(x, frozen)
        x = self.pool(x.astype(jnp.float32), axis=(1, 2))
        return unit_vectors(x) if self.normalize_features else x
