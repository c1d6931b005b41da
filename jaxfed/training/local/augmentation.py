"""Random changes of images inside jit: pure functions (key, image) -> image, mapped over a batch.

An image is float32 [H, W, c] in [0, 1]; `drop` also takes vectors. Every function of `AUGMENTATIONS` makes
such a function from numbers. A config lists them in the order of their application: ("translate:4", "flip").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, get_args, get_type_hints

import jax
import jax.numpy as jnp

from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.models.model import as_float
from jaxfed.settings import Ge, Le, allowed_text, choose_one_of, is_allowed
from jaxfed.training.local.losses import Augment

Change = Callable[[jax.Array, jax.Array], jax.Array]  # (key, image) -> image

_LARGEST = 1024  # pixels, degrees, changes in a row
_Pixels = Annotated[int, Ge(0), Le(_LARGEST)]
_Degrees = Annotated[float, Ge(0), Le(_LARGEST)]
_Some = Annotated[int, Ge(1), Le(_LARGEST)]
_Probability = Annotated[float, Ge(0), Le(1)]
_LEVEL_DEPENDENT = ("cutout", "randaugment")
_GRAY = (0.299, 0.587, 0.114)  # ITU-R 601: PIL's weights for the brightness of RGB


def compose(names: Sequence[str]) -> Augment | None:
    """Return the augmentation of batches by each change in turn, drawn per image; None for no names.

    `names` are `NAME` or `NAME:NUMBER[:NUMBER]`, NAME in `AUGMENTATIONS`, numbers its arguments.
    """
    changes = [_find(name) for name in names]
    if not changes:
        return None

    def change_all(key: jax.Array, image: jax.Array) -> jax.Array:
        for number, change in enumerate(changes):
            image = change(jax.random.fold_in(key, number), image)
        return image

    def augment(key: jax.Array, x: jax.Array) -> jax.Array:
        if x.ndim != 4 and any(name.partition(":")[0] != "drop" for name in names):
            raise UsageError(
                f"changes images, [height, width, channels]; here examples have shape {list(x.shape[1:])}",
                key="augmentation",
                value=tuple(names),
                allowed="for other examples use ('drop:0.2',), or () for methods of one view",
            )
        return jax.vmap(change_all)(jax.random.split(key, len(x)), as_float(x))

    dependent = next((n for n in names if n.partition(":")[0] in _LEVEL_DEPENDENT), None)
    augment.level_dependent = dependent  # type: ignore[attr-defined]
    return augment


def check_levels(federation: Federation, *augments: Augment | None) -> None:
    """Check that images are bytes or from 0 to 1, which `cutout` and changes of `randaugment` assume."""
    text = next(filter(None, (getattr(each, "level_dependent", "") for each in augments)), "")
    if text and not 0 <= federation.levels[0] <= federation.levels[1] <= 1:
        least, most = federation.levels
        wrong = f"needs pixels from 0 to 1; these are from {least:g} to {most:g}"
        allowed = "give images as uint8, or as floats from 0 to 1"
        raise UsageError(wrong, key="augmentation", value=text, allowed=allowed)


def _find(text: str) -> Change:
    name, *numbers = text.split(":")
    if name not in AUGMENTATIONS:
        allowed = f"{choose_one_of(AUGMENTATIONS)}, or NAME:NUMBER of one"
        raise UsageError(key="augmentation", value=text, allowed=allowed)
    make = AUGMENTATIONS[name]
    known = get_type_hints(make, include_extras=True)
    del known["return"]
    try:
        hints = [*known.values()][: len(numbers)]
        values = [get_args(hint)[0](number) for hint, number in zip(hints, numbers, strict=True)]
        if not all(map(is_allowed, values, hints)):
            raise ValueError(values)
    except ValueError:
        takes = [f"{key} ({allowed_text(hint)})" for key, hint in known.items()]
        wrong = f"{name} takes {', '.join(takes) or 'no numbers'}"
        raise UsageError(wrong, key="augmentation", value=text) from None
    return make(*values)


def translate(pixels: _Pixels = 4) -> Change:
    """Shift by up to `pixels` each way; the gap is filled by reflecting the image at its border.

    The edge row itself is not repeated (Tarvainen, Valpola, NeurIPS 2017).
    """
    return _shifted(pixels, mode="reflect")


def crop(pixels: _Pixels = 4) -> Change:
    """Shift by up to `pixels` each way; the gap is filled with black.

    torchvision's `RandomCrop(size, padding=pixels)` of an image of that size.
    """
    return _shifted(pixels, mode="constant")


def _shifted(pixels: int, *, mode: str) -> Change:
    def change(key: jax.Array, image: jax.Array) -> jax.Array:
        height, width, channels = image.shape
        padded = jnp.pad(image, ((pixels, pixels), (pixels, pixels), (0, 0)), mode=mode)
        top, left = jax.random.randint(key, (2,), 0, 2 * pixels + 1)
        return jax.lax.dynamic_slice(padded, (top, left, 0), (height, width, channels))

    return change


def flip() -> Change:
    """Exchange left and right with probability 1/2."""

    def change(key: jax.Array, image: jax.Array) -> jax.Array:
        return jnp.where(jax.random.bernoulli(key), image[:, ::-1], image)

    return change


def flip_axes(probability: _Probability = 0.5) -> Change:
    """With this probability exchange left and right, top and bottom, or both, each equally likely.

    albumentations' `Flip`, whose d is 1, 0 or -1.
    """

    def change(key: jax.Array, image: jax.Array) -> jax.Array:
        happens_key, axes_key = jax.random.split(key)
        axes = jax.random.randint(axes_key, (), 0, 3)
        flipped = jnp.where(axes != 0, image[:, ::-1], image)
        flipped = jnp.where(axes != 1, flipped[::-1], flipped)
        return jnp.where(jax.random.bernoulli(happens_key, probability), flipped, image)

    return change


def rotate(degrees: _Degrees = 10, probability: _Probability = 1.0) -> Change:
    """With this probability turn about the center by an angle uniform in +-degrees.

    Bilinear; pixels from outside are 0.
    """

    def change(key: jax.Array, image: jax.Array) -> jax.Array:
        happens_key, angle_key = jax.random.split(key)
        angle = jax.random.uniform(angle_key, (), minval=-degrees, maxval=degrees)
        happens = jax.random.bernoulli(happens_key, probability)
        return jnp.where(happens, warp(image, rotation(angle)), image)

    return change


def drop(probability: _Probability = 0.2) -> Change:
    """Set each entry of a vector, or each value of an image, to 0 with this probability.

    Others are not scaled. For features of a network, and for standardized columns, whose mean is 0.
    """
    return lambda key, x: jnp.where(jax.random.bernoulli(key, 1 - probability, x.shape), x, 0.0)


def cutout(pixels: _Pixels = 16) -> Change:
    """Gray out a square of that side around a uniform center, cut at the border (FixMatch)."""

    def change(key: jax.Array, image: jax.Array) -> jax.Array:
        height, width, _ = image.shape
        row_key, column_key = jax.random.split(key)
        top = jax.random.randint(row_key, (), 0, height) - pixels // 2
        left = jax.random.randint(column_key, (), 0, width) - pixels // 2
        row, column = jnp.arange(height)[:, None, None], jnp.arange(width)[None, :, None]
        inside = (row >= top) & (row < top + pixels) & (column >= left) & (column < left + pixels)
        return jnp.where(inside, 0.5, image)

    return change


def holes(pixels: _Some = 16, most: _Some = 8, probability: _Probability = 0.5) -> Change:
    """With this probability blacken 1 to `most` squares of that side, each within the image.

    All numbers of squares are equally likely. albumentations' `CoarseDropout(n, pixels, pixels)` has exactly
    n squares; FLamby draws n once for each data set it opens, this function for each image.
    """

    def change(key: jax.Array, image: jax.Array) -> jax.Array:
        height, width, _ = image.shape
        happens_key, count_key, row_key, column_key = jax.random.split(key, 4)
        count = jax.random.randint(count_key, (), 1, most + 1)
        count = jnp.where(jax.random.bernoulli(happens_key, probability), count, 0)
        top = jax.random.randint(row_key, (most, 1), 0, max(height - pixels, 0) + 1)
        left = jax.random.randint(column_key, (most, 1), 0, max(width - pixels, 0) + 1)
        row, column = jnp.arange(height)[None, :], jnp.arange(width)[None, :]
        is_hole = (jnp.arange(most) < count)[:, None]
        in_rows = is_hole & (row >= top) & (row < top + pixels)  # [most, H]
        in_columns = (column >= left) & (column < left + pixels)  # [most, W]
        inside = jnp.any(in_rows[:, :, None] & in_columns[:, None, :], axis=0)
        return jnp.where(inside[..., None], 0.0, image)

    return change


def randaugment(num_changes: _Pixels = 2, magnitude: Annotated[float, Ge(0), Le(30)] = 9) -> Change:
    """RandAugment (Cubuk, Zoph, Shlens, Le, NeurIPS 2020): changes drawn from 14, one magnitude.

    Args:
        num_changes: N, changes in a row, each uniform out of the 14 and with a random sign where it has
            one.
        magnitude: M in 0..30, with torchvision's ranges: rotation to 30 degrees, shear to 0.3, shift to
            150/331 of the side, color, contrast, brightness and sharpness by factors 1 +- 0.9,
            posterize to 4 bits, solarize at 1 - M / 30.

    Under `vmap` all changes are computed for every image.
    """
    strength = magnitude / 30

    def one(key: jax.Array, image: jax.Array) -> jax.Array:
        choice_key, sign_key = jax.random.split(key)
        choice = jax.random.randint(choice_key, (), 0, len(_COLORS) + 5)
        sign = jnp.where(jax.random.bernoulli(sign_key), 1.0, -1.0)
        image = jax.lax.switch(
            jnp.minimum(choice, len(_COLORS)),
            [*(lambda x, f=f: f(x, sign * strength) for f in _COLORS), lambda x: x],
            image,
        )
        # The five geometric changes are one warp; a change of color warps by the identity.
        level = sign * strength
        height, width, _ = image.shape
        shift_x, shift_y = level * (150 / 331) * width, level * (150 / 331) * height
        matrices = jnp.stack(
            [
                jnp.eye(2, 3),
                rotation(level * 30),
                _matrix(1, 0.3 * level, 0, 0, 1, 0),
                _matrix(1, 0, 0, 0.3 * level, 1, 0),
                _matrix(1, 0, shift_x, 0, 1, 0),
                _matrix(1, 0, 0, 0, 1, shift_y),
            ]
        )
        return warp(image, matrices[jnp.maximum(choice - len(_COLORS) + 1, 0)])

    def change(key: jax.Array, image: jax.Array) -> jax.Array:
        for number in range(int(num_changes)):
            image = one(jax.random.fold_in(key, number), image)
        return image

    return change


AUGMENTATIONS: dict[str, Callable[..., Change]] = {
    "translate": translate,
    "crop": crop,
    "flip": flip,
    "flip_axes": flip_axes,
    "rotate": rotate,
    "drop": drop,
    "cutout": cutout,
    "holes": holes,
    "randaugment": randaugment,
}


def warp(image: jax.Array, matrix: jax.Array) -> jax.Array:
    """Resample: the pixel at offset (x, y) from the center comes from matrix (x, y, 1); bilinear.

    float32 [H, W, c] and [2, 3]; pixels from outside are 0, interpolated at the border.
    """
    height, width, _ = image.shape
    center_y, center_x = (height - 1) / 2, (width - 1) / 2
    y = jnp.arange(height, dtype=jnp.float32)[:, None] - center_y
    x = jnp.arange(width, dtype=jnp.float32)[None, :] - center_x
    source_x = matrix[0, 0] * x + matrix[0, 1] * y + matrix[0, 2] + center_x
    source_y = matrix[1, 0] * x + matrix[1, 1] * y + matrix[1, 2] + center_y

    def resample(channel: jax.Array) -> jax.Array:
        return jax.scipy.ndimage.map_coordinates(channel, [source_y, source_x], order=1)

    return jax.vmap(resample, in_axes=-1, out_axes=-1)(image)


def rotation(degrees: jax.Array) -> jax.Array:
    """The matrix [2, 3] that turns an image counterclockwise."""
    angle = degrees * (math.pi / 180)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return _matrix(cos, -sin, 0, sin, cos, 0)


def _matrix(*entries: jax.Array | float) -> jax.Array:
    return jnp.stack([jnp.float32(entry) for entry in entries]).reshape(2, 3)


# Changes of color, as in PIL; `level` is in [-1, 1], and some use only its absolute value.


def autocontrast(image: jax.Array, level: jax.Array) -> jax.Array:
    """Stretch each channel to [0, 1]; a constant channel stays as it is."""
    del level
    low = image.min(axis=(0, 1), keepdims=True)
    high = image.max(axis=(0, 1), keepdims=True)
    spread = jnp.where(high > low, high - low, 1)
    return jnp.where(high > low, (image - low) / spread, image)


def equalize(image: jax.Array, level: jax.Array) -> jax.Array:
    """Map each channel's 256 levels to make their histogram as flat as possible (PIL's rule)."""
    del level

    def one(channel: jax.Array) -> jax.Array:
        value = jnp.round(channel * 255).astype(jnp.int32)
        histogram = jnp.bincount(value.reshape(-1), length=256)
        last = histogram[255 - jnp.argmax(histogram[::-1] > 0)]
        step = (value.size - last) // 255
        before = jnp.cumsum(histogram) - histogram
        table = jnp.clip((before + step // 2) // jnp.maximum(step, 1), 0, 255)
        return jnp.where(step > 0, table[value].astype(jnp.float32) / 255, channel)

    return jax.vmap(one, in_axes=-1, out_axes=-1)(image)


def solarize(image: jax.Array, level: jax.Array) -> jax.Array:
    """Invert pixels brighter than 1 - |level|."""
    return jnp.where(image >= 1 - jnp.abs(level), 1 - image, image)


def posterize(image: jax.Array, level: jax.Array) -> jax.Array:
    """Keep the 8 - round(4 |level|) leading bits of each byte."""
    step = 2.0 ** jnp.round(4 * jnp.abs(level))
    return jnp.floor(jnp.round(image * 255) / step) * step / 255


def color(image: jax.Array, level: jax.Array) -> jax.Array:
    """Blend towards or away from gray."""
    return _blend(_gray(image), image, level)


def contrast(image: jax.Array, level: jax.Array) -> jax.Array:
    """Blend towards or away from the mean brightness."""
    return _blend(jnp.mean(_gray(image), keepdims=True), image, level)


def brightness(image: jax.Array, level: jax.Array) -> jax.Array:
    """Blend towards or away from black."""
    return _blend(jnp.zeros((1, 1, 1)), image, level)


def sharpness(image: jax.Array, level: jax.Array) -> jax.Array:
    """Blend towards or away from the image smoothed by (1 1 1, 1 5 1, 1 1 1) / 13, except its border."""
    height, width, _ = image.shape
    total = 4 * image[1:-1, 1:-1]
    for i in range(3):
        for j in range(3):
            total += image[i : height - 2 + i, j : width - 2 + j]
    return _blend(image.at[1:-1, 1:-1].set(total / 13), image, level)


def _gray(image: jax.Array) -> jax.Array:
    if image.shape[-1] != 3:
        return image
    return jnp.sum(image * jnp.asarray(_GRAY).reshape(1, 1, 3), axis=-1, keepdims=True)


def _blend(origin: jax.Array, image: jax.Array, level: jax.Array) -> jax.Array:
    """origin + (1 + 0.9 level) (image - origin), within [0, 1]."""
    image, origin = jnp.broadcast_arrays(image, jnp.broadcast_to(origin, image.shape))
    return jnp.clip(origin + (1 + 0.9 * level) * (image - origin), 0, 1)


_COLORS: tuple[Callable[[jax.Array, jax.Array], jax.Array], ...] = (
    lambda image, level: image,
    autocontrast,
    equalize,
    solarize,
    posterize,
    color,
    contrast,
    brightness,
    sharpness,
)
