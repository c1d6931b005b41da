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

Weights are from a safetensors file with efficientnet-pytorch's tensor names. To make one of the weights that
efficientnet-pytorch downloads:

    s = efficientnet_pytorch.EfficientNet.from_pretrained("efficientnet-b0").state_dict()
    safetensors.torch.save_file({k: v.contiguous() for k, v in s.items()}, "b0.safetensors")

`contiguous` is required: weights converted from TensorFlow have PyTorch's shapes (OIHW), but TensorFlow's
order (HWIO) in memory. Without it the file has the right names and shapes, and kernels in the wrong order.
Nothing in the file shows that, and its features look plausible.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.host.location import location
from jaxfed.models.layers import HE_FAN_OUT_INIT, Layers, built, dropout, image_shape
from jaxfed.models.model import Model
from jaxfed.models.pretrained import Tensor, pytorch_name, read_tensors

IMAGE_SIZE = 224  # pixels a side of the images that the released weights were trained with
NUM_FEATURES = 1280
_STEM_CHANNELS = 32
_DROPOUT = 0.2
_STOCHASTIC_DEPTH = 0.2  # share of the last block's outputs dropped in training; earlier ones less
# The variance of the paper's code, 2 / (window * outputs a group): an output of a depthwise convolution is a
# group of its own, whose fan-in is the window.
_DEPTHWISE_INIT = nnx.initializers.variance_scaling(2.0, "fan_in", "normal")
_CLASSIFIER_INIT = nnx.initializers.variance_scaling(1 / 3, "fan_out", "uniform")


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


class Network(NamedTuple):
    """RGB means and deviations of the images that the weights expect, in units of 0 to 255, and the kind."""

    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    lite: bool


NETWORKS = {
    "efficientnet_b0": Network((123.675, 116.28, 103.53), (58.395, 57.12, 57.375), lite=False),
    "efficientnet_lite0": Network((127.0, 127.0, 127.0), (128.0, 128.0, 128.0), lite=True),
}


def efficientnet(
    name: str,
    input_shape: Sequence[int] = (IMAGE_SIZE, IMAGE_SIZE, 3),
    num_classes: int | None = 1000,
) -> Model:
    """Build the network of that name, for images as `jaxfed.kernels.images.squares` makes them, of any size.

    In training there is dropout before the classifier, and stochastic depth. Without `num_classes` there is
    no classifier. Raises a UsageError for inputs that are no images of three channels.

    Cost: Lite0 and B0 take 0.39e9 multiply-adds an image of 224 x 224.
    """
    *_, channels = image_shape(name, input_shape)
    if channels != 3:
        raise UsageError(f"{name} takes images of 3 channels, not of {channels}")
    make = partial(_EfficientNet, NETWORKS[name].lite, num_classes)
    return built(make, kernel_init=HE_FAN_OUT_INIT, momentum=0.99, epsilon=1e-3)


efficientnet_b0, efficientnet_lite0 = (partial(efficientnet, name) for name in NETWORKS)


