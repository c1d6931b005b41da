"""FedCT's convolutional networks: its Tables 8 (CIFAR-10), 10 and 11 (scans), 12 (SVHN).

Table 9's, for Fashion-MNIST, is `jaxfed.models.mlp.mlp`. All follow one plan: stages of 3 x 3
convolutions, each followed by a max-pool of 2 and dropout; then dense layers. Settings that the tables omit
are those of the authors' code: PyTorch's defaults, and the rates of dropout. Where table and code disagree:

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

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.models.layers import (
    Convolution,
    Identity,
    Layers,
    Norm,
    Unit,
    dropout,
    flatten,
    image_shape,
    max_pool,
)
from jaxfed.models.model import Model, from_module
from jaxfed.settings import Count


class Stage(NamedTuple):
    """Convolutions up to a pooling: their outputs, whether each has a norm, dropout after it."""

    channels: tuple[int, ...]
    has_norm: tuple[bool, ...]
    dropout: float


class Plan(NamedTuple):
    """A network. dense: size of the layer before the classifier, 0 without one."""

    stages: tuple[Stage, ...]
    norm_last: bool
    channel_dropout: bool
    dense: int = 0
    dense_norm: bool = False
    dense_dropout: float = 0.0


def fedct(
    plan: Plan,
    input_shape: Sequence[int],
    num_classes: int | None,
    *,
    norm: Norm = "batch",
    groups: Count = 32,
    convolution: Convolution = "auto",
) -> Model:
    """Build a network.

    Args:
        plan: its layers.
        input_shape: (H, W, c), of a pixel or more after all pools.
        num_classes: C; None leaves out the classifier.
        norm: "batch" as in the paper, "group" or "none".
        groups: of "group".
        convolution: see `jaxfed.models.layers.find_convolution`.

    Raises:
        UsageError: no images, or too small ones; an unknown option.
    """
    scale = 2 ** len(plan.stages)
    height, width, channels = image_shape("this network", input_shape, smallest=scale)
    num_pixels = (height // scale) * (width // scale)

    def build(rngs: nnx.Rngs) -> _FedCT:
        layers = Layers(rngs, convolution, norm_kind=norm, groups=groups)
        return _FedCT(plan, layers, channels, num_pixels, num_classes)

    return from_module(build)


_BOTH, _FIRST = (True, True), (True, False)
# Table 8, images of 32 x 32: each convolution with ReLU then norm; a dense layer of features (D = 128).
# 551,722 parameters and 1,152 statistics; 40e6 multiply-adds an image.
_CIFAR10 = Plan(
    (Stage((32, 32), _BOTH, 0.5), Stage((64, 64), _BOTH, 0.6), Stage((128, 128), _BOTH, 0.7)),
    norm_last=True,
    channel_dropout=False,
    dense=128,
    dense_norm=True,
    dense_dropout=0.8,
)
# Table 12, images of 32 x 32: as Table 8, with a norm on the first convolution of a stage only, and dropout
# of channels. 551,018 parameters and 448 statistics; 40e6 multiply-adds an image.
_SVHN = Plan(
    (Stage((32, 32), _FIRST, 0.3), Stage((64, 64), _FIRST, 0.3), Stage((128, 128), _FIRST, 0.3)),
    norm_last=True,
    channel_dropout=True,
    dense=128,
    dense_dropout=0.4,
)
# Tables 10 (Pneumonia, 224 x 224) and 11 (MRI, 150 x 150): convolutions with norm then ReLU; a classifier.
# Features are the flattened last activation, D = 64 (H / 4) (W / 4). 1.4e9 and 0.64e9 multiply-adds an image.
_SCANS = Plan(
    (Stage((32, 64), _BOTH, 0.0), Stage((64,), (True,), 0.0)),
    norm_last=False,
    channel_dropout=False,
)
fedct_cifar10, fedct_svhn, fedct_scans = (
    partial(fedct, each) for each in (_CIFAR10, _SVHN, _SCANS)
)


class _FedCT(nnx.Module):
    def __init__(
        self,
        plan: Plan,
        layers: Layers,
        in_channels: int,
        num_pixels: int,
        num_classes: int | None,
    ):
        self.plan = plan
        self.stages: nnx.List[nnx.List[Unit]] = nnx.List()
        into = in_channels
        for stage in plan.stages:
            units: nnx.List[Unit] = nnx.List()
            for out, has_norm in zip(stage.channels, stage.has_norm, strict=True):
                conv = layers.conv(into, out, use_bias=True)
                norm = layers.norm(out) if has_norm else Identity()
                units.append(Unit(conv, norm, norm_last=plan.norm_last))
                into = out
            self.stages.append(units)
        num_features = into * num_pixels
        if plan.dense:
            norm = layers.norm(plan.dense) if plan.dense_norm else Identity()
            self.dense = Unit(layers.linear(num_features, plan.dense), norm, norm_last=True)
            num_features = plan.dense
        self.head = layers.classifier(num_features, num_classes)

    def features(self, x: jax.Array, rngs: nnx.Rngs | None = None) -> jax.Array:
        """The last dense layer's activation, or the flattened last stage."""
        plan, frozen = self.plan, rngs is None
        for stage, units in zip(plan.stages, self.stages, strict=True):
            for unit in units:
                x = unit(x, frozen)
            x = dropout(max_pool(x, 2), stage.dropout, rngs, channels=plan.channel_dropout)
        x = flatten(x)
        if plan.dense:
            x = dropout(self.dense(x, frozen), plan.dense_dropout, rngs)
        return x.astype(jnp.float32)
