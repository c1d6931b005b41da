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
from jaxfed.models.encoders import Encoder, find_encoder

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
    """Compute each image's features by a pretrained network.

    Grey images are repeated over RGB. For an EfficientNet every image is resized whole (bicubic) to a square
    (`jaxfed.kernels.images.squares`); for a folder as its preprocessor_config.json says.

    Args:
        images: [n, h, w, 1 or 3]; uint8, or float in 0 to 1.
        network: a key of `jaxfed.models.efficientnet.NETWORKS`; or a folder with the weights of a Vision
            Transformer, as Hugging Face lays it out (`jaxfed.models.vision_transformer`).
        weights: path of a safetensors file of an EfficientNet; None is what `find_weights` finds.
        root: data root, where these weights are looked for.
        image_size: pixels a side of whole images; None is the network's own. Fewer pixels cost
            proportionally less, and give other features.
        progress: called with the number of images done, on a CPU after every 64.

    Returns:
        float32 [n, d]; d is 1280 for an EfficientNet.

    Raises:
        UsageError: images, sizes, names or a weights file that cannot be used.

    Cost: 0.39e9 multiply-adds an image at 224 x 224 for Lite0; one compilation. Memory: the images,
    the features, and some tens of MB.
    """
    check_images(images)
    encoder = find_encoder(network, weights, root, image_size)
    key = _cache_key(images, encoder)
    rows = min(16 * _batch_size(), SHARD_SIZE, len(images))
    # Built and compiled only where something is missing.
    extract = functools.cache(lambda: _extractor(encoder, rows))
    shards = [np.zeros((0, encoder.num_features), np.float32)]
    for start in range(0, len(images), SHARD_SIZE):
        some = images[start : start + SHARD_SIZE]

        def make(target: Path, start: int = start, some: np.ndarray = some) -> None:
            parts = list[np.ndarray]()
            for first in range(0, len(some), rows):
                progress(start + first)
                parts.append(extract()(some[first : first + rows]))
            np.save(target / "x.npy", np.concatenate(parts))

        shards.append(cached_arrays(f"features-{encoder.name}", f"{key}-{start:06d}", make)["x"])
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
    rows, encoder = _batch_size(), find_encoder(network, weights, root, image_size)
    template, compute = _program(encoder, rows)
    state = encoder.read(template)

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


def _extractor(encoder: Encoder, num_rows: int) -> Callable[[np.ndarray], np.ndarray]:
    """Function of at most num_rows images -> features; all calls have one shape, so it compiles once."""
    batch_size = min(_batch_size(), num_rows)
    template, compute = _program(encoder, batch_size)
    state = jax.device_put(encoder.read(template))
    num_rows = -(-num_rows // batch_size) * batch_size

    def extract(images: np.ndarray) -> np.ndarray:
        if images.dtype != np.uint8:
            images = np.asarray(images, np.float32) * np.float32(255)
        padding = [(0, num_rows - len(images)), (0, 0), (0, 0), (0, 0)]
        return np.asarray(compute(state, np.pad(images, padding)))[: len(images)]

    return extract


@functools.cache
def _program(
    encoder: Encoder, batch_size: int
) -> tuple[nnx.State, Callable[[nnx.State, np.ndarray | jax.Array], jax.Array]]:
    """Shapes of the state and compiled extraction program, cached across sets of images."""
    model = encoder.model()

    @jax.jit
    def compute(state: nnx.State, images: jax.Array) -> jax.Array:
        # Batches one after another inside one program: they reuse the same buffers, still in cache.
        def batch(batch_images: jax.Array) -> jax.Array:
            return model.features(state, encoder.prepared(batch_images))

        batches = images.reshape(-1, batch_size, *images.shape[1:])
        return jax.lax.map(batch, batches).reshape(len(images), -1)

    return jax.eval_shape(model.init, jax.random.key(0)), compute


def _cache_key(images: np.ndarray, encoder: Encoder) -> str:
    digests = []
    for path in encoder.files:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    settings = {
        "format": _FORMAT,
        "images": hashlib.sha256(np.ascontiguousarray(images).data).hexdigest(),
        "shape": list(images.shape),
        "dtype": images.dtype.str,
        "network": "" if encoder.form else encoder.network,
        "weights": " ".join(digests),
        "image_size": encoder.image_size,
        "shard_size": SHARD_SIZE,
    }
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]
