"""ResNet-9 and ResNet-8 of ProtoFSSL's Table 6; ResNet-9 is also FedMatch's network.

    conv 64;  conv 128, pool;  x + (conv 128, conv 128)(x);  conv 256, pool;  conv 512, pool;
    x + (conv 512, conv 512)(x);  max-pool 4: the features, D = 512;  dense without bias

Every convolution is 3 x 3, without bias, followed by a norm (or none) and a ReLU; pools are maxima.
6,568,640 parameters for 10 classes, and 6,563,520 in ResNet-8, which has no dense layer: Table 6.
ProtoFSSL's code has biases; its table and FedMatch have none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.models.layers import (
    KERAS_INIT,
    Convolution,
    Identity,
    Layers,
    Norm,
    Unit,
    flatten,
    image_shape,
    max_pool,
)
from jaxfed.models.model import Model, from_module, without_head
from jaxfed.settings import Count, Share


def resnet9(
    input_shape: Sequence[int],
    num_classes: int | None,
    *,
    norm: Norm = "none",
    groups: Count = 32,
    momentum: Share = 0.99,
    pools: Sequence[Count] = (2, 2, 2, 4),
    convolution: Convolution = "auto",
) -> Model:
    """Build a ResNet-9.

    Args:
        input_shape: (H, W, c); (32, 32, 3) in the papers.
        num_classes: C; None leaves out the dense layer.
        norm: "none" as in FedMatch and ProtoFSSL's Table 3, "batch" or "group" as in its Table 4.
        groups: of "group".
        momentum: of the running statistics; 0 keeps the last batch's (ProtoFSSL's "sBN" in code).
        pools: sides of the four pools. STL-10 of 96 x 96 takes (3, 2, 4, 4) in ProtoFSSL's code.
        convolution: see `jaxfed.models.layers.find_convolution`.

    Raises:
        UsageError: no images, or too small ones for the pools; an unknown option.

    Cost: 0.38e9 multiply-adds for an image of 32 x 32.
    """
    if len(pools) != 4 or min(pools) < 1:
        raise UsageError(f"pools={tuple(pools)}: resnet9 takes 4 positive sides of pools")
    scale = math.prod(pools)
    height, width, channels = image_shape("resnet9", input_shape, smallest=scale)
    num_features = 512 * (height // scale) * (width // scale)

    def build(rngs: nnx.Rngs) -> _ResNet9:
        layers = Layers(
            rngs,
            convolution,
            KERAS_INIT,
            norm_kind=norm,
            groups=groups,
            momentum=momentum,
            epsilon=1e-3,
        )
        head = layers.classifier(num_features, num_classes, use_bias=False)
        return _ResNet9(layers, channels, tuple(pools), head)

    return from_module(build)


resnet8 = without_head(resnet9)  # ProtoFSSL classifies by prototypes


class _ResNet9(nnx.Module):
    def __init__(
        self,
        layers: Layers,
        in_channels: int,
        pools: tuple[int, ...],
        head: nnx.Linear | Identity,
    ):
        def unit(into: int, out: int) -> Unit:
            return Unit(layers.conv(into, out), layers.norm(out))

        self.stem = unit(in_channels, 64)
        self.widen = nnx.List([unit(64, 128), unit(128, 256), unit(256, 512)])
        self.residual_128 = nnx.List([unit(128, 128), unit(128, 128)])
        self.residual_512 = nnx.List([unit(512, 512), unit(512, 512)])
        self.pools = pools
        self.head = head

    def features(self, x: jax.Array, rngs: nnx.Rngs | None = None) -> jax.Array:
        """The last maxima."""
        frozen = rngs is None

        def residual(x: jax.Array, units: nnx.List) -> jax.Array:
            first, second = units
            return x + second(first(x, frozen), frozen)

        x = self.stem(x, frozen)
        x = max_pool(self.widen[0](x, frozen), self.pools[0])
        x = residual(x, self.residual_128)
        x = max_pool(self.widen[1](x, frozen), self.pools[1])
        x = max_pool(self.widen[2](x, frozen), self.pools[2])
        x = residual(x, self.residual_512)
        return flatten(max_pool(x, self.pools[3])).astype(jnp.float32)
