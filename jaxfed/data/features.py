"""Features of images from a pretrained network, computed once and kept under $JAXFED_CACHE.

Every 2,000 images are a set of the cache (`jaxfed.data.cache`), whose key are images, weights, network and
image size. An interrupted extraction resumes after its last whole set, and a damaged one is computed again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.data.cache import cached_arrays
from jaxfed.errors import UsageError
from jaxfed.models import Model
from jaxfed.models.efficientnet import IMAGE_SIZE, NUM_FEATURES, efficientnet, find_network, prepare
from jaxfed.models.pretrained import find_weights, read_weights

SHARD_SIZE = 2000  # images a file of the cache
_FORMAT = 1  # raised whenever the same settings would give other features


def pretrained_features(
    images: np.ndarray,
    *,
    network: str = "efficientnet_lite0",
    weights: str | os.PathLike[str] | None = None,
    root: str | None = None,
    image_size: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> np.ndarray:
    """Compute each image's features: the mean over pixels of the network's last activation.

    Grey images are repeated over RGB; every image is resized whole (bicubic) to the square that the
    network expects and normalized as it expects, see `jaxfed.models.efficientnet.prepare`.

    Args:
        images: [n, h, w, 1 or 3]; uint8, or float in 0 to 1.
        network: a key of `jaxfed.models.efficientnet.NETWORKS`.
        weights: path of a safetensors file; None is what `find_weights` finds.
        root: data root, where weights are looked for.
        image_size: pixels a side; None is the network's own, 224. Fewer pixels cost
            proportionally less, and give other features.
        progress: called with the number of images done, after every 2,000.

    Returns:
        float32 [n, 1280].

    Raises:
        UsageError: images, sizes, names or a weights file that cannot be used.

    Cost: 0.39e9 multiply-adds an image at 224 x 224 for Lite0; one compilation. Memory: the images,
    the features, and some tens of MB.
    """
    check_images(images)
    find_network(network)
    size, path = image_size or IMAGE_SIZE, find_weights(network, weights, root)
    key = _cache_key(images, network, size, path)
    rows = min(SHARD_SIZE, len(images))
    # Built and compiled only where something is missing.
    extract = functools.cache(lambda: _extractor(network, path, size, rows))
    shards = [np.zeros((0, NUM_FEATURES), np.float32)]
    for start in range(0, len(images), SHARD_SIZE):
        some = images[start : start + SHARD_SIZE]

        def make(target: Path, some: np.ndarray = some) -> None:
            np.save(target / "x.npy", extract()(some))

        name = f"features-{network}-{size}"
        shards.append(cached_arrays(name, f"{key}-{start:06d}", make)["x"])
        progress(start + len(some))
    return np.concatenate(shards)


def extraction(
    *,
    network: str,
    weights: str | os.PathLike[str] | None,
    root: str | None,
    image_size: int | None,
) -> tuple[nnx.State, Callable[[nnx.State, jax.Array], jax.Array], int]:
    """Return the network's state, the function of it and of images, and the number of images at a time.

    The function gives the features of `pretrained_features`, whose arguments these are; it keeps none.
    """
    rows = _batch_size()
    model, compute = _program(network, image_size or IMAGE_SIZE, rows)
    template = jax.eval_shape(model.init, jax.random.key(0))
    state = read_weights(find_weights(network, weights, root), template)

    def features(state: nnx.State, images: jax.Array) -> jax.Array:
        return compute(state, images if images.dtype == jnp.uint8 else images * jnp.float32(255))

    return state, features, rows


def _batch_size() -> int:
    """Images per batch, few on a CPU, to fit its caches; they change features by rounding at most."""
    return 4 if jax.default_backend() == "cpu" else 256


def check_images(images: np.ndarray) -> None:
    """Check that these are images whose features can be computed.

    Raises:
        UsageError: another shape, type or range.
    """
    shape = tuple(np.shape(images))
    if len(shape) != 4 or shape[-1] not in (1, 3) or 0 in shape[1:]:
        raise UsageError(f"images have shape {shape}; expected [n, height, width, 1 or 3]")
    if images.dtype == np.uint8:
        return
    if not np.issubdtype(images.dtype, np.floating):
        raise UsageError(f"images have dtype {images.dtype}; allowed: uint8, or float in 0 to 1")
    low, high = (float(images.min()), float(images.max())) if images.size else (0.0, 0.0)
    if not 0.0 <= low <= high <= 1.0:  # false for NaN, too
        raise UsageError(f"float images range over {low:g} to {high:g}; allowed: 0 to 1")


def _extractor(
    network: str, path: Path, size: int, num_rows: int
) -> Callable[[np.ndarray], np.ndarray]:
    """Function of at most num_rows images -> features; all calls have one shape, so it compiles once."""
    batch_size = min(_batch_size(), num_rows)
    model, compute = _program(network, size, batch_size)
    template = jax.eval_shape(model.init, jax.random.key(0))
    state = jax.device_put(read_weights(path, template))
    num_rows = -(-num_rows // batch_size) * batch_size

    def extract(images: np.ndarray) -> np.ndarray:
        if images.dtype != np.uint8:
            images = np.asarray(images, np.float32) * np.float32(255)
        padding = [(0, num_rows - len(images)), (0, 0), (0, 0), (0, 0)]
        return np.asarray(compute(state, np.pad(images, padding)))[: len(images)]

    return extract


@functools.cache
def _program(
    network: str, size: int, batch_size: int
) -> tuple[Model, Callable[[nnx.State, np.ndarray | jax.Array], jax.Array]]:
    """Model and compiled extraction program, cached across sets of images."""
    model = efficientnet(network)

    @jax.jit
    def compute(state: nnx.State, images: jax.Array) -> jax.Array:
        # Batches one after another inside one program: they reuse the same buffers, still in cache.
        def batch(batch_images: jax.Array) -> jax.Array:
            return model.features(state, prepare(batch_images, find_network(network), size))

        batches = images.reshape(-1, batch_size, *images.shape[1:])
        return jax.lax.map(batch, batches).reshape(len(images), -1)

    return model, compute


def _cache_key(images: np.ndarray, network: str, size: int, weights: Path) -> str:
    with weights.open("rb") as file:
        weights_digest = hashlib.file_digest(file, "sha256").hexdigest()
    settings = {
        "format": _FORMAT,
        "images": hashlib.sha256(np.ascontiguousarray(images).data).hexdigest(),
        "shape": list(images.shape),
        "dtype": images.dtype.str,
        "network": network,
        "weights": weights_digest,
        "image_size": size,
        "shard_size": SHARD_SIZE,
    }
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]
