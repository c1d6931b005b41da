"""Wide ResNets of 28 layers, as in FixMatch, SemiFL and (FL)^2.

S. Zagoruyko, N. Komodakis. "Wide residual networks". BMVC 2016. The layers are a convolution of 16 channels;
three groups of four blocks, with 16 k, 32 k and 64 k channels; norm, activation, mean over pixels, dense. The
second and the third group halve the image. With a(x) = activation(norm(x)), a block is

    y = conv(a(conv(a(x)))) + x,   x -> conv 1 x 1 where shapes differ

All convolutions are without bias. WRN-28-2 is k = 2, WRN-28-8 (for CIFAR-100) k = 8. The released codes
differ in details, which the option `code` chooses:

| | SemiFL, (FL)^2 | FixMatch |
| :-- | :-- | :-- |
| activation | ReLU | leaky ReLU, slope 0.1 |
| input of a 1 x 1 convolution | a(x) | a(x) in the first group, x in the others |
| initial kernels | PyTorch's | He normal by outputs; Glorot normal in the dense layer |
| added to variances | 1e-5 | 1e-3 |

Differences from the codes: SemiFL draws initial gains of norms from N(1, 0.02^2); here they are 1. FixMatch's
convolutions have biases, and its running statistics have momentum 0.999.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
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
    image_shape,
    leaky_relu,
)
from jaxfed.models.model import Model, from_module

Code = Literal["semifl", "fixmatch"]


def wide_resnet(
    name: str,
    widen: int,
    blocks: int,
    input_shape: Sequence[int],
    num_classes: int | None,
    *,
    code: Code = "semifl",
    norm: Norm = "batch",
    groups: int = 16,
    momentum: float = 0.9,
    convolution: Convolution = "auto",
) -> Model:
    """Build a wide ResNet.

    Args:
        name: for errors.
        widen: k.
        blocks: number in a group; the network has 6 blocks + 4 layers.
        input_shape: (H, W, c); (32, 32, 3) in the papers.
        num_classes: C; None leaves out the classifier.
        code: released code whose details are followed, "semifl" or "fixmatch"; see the module.
        norm: "batch" as in the papers, "group" or "none".
        groups: of "group".
        momentum: of the running statistics.
        convolution: see `jaxfed.models.layers.find_convolution`.

    Raises:
        UsageError: no images; an unknown option.

    Cost: WRN-28-2 has 1,467,610 parameters for RGB and ten classes, and 0.21e9 multiply-adds an image of
    32 x 32; WRN-28-8 has 23,401,012 for 100 classes, and 3.4e9.
    """
    if code not in ("semifl", "fixmatch"):
        raise UsageError(f"unknown code {code!r}; allowed: semifl, fixmatch")
    *_, channels = image_shape(name, input_shape)
    is_fixmatch = code == "fixmatch"

    def build(rngs: nnx.Rngs) -> _WideResNet:
        layers = Layers(
            rngs,
            convolution,
            HE_FAN_OUT_INIT if is_fixmatch else PYTORCH_INIT,
            norm_kind=norm,
            groups=groups,
            momentum=momentum,
            epsilon=1e-3 if is_fixmatch else 1e-5,
        )
        return _WideResNet(layers, channels, num_classes, widen, blocks, is_fixmatch)

    return from_module(build)


wrn28_2 = partial(wide_resnet, "wrn28_2", 2, 4)
wrn28_8 = partial(wide_resnet, "wrn28_8", 8, 4)


class _Block(nnx.Module):
    """One block; `is_raw`: the 1 x 1 convolution takes x itself."""

    def __init__(
        self,
        layers: Layers,
        into: int,
        out: int,
        stride: int,
        activation: Activation,
        is_raw: bool,
    ):
        self.norms = nnx.List([layers.norm(into), layers.norm(out)])
        self.convs = nnx.List([layers.conv(into, out, 3, stride), layers.conv(out, out)])
        if into != out:
            self.shortcut = layers.conv(into, out, 1, stride)
        self.activation = activation
        self.is_raw = is_raw

    def __call__(self, x: jax.Array, frozen: bool) -> jax.Array:
        a = self.activation(self.norms[0](x, frozen))
        h = self.activation(self.norms[1](self.convs[0](a), frozen))
        if hasattr(self, "shortcut"):
            x = self.shortcut(x if self.is_raw else a)
        return self.convs[1](h) + x


class _WideResNet(nnx.Module):
    def __init__(
        self,
        layers: Layers,
        in_channels: int,
        num_classes: int | None,
        widen: int,
        blocks: int,
        is_fixmatch: bool,
    ):
        self.activation = leaky_relu if is_fixmatch else jax.nn.relu
        self.stem = layers.conv(in_channels, 16)
        self.blocks: nnx.List = nnx.List()
        into = 16
        for group in range(3):
            for block in range(blocks):
                out, stride = 16 * widen << group, 2 if group and not block else 1
                is_raw = is_fixmatch and group > 0
                self.blocks.append(_Block(layers, into, out, stride, self.activation, is_raw))
                into = out
        self.norm = layers.norm(into)
        dense = nnx.initializers.glorot_normal() if is_fixmatch else PYTORCH_INIT
        self.head = replace(layers, kernel_init=dense).classifier(into, num_classes)

    def features(self, x: jax.Array, rngs: nnx.Rngs | None = None) -> jax.Array:
        """Mean over pixels of the last activation."""
        frozen = rngs is None
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, frozen)
        x = self.activation(self.norm(x, frozen))
        return jnp.mean(x.astype(jnp.float32), axis=(1, 2))
