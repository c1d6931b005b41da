"""The 13-layer CNN of XCLP's Section 4.2 (appendix A.2), for CIFAR-10 and CIFAR-100.

A. Tarvainen, H. Valpola. "Mean teachers are better role models". NeurIPS 2017, Table 5; as XCLP's
authors run it: every convolution and the classifier weight-normalized, then BatchNorm and leaky ReLU,
dropout 1/2 after each pooling, no noise on the input.

    128 x (3 x 3) three times, max-pool 2, dropout
    256 x (3 x 3) three times, max-pool 2, dropout
    512 x (3 x 3, no padding), 256 x (1 x 1), 128 x (1 x 1), mean over pixels: the features, D = 128
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.models.layers import (
    Convolution,
    Layers,
    Norm,
    Unit,
    WeightNorm,
    dropout,
    image_shape,
    leaky_relu,
    max_pool,
    unit_vectors,
)
from jaxfed.models.model import Model, from_module
from jaxfed.settings import Count

_DROPOUT = 0.5


def cnn13(
    input_shape: Sequence[int],
    num_classes: int | None,
    *,
    normalize_features: bool = False,
    norm: Norm = "batch",
    groups: Count = 32,
    convolution: Convolution = "auto",
) -> Model:
    """Build the 13-layer CNN.

    Args:
        input_shape: (H, W, c), H and W at least 12; (32, 32, 3) in the paper.
        num_classes: C; None leaves out the classifier.
        normalize_features: divide features by their norm, also on their way to the classifier, as in
            the authors' code (`isL2`). The paper's text has no such step.
        norm: "batch" as in the paper, "group" or "none".
        groups: of "group".
        convolution: see `jaxfed.models.layers.find_convolution`.

    Raises:
        UsageError: no images, or too small ones; an unknown option.

    Cost: 3,125,908 parameters for 10 classes and 0.73e9 multiply-adds for an image of 32 x 32. Biases before
    BatchNorm have no effect; the authors' network has them.
    """
    *_, channels = image_shape("cnn13", input_shape, smallest=12)

    def build(rngs: nnx.Rngs) -> _CNN13:
        layers = Layers(rngs, convolution, norm_kind=norm, groups=groups)
        return _CNN13(layers, channels, num_classes, normalize_features)

    return from_module(build)


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
            x = dropout(max_pool(x, 2), _DROPOUT, rngs)
        for unit in self.narrow:
            x = unit(x, rngs is None)
        x = jnp.mean(x, axis=(1, 2), dtype=jnp.float32)
        return unit_vectors(x) if self.normalize_features else x
