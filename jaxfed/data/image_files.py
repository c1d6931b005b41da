"""Image files as arrays: which files are images, the shape they are brought to, decoding them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jaxfed.errors import UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
_AT_A_TIME = 1024  # files between two waits for the threads

Fit = Callable[["Image", tuple[int, int]], "Image"]  # an image and (width, height)


class Shape(NamedTuple):
    """What all images of a set are brought to, in pixels; 1 channel is grey, 3 are RGB."""

    width: int
    height: int
    channels: int


def images_in(folder: Path) -> list[Path]:
    """The folder's image files in the order of their names; none where there is no such folder."""
    if not folder.is_dir():
        return []
    return sorted(
        file
        for file in folder.iterdir()
        if file.suffix.lower() in ENDINGS and not file.name.startswith(".")  # "._1.png" of macOS
    )


def check_image_size(image_size: int | None) -> None:
    """Raise a UsageError unless the size is None or a positive number of pixels."""
    if image_size is not None and image_size < 1:
        raise UsageError(f"image_size={image_size}: allowed are integers from 1 on")


def common_shape(files: Sequence[Path], image_size: int | None) -> Shape:
    """The shape for all of them: grey where all are; their own size where it is one.

    Images of several sizes become squares of the median of their shorter sides, 224 at most, unless
    `image_size` says otherwise.

    Raises:
        UsageError: a file that is no image, or has more than 8 bits a channel.
    """
    check_image_size(image_size)
    sizes, modes = [], set()
    for file in files:
        with _opened(file) as image:
            sizes.append(image.size)
            modes.add(image.mode)
            if image.mode.startswith(("I", "F")):
                raise UsageError(
                    f"{file}: mode {image.mode!r}, more than 8 bits a channel, would be cut off at 255; "
                    "convert it to 8 bits"
                )
    channels = 1 if modes <= {"1", "L"} else 3
    if image_size is not None:
        return Shape(image_size, image_size, channels)
    if len(set(sizes)) == 1:
        return Shape(*sizes[0], channels)
    side = min(int(np.median([min(size) for size in sizes])), 224)
    return Shape(side, side, channels)


def whole(image: Image, size: tuple[int, int]) -> Image:
    """The whole image resized to (width, height), bilinear; its proportions are not kept."""
    from PIL.Image import Resampling

    return image if image.size == size else image.resize(size, Resampling.BILINEAR)


def center(image: Image, size: tuple[int, int], *, share: float = 1.0) -> Image:
    """The middle of the image: `share` of its shorter side fills the shorter side of `size`.

    Resampled (bilinear) only where that is not its size already.
    """
    scale = max(side / share / own for side, own in zip(size, image.size, strict=True))
    image = whole(image, (round(image.width * scale), round(image.height * scale)))
    left, top = (image.width - size[0]) // 2, (image.height - size[1]) // 2
    return image.crop((left, top, left + size[0], top + size[1]))


def decode(target: Path, files: Sequence[Path], shape: Shape, fit: Fit = whole) -> None:
    """Write the images to `target` as one `.npy`, uint8 [n, height, width, channels].

    Cost: as many threads as Python thinks good; memory of `_AT_A_TIME` images, whatever n.

    Raises:
        UsageError: a file that is damaged.
        OSError: the disk is full.
    """
    width, height, channels = shape
    if not files:
        np.save(target, np.zeros((0, height, width, channels), np.uint8))
        return
    images = np.lib.format.open_memmap(
        target, "w+", np.uint8, (len(files), height, width, channels)
    )
    with target.open("r+b") as file:  # else a full disk would show as SIGBUS, at some later image
        os.posix_fallocate(file.fileno(), 0, target.stat().st_size)

    def put(row: int) -> None:
        images[row] = _decoded(files[row], shape, fit)

    with ThreadPoolExecutor() as pool:  # Pillow decodes without the interpreter's lock
        for start in range(0, len(files), _AT_A_TIME):
            list(pool.map(put, range(start, min(start + _AT_A_TIME, len(files)))))
    images.flush()


def _opened(file: Path) -> Image:
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(file)
    except (UnidentifiedImageError, OSError) as error:
        raise UsageError(f"{file}: cannot be read as an image") from error


def _decoded(file: Path, shape: Shape, fit: Fit) -> np.ndarray:
    with _opened(file) as image:
        try:
            converted = image.convert("L" if shape.channels == 1 else "RGB")
        except OSError as error:
            raise UsageError(f"{file}: cannot be read as an image ({error})") from error
    fitted = fit(converted, (shape.width, shape.height))
    return np.asarray(fitted).reshape(shape.height, shape.width, shape.channels)
