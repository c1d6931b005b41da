"""Dense networks: FedCT's for Fashion-MNIST, and XCLP's two-layer linear one.

Inputs (d,) or (H, W, c) are flattened. Without `num_classes` there is no classifier.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import jax
from flax import nnx

from jaxfed.models.layers import Activation, Layers, built, flatten, identity
from jaxfed.models.model import Model
from jaxfed.settings import Count


def mlp(
    input_shape: Sequence[int], num_classes: int | None, *, hidden: Sequence[Count] = (512, 512)
) -> Model:
    """Dense layers with a ReLU after each; features are the last hidden layer.

    784-512-512-10 is FedCT's network for Fashion-MNIST (Table 9; 669,706 parameters). `hidden` () is logistic
    regression.
    """
    sizes = (math.prod(input_shape), *hidden)
    return built(partial(_Dense, sizes, num_classes, jax.nn.relu))


def linear_mlp(
    input_shape: Sequence[int], num_classes: int | None, *, embedding: Count = 128
) -> Model:
    """logits = W (V x + v) + w: the two-layer linear MLP of XCLP's B.1; features are V x + v.

    Trained by FedAvg, its first layer is the linear embedding of FEMNIST's Table 6. The paper does not
    give D, the `embedding`.
    """
    sizes = (math.prod(input_shape), embedding)
    return built(partial(_Dense, sizes, num_classes, identity))


class _Dense(nnx.Module):
    def __init__(
        self, sizes: Sequence[int], num_classes: int | None, activation: Activation, layers: Layers
    ):
        self.hidden = nnx.List(layers.linear(into, out) for into, out in pairwise(sizes))
        self.activation = activation
        self.head = layers.classifier(sizes[-1], num_classes)

    def features(self, x: jax.Array, rngs: nnx.Rngs | None = None) -> jax.Array:
        """The last hidden layer."""
        x = flatten(x)
        for layer in self.hidden:
            x = self.activation(layer(x))
        return x