class _InvertedBottleneck(nnx.Module):
    def __init__(
        self, stage: Stage, into: int, stride: int, lite: bool, drop: float, layers: Layers
    ):
        hidden, out = into * stage.expansion, stage.out_channels
        conv = partial(layers.conv, padding="SAME")
        self.activation = jax.nn.relu6 if lite else jax.nn.swish
        self.residual = stride == 1 and into == out
        self.stochastic_depth = nnx.Dropout(drop, broadcast_dims=(1, 2, 3))
        if hidden != into:
            self.expand_conv = conv(into, hidden, 1)
            self.expand_norm = layers.norm(hidden)
        self.depthwise_conv = conv(
            hidden, hidden, stage.kernel_size, stride, depthwise=True, kernel_init=_DEPTHWISE_INIT
        )
        self.depthwise_norm = layers.norm(hidden)
        if not lite:
            self.squeeze = conv(hidden, into // 4, 1, use_bias=True)
            self.excite = conv(into // 4, hidden, 1, use_bias=True)
        self.project_conv = conv(hidden, out, 1)
        self.project_norm = layers.norm(out)

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
    def __init__(self, lite: bool, num_classes: int | None, layers: Layers):
        self.activation = jax.nn.relu6 if lite else jax.nn.swish
        self.stem_conv = layers.conv(3, _STEM_CHANNELS, 3, 2, padding="SAME")
        self.stem_norm = layers.norm(_STEM_CHANNELS)
        self.blocks: nnx.List[_InvertedBottleneck] = nnx.List()
        into, number = _STEM_CHANNELS, sum(stage.num_blocks for stage in STAGES)
        for stage in STAGES:
            for index in range(stage.num_blocks):
                drop, stride = _STOCHASTIC_DEPTH * len(self.blocks) / number, stage.stride
                block = _InvertedBottleneck(stage, into, 1 if index else stride, lite, drop, layers)
                self.blocks.append(block)
                into = stage.out_channels
        self.head_conv = layers.conv(into, NUM_FEATURES, 1, padding="SAME")
        self.head_norm = layers.norm(NUM_FEATURES)
        last = replace(layers, kernel_init=_CLASSIFIER_INIT)
        self.classifier = last.classifier(NUM_FEATURES, num_classes)

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


# Layer -> its name in a file; the first norm of a network has the name of a block's first one.
NAMES = {
    **{"stem_conv": "_conv_stem", "stem_norm": "_bn0", "head_conv": "_conv_head"},
    **{"head_norm": "_bn1", "classifier": "_fc", "blocks": "_blocks"},
    **{"expand_conv": "_expand_conv", "expand_norm": "_bn0", "depthwise_conv": "_depthwise_conv"},
    **{"depthwise_norm": "_bn1", "squeeze": "_se_reduce", "excite": "_se_expand"},
    **{"project_conv": "_project_conv", "project_norm": "_bn2"},
}


def find_weights(
    network: str, weights: str | os.PathLike[str] | None = None, root: str | None = None
) -> Path:
    """Find the file of a network's pretrained weights.

    The file is `weights` itself if given. Otherwise it is the first of NETWORK.safetensors,
    weights/NETWORK.safetensors and ../weights/NETWORK.safetensors in the data root (`root`, else
    $JAXFED_DATA). Without one, a UsageError names the paths searched, and how to make the file.
    """
    if weights is not None:
        candidates = [location(weights, "weights")]
    else:
        key = "config.dataset.root" if root else "$JAXFED_DATA"
        folder = root or os.environ.get("JAXFED_DATA")
        base = location(folder, key).absolute() if folder else None
        folders = (base, base / "weights", base.parent / "weights") if base else ()
        candidates = [folder / f"{network}.safetensors" for folder in folders]
    for file in candidates:
        if file.is_file():
            return file
    looked = ", ".join(map(str, candidates)) or "nowhere: neither a root nor $JAXFED_DATA is set"
    command = "safetensors.torch.save_file({k: v.contiguous() for k, v in MODEL.state_dict().items()}, PATH)"
    raise UsageError(
        f"no weights of {network}; looked for: {looked}; to make the file: {command} with an "
        "efficientnet-pytorch MODEL"
    )


def read_weights(
    path: str | os.PathLike[str], template: nnx.State, *, new_head: bool = False
) -> nnx.State:
    """Read a state like the template (`read_tensors`); every tensor of the file is used exactly once.

    `new_head` keeps the template's classifier and ignores the file's, for other classes.
    """

    def unread(name: str) -> bool:
        is_counter = name.endswith(".num_batches_tracked")  # PyTorch's step counters
        return is_counter or (new_head and name.startswith("_fc."))

    return read_tensors(
        path,
        template,
        lambda leaf: Tensor(pytorch_name(leaf, NAMES)),
        unread=unread,
        without="classifier" if new_head else "",
    )
