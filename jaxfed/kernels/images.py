"""Images as pretrained networks expect them, and positions of their patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.errors import UsageError

_METHODS = {0: "nearest", 1: "lanczos3", 2: "bilinear", 3: "bicubic"}  # of Pillow, by number


class Images(NamedTuple):
    """Preparation of images by preprocessor_config.json.

    size: height and width, or the shorter side alone; () leaves images as they are. crop: height and width of
    the middle, () for none. Mean and deviation are of values times `factor`.
    """

    size: tuple[int, ...]
    crop: tuple[int, ...]
    method: str
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    factor: float

    @classmethod
    def of_settings(cls, config: Mapping[str, Any]) -> Images:
        """The preparation by the content of that file; raises as a mapping does where keys are missing."""
        crop = _sides(config.get("crop_size", 224)) if config.get("do_center_crop") else ()
        size = _sides(config["size"]) if config.get("do_resize", True) else ()
        if crop and isinstance(config["size"], int):
            size = size[:1]  # earlier files of CLIP: the shorter side
        normal = (
            config if config.get("do_normalize", True) else {"image_mean": [0], "image_std": [1]}
        )
        mean, deviation = (tuple(map(float, normal[f"image_{of}"])) for of in ("mean", "std"))
        factor = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0
        method = _METHODS[config.get("resample", 2)]
        return cls(size, crop, method, mean, deviation, float(factor))

    def prepared(self, images: jax.Array, image_size: int | None = None) -> jax.Array:
        """Resize, crop and normalize images [n, h, w, c] of values from 0 to 255.

        Resampling is Pillow's, with antialiasing, rounded to whole values. With `image_size` whole images are
        resized to squares of this many pixels a side instead, without a crop.
        """
        x = jnp.asarray(images, jnp.float32)
        n, height, width, channels = x.shape
        size, crop = ((image_size,) * 2, ()) if image_size else (self.size, self.crop)
        if len(size) == 1:
            short = min(height, width)
            size = tuple(size[0] * side // short for side in (height, width))
        if size and size != (height, width):
            for sides in ((height, size[1]), size):  # columns, then rows; whole values after each
                x = jax.image.resize(x, (n, *sides, channels), self.method)
                x = jnp.clip(jnp.round(x), 0, 255)
        if crop:
            top, left = ((have - want) // 2 for have, want in zip(x.shape[1:3], crop, strict=True))
            if min(top, left) < 0:
                raise UsageError(
                    f"preprocessor_config.json: crop {crop} is larger than images {x.shape[1:3]}"
                )
            x = x[:, top : top + crop[0], left : left + crop[1]]
        mean, deviation = (
            np.asarray(of, np.float32).reshape(1, 1, 1, -1) for of in (self.mean, self.deviation)
        )
        return (x * np.float32(self.factor) - mean) / deviation


def _sides(size: int | Mapping[str, int]) -> tuple[int, ...]:
    if isinstance(size, int):
        return size, size
    return (size["shortest_edge"],) if "shortest_edge" in size else (size["height"], size["width"])


def squares(
    images: jax.Array, size: int, mean: Sequence[float], deviation: Sequence[float]
) -> jax.Array:
    """Resize images to squares and normalize them: (resized - mean) / deviation.

    Grey images are repeated over RGB. The whole image is resized (bicubic, antialiased where it shrinks).
    There is no center crop as in ImageNet evaluation, so small images keep their borders. [n, h, w, 1 or 3],
    uint8, or float in units of 0 to 255 -> float32 [n, size, size, 3].
    """
    images = jnp.asarray(images, jnp.float32)
    resized = jax.image.resize(images, (len(images), size, size, images.shape[-1]), "bicubic")
    center, scale = (jnp.asarray(of).reshape(1, 1, 1, 3) for of in (mean, deviation))
    return (resized - center) / scale


def resized_grid(grid: jax.Array, height: int, width: int, *, antialias: bool) -> jax.Array:
    """Interpolate values [h, w, d] of a grid to [height, width, d], bicubic.

    As PyTorch does: a = -0.75 without antialiasing, a = -0.5 with it.
    """
    if antialias:
        return jax.image.resize(grid, (height, width, grid.shape[-1]), "cubic")
    rows, columns = _cubic(len(grid), height), _cubic(grid.shape[1], width)
    return jnp.einsum("hi,wj,ijd->hwd", rows, columns, grid)


def _cubic(old: int, new: int, a: float = -0.75) -> np.ndarray:
    """PyTorch's bicubic weights [new, old]; the border is repeated."""
    center = (np.arange(new) + 0.5) * old / new - 0.5
    weights = np.zeros((new, old))
    for tap in range(-1, 3):
        index = np.floor(center).astype(int) + tap
        t = np.abs(center - index)
        near, far = ((a + 2) * t - (a + 3)) * t * t + 1, ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
        np.add.at(weights, (np.arange(new), index.clip(0, old - 1)), np.where(t <= 1, near, far))
    return weights.astype(np.float32)


def rotary_angles(height: int, width: int, size: int, base: float) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines [1, patches, 1, size] of DINOv3's rotary positions."""
    positions = np.meshgrid(
        *((np.arange(n) + 0.5) / n * 2 - 1 for n in (height, width)), indexing="ij"
    )
    rates = 1 / base ** np.arange(0, 1, 4 / size)
    angles = 2 * np.pi * np.stack(positions, axis=-1).reshape(-1, 2, 1) * rates
    angles = np.tile(angles.reshape(1, height * width, 1, -1), 2)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotated(cosine: np.ndarray, sine: np.ndarray, x: jax.Array) -> jax.Array:
    """Rotate the patches among tokens [n, t, heads, size]; class token and registers come first."""
    before, patches = jnp.split(x, [x.shape[1] - cosine.shape[1]], axis=1)
    first, second = jnp.split(patches, 2, axis=-1)
    turned = jnp.concatenate([-second, first], axis=-1)
    after = patches * cosine.astype(x.dtype) + turned * sine.astype(x.dtype)
    return jnp.concatenate([before, after], axis=1)
