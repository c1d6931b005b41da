"""Layers shared by the networks, with the settings common to all layers of a network in one place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.kernels.arrays import narrow_product
from jaxfed.kernels.conv import matmul_conv
from jaxfed.kernels.pooling import max_pool
from jaxfed.kernels.winograd import winograd_conv
from jaxfed.models.model import Model, from_module

Norm = Literal["batch", "group", "none"]
Activation = Callable[[jax.Array], jax.Array]

_FEW = 64  # columns up to which a kernel is `narrow_product`'s

PYTORCH_INIT = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
KERAS_INIT = nnx.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
HE_FAN_OUT_INIT = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")


def identity(x: jax.Array) -> jax.Array:
    """Return x."""
    return x


def leaky_relu(x: jax.Array) -> jax.Array:
    """max(x, x / 10)."""
    return jax.nn.leaky_relu(x, 0.1)


def image_shape(
    network: str, input_shape: Sequence[int], smallest: int = 1
) -> tuple[int, int, int]:
    """(H, W, c) of a network's input. Raises UsageError if it is not images, or too small."""
    if len(input_shape) != 3:
        raise UsageError(f"{network} takes images (H, W, c), not inputs of {tuple(input_shape)}")
    height, width, channels = input_shape
    if min(height, width) < smallest:
        raise UsageError(
            f"{network} takes images of {smallest} x {smallest} or more, not {height} x {width}"
        )
    return height, width, channels


_CPU_ALONE = ContextVar[Callable[..., jax.Array]]("_CPU_ALONE", default=winograd_conv)


@contextmanager
def by_definition() -> Iterator[None]:
    """Convolve by products alone in what is traced on a CPU, to count operations."""
    token = _CPU_ALONE.set(matmul_conv)
    try:
        yield
    finally:
        _CPU_ALONE.reset(token)


def _convolve(*operands: Any, **options: Any) -> jax.Array:
    """XLA's convolution; on a CPU the fastest for each shape (`jaxfed.kernels.winograd`)."""
    on_cpu = jax.default_backend() == "cpu"
    return (_CPU_ALONE.get() if on_cpu else jax.lax.conv_general_dilated)(*operands, **options)


def _in_float32(args: Any, /, *, dtype: Any = None, inexact: bool = True) -> Any:
    del dtype, inexact
    return tuple(None if x is None else jnp.asarray(x, jnp.float32) for x in args)


# Flax's norms return the widest dtype of inputs and statistics, so one of them would end a computation in
# bfloat16. These compute in float32, with `promote_dtype=_in_float32`, and return the inputs' dtype.


class BatchNorm(nnx.BatchNorm):
    """Flax's, over all axes but the last; as there, the running variance is the biased one."""

    def __call__(self, x: Any, use_running_average: Any = None, *, mask: Any = None) -> jax.Array:
        """Normalize by the batch or by the running statistics."""
        return super().__call__(x, use_running_average, mask=mask).astype(x.dtype)


class GroupNorm(nnx.GroupNorm):
    """Flax's: each example separately; training and evaluation do not differ."""

    def __call__(self, x: Any, use_running_average: Any = None, *, mask: Any = None) -> jax.Array:
        """Normalize."""
        return super().__call__(x, mask=mask).astype(x.dtype)


class LayerNorm(nnx.LayerNorm):
    """Flax's: each token separately."""

    def __call__(self, x: Any, *, mask: Any = None) -> jax.Array:
        """Normalize."""
        return super().__call__(x, mask=mask).astype(x.dtype)


class Identity(nnx.Module):
    """Placeholder for a missing norm or classifier."""

    def __call__(self, x: jax.Array, use_running_average: bool | None = None) -> jax.Array:
        """Return x."""
        return x


class WeightNorm(nnx.Module):
    """A layer with kernel g v / |v|, |v| taken for each output (Salimans, Kingma, NeurIPS 2016).

    v is the layer's own kernel and g starts at |v|, as in PyTorch. (Flax's `WeightNorm` writes the
    normalized kernel into the parameters, and does not train g.)
    """

    def __init__(self, layer: nnx.Conv | nnx.Linear):
        self.layer = layer
        self.gain = nnx.Param(_norm_per_output(layer.kernel[...]))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply the layer with the normalized kernel."""
        v = self.layer.kernel[...]
        scale = self.gain[...].astype(jnp.float32) / _norm_per_output(v)
        layer = nnx.clone(self.layer)
        layer.kernel[...] = v * scale.astype(v.dtype).reshape((1,) * (v.ndim - 1) + (-1,))
        return layer(x)


def _norm_per_output(kernel: jax.Array) -> jax.Array:
    return jnp.sqrt(
        jnp.sum(jnp.square(kernel.astype(jnp.float32)), axis=tuple(range(kernel.ndim - 1)))
    )


class Unit(nnx.Module):
    """activation(norm(linear(x))), or norm(activation(linear(x))) with `norm_last`."""

    def __init__(
        self,
        linear: nnx.Conv | nnx.Linear | WeightNorm,
        norm: BatchNorm | GroupNorm | Identity,
        activation: Activation = jax.nn.relu,
        *,
        norm_last: bool = False,
    ):
        self.linear = linear
        self.norm = norm
        self.activation = activation
        self.norm_last = norm_last

    def __call__(self, x: jax.Array, frozen: bool) -> jax.Array:
        """Apply the unit; frozen: normalize by running statistics, not by the batch's."""
        x = self.linear(x)
        if self.norm_last:
            return self.norm(self.activation(x), frozen)
        return self.activation(self.norm(x, frozen))


