"""Features of images from a pretrained network, computed once and kept under $JAXFED_CACHE.

The cache has a directory for each (images, weights, network, image size), with one `.npy` file for
every 2,000 images. A file's name ends in the digest of its contents, and it appears by an atomic
rename: an interrupted extraction resumes after its last whole file, and a damaged one is detected.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx

from jaxfed.data.cache import directory as cache_home
from jaxfed.data.cache import not_writable
from jaxfed.errors import UsageError
from jaxfed.host import safe_files, storage
from jaxfed.models import Model
from jaxfed.models.efficientnet import IMAGE_SIZE, NUM_FEATURES, efficientnet, find_network, prepare
from jaxfed.models.pretrained import find_weights, read_weights

SHARD_SIZE = 2000  # images a file of the cache
_IMAGES_PER_CALL = 128  # at least, where there are as many: progress is reported this often
_FORMAT = 1  # raised whenever the same settings would give other features


def pretrained_features(
    images: np.ndarray,
    *,
    network: str = "efficientnet_lite0",
    weights: str | os.PathLike[str] | None = None,
    root: str | None = None,
    image_size: int | None = None,
    batch_size: int | None = None,
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
        batch_size: images per batch; None is 4 on a CPU, to fit its caches, else 256. It changes features
            by rounding at most, so the cache key ignores it.
        progress: called with the number of images done.

    Returns:
        float32 [n, 1280].

    Raises:
        UsageError: images, sizes, names or a weights file that cannot be used.

    Cost: 0.39e9 multiply-adds an image at 224 x 224 for Lite0; one compilation. Memory: the images,
    the features, and some tens of MB.
    """
    check_images(images)
    find_network(network)
    size = IMAGE_SIZE if image_size is None else _positive("image_size", image_size)
    if batch_size is None:
        batch_size = _usual_batch()
    batch_size = min(_positive("batch_size", batch_size), max(1, len(images)))
    path = find_weights(network, weights, root)

    shards = _Shards(_cache_directory(images, network, size, path))
    step = _images_per_call(batch_size, len(images))
    extract: Callable[[np.ndarray], np.ndarray] | None = None
    features = np.empty((len(images), NUM_FEATURES), np.float32)
    for index, start in enumerate(range(0, len(images), SHARD_SIZE)):
        rows = slice(start, min(start + SHARD_SIZE, len(images)))
        shape = (rows.stop - rows.start, NUM_FEATURES)
        kept = shards.read(index, shape)
        if kept is None:
            if extract is None:  # built and compiled only where something is missing
                extract = _extractor(network, path, size, batch_size, step)
            for first in range(rows.start, rows.stop, step):
                part = slice(first, min(first + step, rows.stop))
                features[part] = extract(images[part])
                progress(part.stop)
            shards.write(index, features[rows])
        else:
            features[rows] = kept
            progress(rows.stop)
    return features


def extraction(
    *,
    network: str,
    weights: str | os.PathLike[str] | None,
    root: str | None,
    image_size: int | None,
    batch_size: int | None = None,
) -> tuple[nnx.State, Callable[[nnx.State, jax.Array], jax.Array], int]:
    """Return the network's state, the function of it and of images, and the number of images at a time.

    The function gives the features of `pretrained_features`, whose arguments these are; it keeps none.
    """
    size, rows = image_size or IMAGE_SIZE, batch_size or _usual_batch()
    model, compute = _program(network, size, rows)
    template = jax.eval_shape(model.init, jax.random.key(0))
    state = read_weights(find_weights(network, weights, root), template)

    def features(state: nnx.State, images: jax.Array) -> jax.Array:
        return compute(state, images if images.dtype == jnp.uint8 else images * jnp.float32(255))

    return state, features, rows


def _usual_batch() -> int:
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


def _positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{name} is {value!r}; allowed: a positive integer, or None")
    return value


def _images_per_call(batch_size: int, num_images: int) -> int:
    batches = -(-min(max(batch_size, _IMAGES_PER_CALL), num_images) // batch_size)
    return batches * batch_size


def _extractor(
    network: str, path: Path, size: int, batch_size: int, num_rows: int
) -> Callable[[np.ndarray], np.ndarray]:
    """Function of at most num_rows images -> features; all calls have one shape, so it compiles once."""
    model, compute = _program(network, size, batch_size)
    template = jax.eval_shape(model.init, jax.random.key(0))
    state = jax.device_put(read_weights(path, template))

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


def _cache_directory(images: np.ndarray, network: str, size: int, weights: Path) -> Path:
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
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]
    return cache_home() / "features" / f"{network}-{size}-{key}"


class _Shards:
    """Files INDEX-DIGEST.npy of one directory."""

    def __init__(self, directory: Path):
        self._directory = directory
        self._is_full = False

    def read(self, index: int, shape: tuple[int, int]) -> np.ndarray | None:
        """The shard's features; None if it is missing or damaged; damage is logged."""
        for path in sorted(self._directory.glob(f"{index:05d}-*.npy")):
            with suppress(safe_files.Damaged), safe_files.guarded(path):
                contents = safe_files.content_of(path, most=None)
                if path.stem.endswith(_digest(contents)):
                    array = safe_files.array(contents)
                    if array.shape == shape and array.dtype == np.float32:
                        return array
            logging.warning("%s is damaged; its features are computed again", path)
            path.unlink(missing_ok=True)
        return None

    def write(self, index: int, features: np.ndarray) -> None:
        """Write the shard atomically; a full disk is logged once and ignored."""
        if self._is_full:
            return
        buffer = io.BytesIO()
        np.save(buffer, features)
        contents = buffer.getvalue()
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            name = f"{index:05d}-{_digest(contents)}.npy"
            with storage.whole_file(self._directory / name, "wb") as file:
                file.write(contents)
        except OSError as error:
            if not storage.is_full(error):
                raise not_writable(self._directory, error) from error
            self._is_full = True
            logging.warning(
                "%s: the disk is full; features are computed and not kept", self._directory
            )


def _digest(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()[:32]
