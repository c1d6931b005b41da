"""EfficientNet-B0 and -Lite0.

M. Tan, Q. V. Le. "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks".
ICML 2019, arXiv:1905.11946. A network is a stem (3 x 3, stride 2), 16 inverted bottlenecks, a 1 x 1
convolution to 1280 channels, a mean over pixels (the *features*) and a linear classifier (the *head*). An
inverted bottleneck on c channels, expansion e, window k:

    h = act(norm(conv 1 x 1, c -> e c))          left out where e = 1
    h = act(norm(depthwise k x k))
    h = h sigmoid(W act(V mean(h)))              squeeze-excitation; B only
    y = norm(conv 1 x 1, e c -> o),  + x where the shapes agree

B activates by swish; Lite (made for integer hardware) has no squeeze-excitation and activates by ReLU6.
Padding is TensorFlow's "SAME", which the released weights were trained with; the norm is batch normalization
with epsilon 1e-3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.models.layers import HE_FAN_OUT_INIT, Layers, dropout, image_shape
from jaxfed.models.model import Model, from_module

IMAGE_SIZE = 224  # pixels a side of the images that the released weights were trained with
NUM_FEATURES = 1280
_STEM_CHANNELS = 32
_DROPOUT = 0.2


class Stage(NamedTuple):
    """A run of blocks of one kind; only the first has the stride and the change of channels."""

    num_blocks: int
    kernel_size: int
    stride: int
    expansion: int
    out_channels: int


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)


class BlockSpec(NamedTuple):
    """One inverted bottleneck. squeezed: channels of its squeeze-excitation, 0 without one."""

    kernel_size: int
    stride: int
    in_channels: int
    hidden: int
    out_channels: int
    squeezed: int


class Network(NamedTuple):
    """RGB means and deviations of the images that the weights expect, in units of 0 to 255, and the kind."""

    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    lite: bool

    def blocks(self) -> Iterator[BlockSpec]:
        """The blocks from stem to head."""
        in_channels = _STEM_CHANNELS
        for stage in STAGES:
            for index in range(stage.num_blocks):
                yield BlockSpec(
                    kernel_size=stage.kernel_size,
                    stride=stage.stride if index == 0 else 1,
                    in_channels=in_channels,
                    hidden=in_channels * stage.expansion,
                    out_channels=stage.out_channels,
                    squeezed=0 if self.lite else in_channels // 4,
                )
                in_channels = stage.out_channels


NETWORKS = {
    "efficientnet_b0": Network((123.675, 116.28, 103.53), (58.395, 57.12, 57.375), lite=False),
    "efficientnet_lite0": Network((127.0, 127.0, 127.0), (128.0, 128.0, 128.0), lite=True),
}

_DEPTHWISE_INIT = nnx.initializers.variance_scaling(2.0, "fan_in", "normal")
_CLASSIFIER_INIT = nnx.initializers.variance_scaling(1 / 3, "fan_out", "uniform")
_STOCHASTIC_DEPTH = 0.2  # share of the last block's outputs dropped in training; earlier ones less


def find_network(name: str) -> Network:
    """The network of that name. Raises UsageError on a name not in `NETWORKS`."""
    if name not in NETWORKS:
        raise UsageError(f"unknown network {name!r}; allowed: {', '.join(NETWORKS)}")
    return NETWORKS[name]


def prepare(images: jax.Array, network: Network, image_size: int | None = None) -> jax.Array:
    """Resize and normalize images as the network expects them: (resized - mean) / deviation.

    Grey images are repeated over RGB. The whole image is resized to a square (bicubic, antialiased
    where it shrinks). There is no center crop as in ImageNet evaluation, so small images keep their
    borders.

    Args:
        images: [n, h, w, 1 or 3], uint8, or float in units of 0 to 255.
        network: the network for these images.
        image_size: pixels a side; None is 224, the network's own.

    Returns:
        float32 [n, image_size, image_size, 3].
    """
    size = IMAGE_SIZE if image_size is None else image_size
    images = jnp.asarray(images, jnp.float32)
    resized = jax.image.resize(images, (images.shape[0], size, size, images.shape[-1]), "bicubic")
    mean, deviation = (jnp.asarray(of).reshape(1, 1, 1, 3) for of in network[:2])
    return (resized - mean) / deviation


def efficientnet(name: str, *, num_classes: int | None = 1000) -> Model:
    """Build the network of that name, for images as `prepare` makes them, of any size.

    In training there is dropout before the classifier, and stochastic depth.

    Args:
        name: a key of `NETWORKS`.
        num_classes: outputs of the classifier; None leaves it out.

    Raises:
        UsageError: an unknown name.

    Cost: Lite0 and B0 take 0.39e9 multiply-adds an image of 224 x 224.
    """
    network = find_network(name)

    def build(rngs: nnx.Rngs) -> _EfficientNet:
        layers = Layers(rngs, HE_FAN_OUT_INIT, momentum=0.99, epsilon=1e-3)
        return _EfficientNet(network, num_classes, layers)

    return from_module(build)


def for_images(name: str, input_shape: Sequence[int], num_classes: int | None) -> Model:
    """Build `efficientnet` for images (H, W, 3) of any size; raises a UsageError for others."""
    *_, channels = image_shape(name, input_shape)
    if channels != 3:
        raise UsageError(f"{name} takes images of 3 channels, not of {channels}")
    return efficientnet(name, num_classes=num_classes)


efficientnet_b0, efficientnet_lite0 = (partial(for_images, name) for name in NETWORKS)


def _conv(
    layers: Layers,
    in_channels: int,
    out_channels: int,
    kernel_size: int = 1,
    stride: int = 1,
    *,
    depthwise: bool = False,
    use_bias: bool = False,
) -> nnx.Conv:
    # The variance of the paper's code, 2 / (window * outputs a group): an output of a depthwise
    # convolution is a group of its own, whose fan-in is the window.
    return layers.conv(
        in_channels,
        out_channels,
        kernel_size,
        stride,
        padding="SAME",
        use_bias=use_bias,
        depthwise=depthwise,
        kernel_init=_DEPTHWISE_INIT if depthwise else None,
    )


class _InvertedBottleneck(nnx.Module):
    def __init__(
        self,
        block: BlockSpec,
        activation: Callable[[jax.Array], jax.Array],
        drop: float,
        layers: Layers,
    ):
        self.activation = activation
        self.residual = block.stride == 1 and block.in_channels == block.out_channels
        self.stochastic_depth = nnx.Dropout(drop, broadcast_dims=(1, 2, 3))
        if block.hidden != block.in_channels:
            self.expand_conv = _conv(layers, block.in_channels, block.hidden)
            self.expand_norm = layers.norm(block.hidden)
        self.depthwise_conv = _conv(
            layers, block.hidden, block.hidden, block.kernel_size, block.stride, depthwise=True
        )
        self.depthwise_norm = layers.norm(block.hidden)
        if block.squeezed:
            self.squeeze = _conv(layers, block.hidden, block.squeezed, use_bias=True)
            self.excite = _conv(layers, block.squeezed, block.hidden, use_bias=True)
        self.project_conv = _conv(layers, block.hidden, block.out_channels)
        self.project_norm = layers.norm(block.out_channels)

    def __call__(self, x: jax.Array, rngs: nnx.Rngs | None) -> jax.Array:
        frozen = rngs is None
        h = x
        if hasattr(self, "expand_conv"):
            h = self.activation(self.expand_norm(self.expand_conv(h), frozen))
        h = self.activation(self.depthwise_norm(self.depthwise_conv(h), frozen))
        if hasattr(self, "squeeze"):
            squeezed = self.activation(self.squeeze(jnp.mean(h, axis=(1, 2), keepdims=True)))
            h = h * jax.nn.sigmoid(self.excite(squeezed))
        h = self.project_norm(self.project_conv(h), frozen)
        if not self.residual:
            return h
        return x + self.stochastic_depth(h, deterministic=frozen, rngs=rngs)


class _EfficientNet(nnx.Module):
    def __init__(
        self,
        network: Network,
        num_classes: int | None,
        layers: Layers,
    ):
        blocks = list(network.blocks())
        self.activation = jax.nn.relu6 if network.lite else jax.nn.swish
        self.stem_conv = _conv(layers, 3, _STEM_CHANNELS, 3, 2)
        self.stem_norm = layers.norm(_STEM_CHANNELS)
        self.blocks = nnx.List(
            _InvertedBottleneck(
                block, self.activation, _STOCHASTIC_DEPTH * index / len(blocks), layers
            )
            for index, block in enumerate(blocks)
        )
        self.head_conv = _conv(layers, blocks[-1].out_channels, NUM_FEATURES)
        self.head_norm = layers.norm(NUM_FEATURES)
        self.classifier = replace(layers, kernel_init=_CLASSIFIER_INIT).classifier(
            NUM_FEATURES, num_classes
        )

    def features(self, images: jax.Array, rngs: nnx.Rngs | None = None) -> jax.Array:
        """Mean over pixels of the last activation; training mode where there are rngs."""
        frozen = rngs is None
        x = self.activation(self.stem_norm(self.stem_conv(images), frozen))
        for block in self.blocks:
            x = block(x, rngs)
        x = self.activation(self.head_norm(self.head_conv(x), frozen))
        return dropout(jnp.mean(x, axis=(1, 2), dtype=jnp.float32), _DROPOUT, rngs)

    def head(self, features: jax.Array) -> jax.Array:
        """Logits."""
        return self.classifier(features)
