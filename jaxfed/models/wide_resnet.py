"""Wide ResNets of 28 layers, as in SemiFL and (FL)^2.

S. Zagoruyko, N. Komodakis. "Wide residual networks". BMVC 2016. The layers are a convolution of 16 channels;
three groups of four blocks, with 16 k, 32 k and 64 k channels; norm, activation, mean over pixels, dense. The
second and the third group halve the image. With a(x) = relu(norm(x)), a block is

    y = conv(a(conv(a(x)))) + x,   x -> conv 1 x 1 (a(x)) where shapes differ

All convolutions are without bias. WRN-28-2 is k = 2, WRN-28-8 (for CIFAR-100) k = 8. Initial kernels are
PyTorch's. SemiFL's code draws initial gains of norms from N(1, 0.02^2); here they are 1. FixMatch's code has
leaky ReLUs, biases in convolutions, other initial kernels, and running statistics with momentum 0.999.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.models.layers import (
    PYTORCH_INIT,
    Convolution,
    Layers,
    Norm,
    image_shape,
)
from jaxfed.models.model import Model, from_module
from jaxfed.settings import Count, Share


def wide_resnet(
    name: str,
    widen: int,
    blocks: int,
    input_shape: Sequence[int],
    num_classes: int | None,
    *,
    norm: Norm = "batch",
    groups: Count = 16,
    momentum: Share = 0.9,
    convolution: Convolution = "auto",
) -> Model:
    """Build a wide ResNet.

    Args:
        name: for errors.
        widen: k.
        blocks: number in a group; the network has 6 blocks + 4 layers.
        input_shape: (H, W, c); (32, 32, 3) in the papers.
        num_classes: C; None leaves out the classifier.
        norm: "batch" as in the papers, "group" or "none".
        groups: of "group".
        momentum: of the running statistics.
        convolution: see `jaxfed.models.layers.find_convolution`.

    Raises:
        UsageError: no images; an unknown option.

    Cost: WRN-28-2 has 1,467,610 parameters for RGB and ten classes, and 0.21e9 multiply-adds an image of
    32 x 32; WRN-28-8 has 23,401,012 for 100 classes, and 3.4e9.
    """
    *_, channels = image_shape(name, input_shape)

    def build(rngs: nnx.Rngs) -> _WideResNet:
        layers = Layers(
            rngs, convolution, PYTORCH_INIT, norm_kind=norm, groups=groups, momentum=momentum
        )
        return _WideResNet(layers, channels, num_classes, widen, blocks)

    return from_module(build)


wrn28_2 = partial(wide_resnet, "wrn28_2", 2, 4)
wrn28_8 = partial(wide_resnet, "wrn28_8", 8, 4)


class _Block(nnx.Module):
    def __init__(self, layers: Layers, into: int, out: int, stride: int):
        self.norms = nnx.List([layers.norm(into), layers.norm(out)])
        self.convs = nnx.List([layers.conv(into, out, 3, stride), layers.conv(out, out)])
        if into != out:
            self.shortcut = layers.conv(into, out, 1, stride)

    def __call__(self, x: jax.Array, frozen: bool) -> jax.Array:
        a = jax.nn.relu(self.norms[0](x, frozen))
        h = jax.nn.relu(self.norms[1](self.convs[0](a), frozen))
        if hasattr(self, "shortcut"):
            x = self.shortcut(a)
        return self.convs[1](h) + x


class _WideResNet(nnx.Module):
    def __init__(
        self,
        layers: Layers,
        in_channels: int,
        num_classes: int | None,
        widen: int,
        blocks: int,
    ):
        self.stem = layers.conv(in_channels, 16)
        self.blocks: nnx.List = nnx.List()
        into = 16
        for group in range(3):
            for block in range(blocks):
                out, stride = 16 * widen << group, 2 if group and not block else 1
                self.blocks.append(_Block(layers, into, out, stride))
                into = out
        self.norm = layers.norm(into)
        self.head = layers.classifier(into, num_classes)

    def features(self, x: jax.Array, rngs: nnx.Rngs | None = None) -> jax.Array:
        """Mean over pixels of the last activation."""
        frozen = rngs is None
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, frozen)
        x = jax.nn.relu(self.norm(x, frozen))
        return jnp.mean(x.astype(jnp.float32), axis=(1, 2))
