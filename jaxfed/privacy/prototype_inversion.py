"""Inversion of prototypes: reconstruct images from mean embeddings, given the network.

A prototype c is the mean of f over n_k images of a class (ProtoFSSL, eq. 2). Its receivers have f, too. There
are two attacks, with little and with more knowledge:

    inverted   argmin_x |f(x) - c|^2 / |c|^2 + w TV(x),  TV(x) = mean of squared differences of neighbors
               (Mahendran, Vedaldi, CVPR 2015, with the exponent beta = 2), x in [0, 1], by Adam
    decoded    A c + b, the ridge regression of images on embeddings of public images of the same kind

The first needs only f. The second also uses the distribution of such images. As it is linear, it maps a mean
of embeddings to the mean of the reconstructions. Both recover the image behind a prototype with n_k = 1. For
larger n_k they recover approximately the images' mean, as c alone does not determine the parts.

The quality is measured by `psnr`, compared with that of a guess, and by `identified`: whether the
reconstruction is nearest to its own image among others of the class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfed.errors import UsageError

Features = Callable[[jax.Array], jax.Array]  # images [n, H, W, c] -> float32 [n, D]

_FARTHEST = 4.0  # bound on initial logits: pixels from 0.02 to 0.98


def inverted(
    features: Features,
    prototypes: jax.Array,
    shape: Sequence[int],
    key: jax.Array,
    *,
    total_variation: float = 0.01,
    steps: int = 500,
) -> jax.Array:
    """Images whose embeddings are nearest to prototypes, among smooth ones.

    Args:
        features: f of a batch of images with values in [0, 1]; jit-traceable, one object for many calls.
        prototypes: float32 [n, D], each attacked separately.
        shape: (H, W, c) of an image.
        key: typed, of the initial images.
        total_variation: w.
        steps: of Adam.

    Returns:
        float32 [n, H, W, c] in (0, 1).

    Cost: `steps` passes of n images through the network, forward and back.
    """
    if prototypes.ndim != 2 or len(shape) != 3 or steps < 1:
        raise UsageError(
            f"prototype inversion: prototypes {list(prototypes.shape)}, images {list(shape)}, {steps} steps: "
            "use [n, D], (H, W, c) and 1 step or more"
        )
    keys = jax.random.split(key, len(prototypes))
    return _inverted(prototypes, keys, features, tuple(shape), total_variation, steps)


@partial(jax.jit, static_argnums=range(2, 6))
def _inverted(
    prototypes: jax.Array,
    keys: jax.Array,
    features: Features,
    shape: tuple[int, ...],
    total_variation: float,
    steps: int,
) -> jax.Array:
    optimizer = optax.adam(0.1)  # on the logits of pixels

    def one(prototype: jax.Array, key: jax.Array) -> jax.Array:
        scale = jnp.maximum(jnp.sum(jnp.square(prototype)), 1e-12)

        def loss(logit: jax.Array) -> jax.Array:
            image = jax.nn.sigmoid(logit)
            miss = features(image[None])[0].astype(jnp.float32) - prototype
            return jnp.sum(jnp.square(miss)) / scale + total_variation * roughness(image)

        def step(_: jax.Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            logit, state = carry
            with jax.numpy_dtype_promotion("standard"):  # Adam raises floats to an integer power
                updates, state = optimizer.update(jax.grad(loss)(logit), state)
            return logit + updates, state

        start = jax.random.uniform(key, shape, minval=-_FARTHEST, maxval=_FARTHEST)
        logit, _ = jax.lax.fori_loop(0, steps, step, (start, optimizer.init(start)))
        return jax.nn.sigmoid(logit)

    return jax.vmap(one)(prototypes, keys)


def roughness(image: jax.Array) -> jax.Array:
    """TV of [H, W, c]: the mean over neighbors of squared differences, down and across."""
    down, across = image[1:] - image[:-1], image[:, 1:] - image[:, :-1]
    return (jnp.sum(jnp.square(down)) + jnp.sum(jnp.square(across))) / (down.size + across.size)


def decoded(
    prototypes: np.ndarray,
    embeddings: np.ndarray,
    images: np.ndarray,
    *,
    ridge: float = 1e-3,
    noise: float = 0.0,
) -> np.ndarray:
    """Reconstruct images from prototypes by a linear decoder fitted on public images.

    Args:
        prototypes: [n, D].
        embeddings: [m, D], of the public images.
        images: [m, H, W, c], in [0, 1].
        ridge: on A, relative to the embeddings' mean variance.
        noise: sigma of the noise added to every number of the prototypes, known to the attacker.

    Returns:
        float64 [n, H, W, c] in [0, 1].
    """
    z, x = np.asarray(embeddings, np.float64), np.asarray(images, np.float64)
    mean, pixels = z.mean(axis=0), x.reshape(len(x), -1)
    centered = z - mean
    # For embeddings with that noise, this decoder is optimal without a further ridge.
    penalty = len(z) * (ridge * centered.var(axis=0).mean() + noise**2) * np.eye(z.shape[1])
    decoder = np.linalg.solve(
        centered.T @ centered + penalty, centered.T @ (pixels - pixels.mean(axis=0))
    )
    found = pixels.mean(axis=0) + (prototypes - mean) @ decoder
    return np.clip(found, 0, 1).reshape(len(prototypes), *x.shape[1:])


def psnr(found: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Peak signal-to-noise ratio in dB, float64 [n], of images in [0, 1]: -10 log10 of the squared error."""
    difference = np.asarray(found, np.float64) - images
    error = np.mean(np.square(difference).reshape(len(difference), -1), axis=1)
    return -10 * np.log10(np.maximum(error, 1e-12))


def identified(found: np.ndarray, gallery: np.ndarray, own: np.ndarray) -> np.ndarray:
    """bool [n]: True if the nearest of the gallery [g, ...] is one of the true images, `own` bool [n, g]."""
    flat, others = (np.asarray(a, np.float64).reshape(len(a), -1) for a in (found, gallery))
    distance = np.sum(np.square(flat[:, None] - others[None]), axis=-1)
    return np.take_along_axis(own, distance.argmin(axis=1)[:, None], axis=1)[:, 0]