@dataclass(frozen=True)
class Layers:
    """Makes the layers of one network.

    Attributes:
        rngs: random streams for the weights.
        kernel_init: of convolutions and dense layers; biases start at 0.
        norm_kind: "batch", "group", or "none".
        groups: number of groups of channels, for "group".
        momentum: share of a running statistic that one batch leaves in place. (PyTorch's is 1 minus
            this.)
        epsilon: added to variances.
    """

    rngs: nnx.Rngs
    kernel_init: nnx.Initializer = PYTORCH_INIT
    norm_kind: Norm = "batch"
    groups: int = 32
    momentum: float = 0.9
    epsilon: float = 1e-5

    def conv(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        stride: int = 1,
        *,
        padding: int | Literal["SAME"] | None = None,
        use_bias: bool = False,
        depthwise: bool = False,
        kernel_init: nnx.Initializer | None = None,
    ) -> nnx.Conv:
        """A convolution with a square window; `padding` pixels on every side, by default to keep H x W."""
        pixels = kernel_size // 2 if padding is None else padding
        return nnx.Conv(
            in_channels,
            out_channels,
            (kernel_size, kernel_size),
            stride,
            padding=pixels,
            feature_group_count=in_channels if depthwise else 1,
            use_bias=use_bias,
            kernel_init=self.kernel_init if kernel_init is None else kernel_init,
            conv_general_dilated=_convolve,
            rngs=self.rngs,
        )

    def linear(self, in_features: int, out_features: int, *, use_bias: bool = True) -> nnx.Linear:
        """A dense layer."""
        return nnx.Linear(
            in_features,
            out_features,
            use_bias=use_bias,
            kernel_init=self.kernel_init,
            rngs=self.rngs,
        )

    def classifier(
        self, in_features: int, num_classes: int | None, *, use_bias: bool = True
    ) -> nnx.Linear | Identity:
        """The last dense layer; `Identity` if the number of classes is None."""
        if num_classes is None:
            return Identity()
        layer = self.linear(in_features, num_classes, use_bias=use_bias)
        if jax.default_backend() == "cpu" and num_classes <= _FEW:
            layer.dot_general = narrow_product
        return layer

    def norm(self, channels: int) -> BatchNorm | GroupNorm | Identity:
        """A norm of the network's kind, called as norm(x, frozen). Raises UsageError."""
        common: Any = {"epsilon": self.epsilon, "promote_dtype": _in_float32, "rngs": self.rngs}
        if self.norm_kind == "batch":
            return BatchNorm(channels, momentum=self.momentum, **common)
        if self.norm_kind == "group":
            if channels % self.groups:
                raise UsageError(f"{self.groups} groups do not divide {channels} channels")
            return GroupNorm(channels, num_groups=self.groups, **common)
        if self.norm_kind == "none":
            return Identity()
        raise UsageError(f"unknown norm {self.norm_kind!r}; allowed: batch, group, none")

    def token_norm(self, features: int) -> LayerNorm:
        """A norm of tokens."""
        return LayerNorm(
            features,
            epsilon=self.epsilon,
            use_fast_variance=False,
            promote_dtype=_in_float32,
            rngs=self.rngs,
        )


def built(make: Callable[..., Any], *, by_example: bool = False, **settings: Any) -> Model:
    """Return the model of make(layers), whose `Layers` have these settings."""
    return from_module(lambda rngs: make(Layers(rngs, **settings)), by_example=by_example)


def dropout(
    x: jax.Array, rate: float, rngs: nnx.Rngs | None, *, channels: bool = False
) -> jax.Array:
    """Zero entries with probability `rate` and scale the others; return x without `rngs`.

    channels: zero whole channels of [n, H, W, c] (PyTorch's Dropout2d).
    """
    layer = nnx.Dropout(rate, broadcast_dims=(1, 2) if channels else ())
    return layer(x, deterministic=rngs is None, rngs=rngs)


def pooled_conv(conv: nnx.Conv, x: jax.Array, size: int) -> jax.Array:
    """max_pool(conv(x), size), with the bias added after pooling; as rounding is monotone, results are equal.

    The bias gradient is then a sum over size^2 times fewer numbers.
    """
    assert conv.bias is not None
    bias = conv.bias[...][None, None, None]
    plain = nnx.clone(conv)
    plain.use_bias, plain.bias = False, nnx.data(None)
    return max_pool(plain(x), size) + bias.astype(x.dtype)


def unit_vectors(x: jax.Array) -> jax.Array:
    """x / max(|x|, 1e-12) along the last axis, with a gradient of 0 rather than NaN at x = 0."""
    square = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(square, 1e-24))


def flatten(x: jax.Array) -> jax.Array:
    """[n, ...] as [n, d], row by row."""
    return x.reshape(len(x), math.prod(x.shape[1:]))
