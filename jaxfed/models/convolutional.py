"""Convolutional networks, most of them from papers.

    cnn               a small one: minutes of FedAvg on a laptop
    cnn13             XCLP's Section 4.2, for CIFAR-10 and CIFAR-100
    resnet9           ProtoFSSL's Table 6, whose ResNet-8 is the same without the dense layer; FedMatch
    resnet18          XCLP's Mini-ImageNet; ProtoFSSL, whose ResNet-17 is the same without the dense layer
    cifar_resnet8     SAGE and ProxyFL; another network than ProtoFSSL's ResNet-8
    fedct_*           FedCT's Tables 8 (CIFAR-10), 10 and 11 (scans), 12 (SVHN); Table 9's is `mlp`

Arguments of all: `input_shape` (H, W, c); `num_classes` C, None leaves out the classifier, for methods with
prototypes. `norm` is "batch", "group" (32 groups) or "none"; `momentum` is that of the running statistics,
where 0 keeps the last batch's (ProtoFSSL's "sBN" in code). A `UsageError` refuses inputs that are no images,
too small ones, and unknown options.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.kernels.pooling import max_pool, overlapping_max_pool
from jaxfed.models.layers import (
    HE_FAN_OUT_INIT,
    KERAS_INIT,
    PYTORCH_INIT,
    Activation,
    Identity,
    Layers,
    Norm,
    Unit,
    WeightNorm,
    built,
    dropout,
    flatten,
    identity,
    image_shape,
    leaky_relu,
    pooled_conv,
    unit_vectors,
)
from jaxfed.models.model import Model
from jaxfed.settings import Count, Ge, Note, Share

Stem = Literal["imagenet", "cifar"]
Pool = Literal["mean", "max"]


def cnn(
    input_shape: Sequence[int],
    num_classes: int | None,
    *,
    channels: Sequence[Count] = (16, 32),
    hidden: Annotated[int, Ge(0), Note("0 is none")] = 128,
    norm: Norm = "none",
    momentum: Share = 0.9,
) -> Model:
    """Convolution, norm, ReLU and max-pool 2 for each of `channels`; a dense ReLU layer of D = `hidden`.

    Images have 2^len(channels) pixels a side or more. Without a dense layer (`hidden` 0) features are the
    last pooled convolution's. "group" has 8 groups.

    Cost: 206,922 parameters and 1.2e6 multiply-adds for an image of 28 x 28 and 10 classes.
    """
    scale = 2 ** len(channels)
    height, width, in_channels = image_shape("cnn", input_shape, smallest=scale)
    num_pixels = (height // scale) * (width // scale)
    return built(
        lambda layers: _CNN(layers, (in_channels, *channels), num_pixels, hidden, num_classes),
        by_example=norm != "batch",
        norm_kind=norm,
        groups=8,
        momentum=momentum,
    )


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


def cnn13(
    input_shape: Sequence[int],
    num_classes: int | None,
    *,
    normalize_features: bool = False,
    norm: Norm = "batch",
) -> Model:
    """The 13-layer CNN of XCLP's Section 4.2 (appendix A.2).

    A. Tarvainen, H. Valpola. "Mean teachers are better role models". NeurIPS 2017, Table 5; as XCLP's
    authors run it: every convolution and the classifier weight-normalized, then BatchNorm and leaky ReLU,
    dropout 1/2 after each pooling, no noise on the input.

        128 x (3 x 3) three times, max-pool 2, dropout
        256 x (3 x 3) three times, max-pool 2, dropout
        512 x (3 x 3, no padding), 256 x (1 x 1), 128 x (1 x 1), mean over pixels: the features, D = 128

    H and W are at least 12, 32 in the paper. `normalize_features` divides features by their norm, also on
    their way to the classifier, as in the authors' code (`isL2`). The paper's text has no such step.

    Cost: 3,125,908 parameters for 10 classes and 0.73e9 multiply-adds for an image of 32 x 32. Biases before
    BatchNorm have no effect; the authors' network has them.
    """
    *_, channels = image_shape("cnn13", input_shape, smallest=12)
    return built(
        lambda layers: _CNN13(layers, channels, num_classes, normalize_features), norm_kind=norm
    )


class _CNN13(nnx.Module):
    def __init__(
        self, layers: Layers, in_channels: int, num_classes: int | None, normalize_features: bool
    ):
        def unit(into: int, out: int, size: int = 3, padding: int | None = None) -> Unit:
            conv = layers.conv(into, out, size, padding=padding, use_bias=True)
            return Unit(WeightNorm(conv), layers.norm(out), leaky_relu)

        self.wide = nnx.List([unit(in_channels, 128), unit(128, 128), unit(128, 128)])
        self.middle = nnx.List([unit(128, 256), unit(256, 256), unit(256, 256)])
        self.narrow = nnx.List([unit(256, 512, padding=0), unit(512, 256, 1), unit(256, 128, 1)])
        self.normalize_features = normalize_features
        head = layers.classifier(128, num_classes)
        self.head = WeightNorm(head) if isinstance(head, nnx.Linear) else head

    def features(self, x: jax.Array, rngs: nnx.Rngs | None = None) -> jax.Array:
        """Mean over pixels of the last activation."""
        for stage in (self.wide, self.middle):
            for unit in stage:
                x = unit(x, rngs is None)
            x = dropout(max_pool(x, 2), 0.5, rngs)
        for unit in self.narrow:
            x = unit(x, rngs is None)
        x = jnp.mean(x, axis=(1, 2), dtype=jnp.float32)
        return unit_vectors(x) if self.normalize_features else x


def resnet9(
    input_shape: Sequence[int],
    num_classes: int | None,
    *,
    norm: Norm = "none",
    momentum: Share = 0.99,
    pools: Sequence[Count] = (2, 2, 2, 4),
) -> Model:
    """The ResNet-9 of ProtoFSSL's Table 6 and of FedMatch.

        conv 64;  conv 128, pool;  x + (conv 128, conv 128)(x);  conv 256, pool;  conv 512, pool;
        x + (conv 512, conv 512)(x);  max-pool 4: the features, D = 512;  dense without bias

    Every convolution is 3 x 3, without bias, followed by a norm (or none) and a ReLU; pools are maxima.
    6,568,640 parameters for 10 classes, and 6,563,520 in ResNet-8, which has no dense layer: Table 6.
    ProtoFSSL's code has biases; its table and FedMatch have none.

    `norm` is "none" in FedMatch and ProtoFSSL's Table 3, "batch" or "group" in its Table 4. `pools` are the
    sides of the four pools: STL-10 of 96 x 96 takes (3, 2, 4, 4) in ProtoFSSL's code.

    Cost: 0.38e9 multiply-adds for an image of 32 x 32.
    """
    if len(pools) != 4 or min(pools) < 1:
        raise UsageError(f"pools={tuple(pools)}: resnet9 takes 4 positive sides of pools")
    scale = math.prod(pools)
    height, width, channels = image_shape("resnet9", input_shape, smallest=scale)
    num_features = 512 * (height // scale) * (width // scale)
    return built(
        lambda layers: _ResNet9(layers, channels, tuple(pools), num_features, num_classes),
        kernel_init=KERAS_INIT,
        norm_kind=norm,
        momentum=momentum,
        epsilon=1e-3,
    )


class _ResNet9(nnx.Module):
    def __init__(
        self,
        layers: Layers,
        in_channels: int,
        pools: tuple[int, ...],
        num_features: int,
        num_classes: int | None,
    ):
        def unit(into: int, out: int) -> Unit:
            return Unit(layers.conv(into, out), layers.norm(out))

        head = layers.classifier(num_features, num_classes, use_bias=False)  # drawn first
        self.stem = unit(in_channels, 64)
        self.widen = nnx.List([unit(64, 128), unit(128, 256), unit(256, 512)])
        self.residual_128 = nnx.List([unit(128, 128), unit(128, 128)])
        self.residual_512 = nnx.List([unit(512, 512), unit(512, 512)])
        self.pools = pools
        self.head = head

    def features(self, x: jax.Array, rngs: nnx.Rngs | None = None) -> jax.Array:
        """The maxima of the last pooling."""
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


def resnet18(
    input_shape: Sequence[int],
    num_classes: int | None,
    *,
    stem: Stem = "imagenet",
    pool: Pool = "mean",
    normalize_features: bool = False,
    norm: Norm = "batch",
    momentum: Share = 0.9,
) -> Model:
    """A ResNet-18.

    K. He, X. Zhang, S. Ren, J. Sun. "Deep residual learning for image recognition". CVPR 2016. A stem,
    then eight blocks of two 3 x 3 convolutions, of 64, 64, 128, 128, 256, 256, 512 and 512 channels; the
    first block of 128, 256 and 512 halves the image:

        y = relu(norm(conv(relu(norm(conv(x))))) + x),   x -> norm(conv 1 x 1 (x)) where shapes differ

    XCLP trains it on Mini-ImageNet of 84 x 84 with the `stem` "imagenet" (A.2; D = 512): 7 x 7 by 2 and an
    overlapping max-pool by 2. ProtoFSSL's ResNet-18, and its ResNet-17 without the last layer, have the stem
    "cifar", 3 x 3 by 1, and the `pool` "max" over the last 4 x 4 pixels. All else is from ProtoFSSL's code,
    as the paper does not specify it. `normalize_features` divides features by their norm, as in XCLP's code
    (`isL2`); not in its text.

    Cost: 11.2e6 parameters; 0.56e9 multiply-adds an image of 32 x 32 with the CIFAR stem, 0.3e9 for
    84 x 84 with the other.
    """
    *_, channels = image_shape("resnet18", input_shape)
    blocks = (64, 64, 128, 128, 256, 256, 512, 512)
    return built(
        partial(_ResNet, channels, num_classes, blocks, stem, pool, normalize_features),
        kernel_init=HE_FAN_OUT_INIT,
        norm_kind=norm,
        momentum=momentum,
    )


def cifar_resnet8(
    input_shape: Sequence[int], num_classes: int | None, *, norm: Norm = "batch"
) -> Model:
    """The ResNet-8 of SAGE (CVPR 2025) and ProxyFL: the CIFAR stem and blocks of 64, 128 and 256 channels.

    Cost: 1,227,594 parameters for RGB and ten classes; 0.20e9 multiply-adds an image of 32 x 32.
    """
    *_, channels = image_shape("cifar_resnet8", input_shape)
    return built(
        partial(_ResNet, channels, num_classes, (64, 128, 256), "cifar", "mean", False),
        kernel_init=HE_FAN_OUT_INIT,
        norm_kind=norm,
    )


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
        in_channels: int,
        num_classes: int | None,
        blocks: Sequence[int],
        stem: Stem,
        pool: Pool,
        normalize_features: bool,
        layers: Layers,
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


class _Plan(NamedTuple):
    """A network of FedCT.

    stages: channels of the convolutions before each pooling, and the dropout after it. every_norm: a norm
    also after a stage's second convolution and the dense layer. dense_dropout: of a dense layer of 128;
    None: no such layer.
    """

    stages: tuple[tuple[tuple[int, ...], float], ...]
    every_norm: bool = True
    norm_last: bool = True
    channel_dropout: bool = False
    dense_dropout: float | None = None


def _fedct(
    plan: _Plan, input_shape: Sequence[int], num_classes: int | None, *, norm: Norm = "batch"
) -> Model:
    """FedCT's networks: stages of 3 x 3 convolutions, max-pool 2 and dropout; then dense layers.

    Settings that the tables omit are those of the authors' code: PyTorch's defaults, and the rates of
    dropout. Where table and code disagree:

    - Counts. Table 8 gives a BatchNorm four numbers a channel (with its statistics), the others two.
      Table 12 prints 18,464 for the convolution from 32 to 64 channels, which has 18,496 (weights
      9 * 32 * 64 and 64 biases); Tables 10 and 11 print 18,464 for the same. The last rows of Table 10
      (4,194,306) and Table 11 (2,636,034) fit neither each other, the flattened lengths printed above
      them, nor images of 224 x 224 and 150 x 150, where the layers listed lead to 64 * 56 * 56 and
      64 * 37 * 37 numbers and so to dense layers of 401,410 and 175,234, as in the authors' code.
    - Scans. The code has no third convolution.
    - CIFAR-10. Table 8 says Dropout, as here; the code drops whole channels.
    - SVHN. The code's network ends in a softmax, and its loss applies another one; the table has none, as
      here. The code never enters evaluation mode: its dropout and batch statistics stay on at test time.
    """
    scale = 2 ** len(plan.stages)
    height, width, channels = image_shape("this network", input_shape, smallest=scale)
    num_pixels = (height // scale) * (width // scale)
    return built(
        lambda layers: _FedCT(plan, layers, channels, num_pixels, num_classes), norm_kind=norm
    )


# Table 8, images of 32 x 32: each convolution with ReLU then norm; a dense layer of features (D = 128).
# 551,722 parameters and 1,152 statistics; 40e6 multiply-adds an image.
_CIFAR10 = _Plan((((32, 32), 0.5), ((64, 64), 0.6), ((128, 128), 0.7)), dense_dropout=0.8)
# Table 12, images of 32 x 32: as Table 8, with a norm on the first convolution of a stage only, and dropout
# of channels. 551,018 parameters and 448 statistics; 40e6 multiply-adds an image.
_SVHN = _Plan(
    (((32, 32), 0.3), ((64, 64), 0.3), ((128, 128), 0.3)),
    every_norm=False,
    channel_dropout=True,
    dense_dropout=0.4,
)
# Tables 10 (Pneumonia, 224 x 224) and 11 (MRI, 150 x 150): convolutions with norm then ReLU; a classifier.
# Features are the flattened last activation, D = 64 (H / 4) (W / 4). 1.4e9 and 0.64e9 multiply-adds an image.
_SCANS = _Plan((((32, 64), 0.0), ((64,), 0.0)), norm_last=False)
fedct_cifar10, fedct_svhn, fedct_scans = (
    partial(_fedct, each) for each in (_CIFAR10, _SVHN, _SCANS)
)


class _FedCT(nnx.Module):
    def __init__(
        self, plan: _Plan, layers: Layers, into: int, num_pixels: int, num_classes: int | None
    ):
        self.plan = plan
        self.stages: nnx.List[nnx.List[Unit]] = nnx.List()
        for channels, _ in plan.stages:
            units: nnx.List[Unit] = nnx.List()
            for number, out in enumerate(channels):
                conv = layers.conv(into, out, use_bias=True)
                norm = layers.norm(out) if plan.every_norm or number == 0 else Identity()
                units.append(Unit(conv, norm, norm_last=plan.norm_last))
                into = out
            self.stages.append(units)
        num_features = into * num_pixels
        if plan.dense_dropout is not None:
            norm = layers.norm(128) if plan.every_norm else Identity()
            self.dense = Unit(layers.linear(num_features, 128), norm, norm_last=True)
            num_features = 128
        self.head = layers.classifier(num_features, num_classes)

    def features(self, x: jax.Array, rngs: nnx.Rngs | None = None) -> jax.Array:
        """The last dense layer's activation, or the flattened last stage."""
        plan, frozen = self.plan, rngs is None
        for (_, rate), units in zip(plan.stages, self.stages, strict=True):
            for unit in units:
                x = unit(x, frozen)
            x = dropout(max_pool(x, 2), rate, rngs, channels=plan.channel_dropout)
        x = flatten(x)
        if plan.dense_dropout is not None:
            x = dropout(self.dense(x, frozen), plan.dense_dropout, rngs)
        return x.astype(jnp.float32)
