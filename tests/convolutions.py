"""Comparisons of a convolution with XLA's definition, and of clients together with each alone."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

LAYOUT = ("NHWC", "HWIO", "NHWC")


def assert_agrees_with_xla(convolve, images, kernel, padding, strides=(1, 1), groups=1, atol=1e-4):
    """In value and both derivatives."""
    settings = {"dimension_numbers": LAYOUT, "feature_group_count": groups}

    def with_derivatives(function):
        out, pull = jax.vjp(lambda *a: function(*a, strides, padding, **settings), images, kernel)
        return out, *pull(jnp.cos(out))

    found = (
        jax.jit(with_derivatives, static_argnums=0)(f) for f in (convolve, lax.conv_general_dilated)
    )
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=atol)


def assert_clients_need_no_convolution(convolve, images, kernels, *, atol=1e-3, **settings):
    """Clients with kernels of their own: derivatives are each one's alone, by products."""

    def loss(kernel, images):
        out = convolve(jnp.sin(images), kernel, (1, 1), "SAME", **settings)
        return (out * out).sum()

    derivatives = jax.grad(loss, argnums=(0, 1))
    together = jax.jit(jax.vmap(derivatives))
    assert "stablehlo.convolution" not in together.lower(kernels, images).as_text()
    alone = jax.jit(derivatives)
    apart = [alone(*each) for each in zip(kernels, images, strict=True)]
    for ours, theirs in zip(together(kernels, images), zip(*apart, strict=True), strict=True):
        np.testing.assert_allclose(ours, np.stack(theirs), rtol=1e-4, atol=atol)
