"""Image files as arrays: finding images, their common shape, and decoding."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from absl import logging

from jaxfed.data.readers.guard import guarded
from jaxfed.errors import UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

ENDINGS = (
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".dib", ".gif", ".ppm", ".pgm", ".pbm"),
    *(".pnm", ".tif", ".tiff", ".webp", ".jp2", ".tga"),
)
_NO_IMAGES = {"thumbs.db", "desktop.ini", "readme.md", "readme.txt", "license", "license.txt"}
_ORIENTATION = 0x0112  # EXIF's tag; from 5 on width and height change places
_AT_A_TIME = 1024  # files between two waits for the threads

Fit = Callable[["Image", tuple[int, int]], "Image"]  # an image and (width, height)


class Encoded(NamedTuple):
    """An image file's content; `name` is its location in words."""

    name: str
    content: bytes

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of(cls, name: str, value: Any) -> Encoded:
        """Return the image in a cell of a table: its bytes, or a mapping that has them as "bytes"."""
        is_struct = isinstance(value, Mapping)
        content = value.get("bytes") if is_struct else value
        if not content:
            elsewhere = value.get("path") if is_struct else None
            there = f", only its path {elsewhere!r}" if elsewhere else ""
            raise UsageError(f"{name}: holds no image{there}; write the images' bytes")
        return cls(name, content)


class Shape(NamedTuple):
    """Common shape of all images of a set, in pixels; 1 channel is grey, 3 are RGB."""

    width: int
    height: int
    channels: int


def is_image(path: Path) -> bool:
    """True for a file or broken link with an image's ending; False for folders and pipes."""
    if path.suffix.lower() not in ENDINGS or path.name.startswith("."):  # "._1.png" of macOS
        return False
    return path.is_file() or (path.is_symlink() and not path.exists())


def images_in(folder: Path) -> list[Path]:
    """The folder's image files in the order of their names; none where there is no such folder."""
    return sorted(filter(is_image, folder.iterdir())) if folder.is_dir() else []


def images_below(folder: Path, hidden: tuple[str, ...]) -> list[Path]:
    """The image files below the folder, sorted, but for hidden prefixes; the number of others is logged."""
    found, others = [], Counter[str]()
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(hidden)]
        for name in names:
            file = Path(place, name)
            if is_image(file):
                found.append(file)
            elif not name.startswith(hidden) and name.lower() not in _NO_IMAGES:
                others[file.suffix.lower() or "no ending"] += 1
    if others:
        kinds = ", ".join(f"{count} of {kind}" for kind, count in sorted(others.items()))
        logging.warning("%s: files that are not read: %s", folder, kinds)
    return sorted(found)


def common_shape(files: Iterable[Path | Encoded], image_size: int | None) -> Shape:
    """The common shape: grey if all images are grey; their own size if it is the same for all.

    Images of several sizes become squares of the median of their shorter sides, 224 at most, unless
    `image_size` says otherwise. More than 8 bits a channel are refused.
    """
    sizes, modes = [], set()
    for file in files:
        with _opened(file) as image:
            sizes.append(_upright_size(image, file))
            modes.add(image.mode)
            _check_mode(image, file)
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

    Resampled (bilinear) only if the size differs.
    """
    scale = max(side / share / own for side, own in zip(size, image.size, strict=True))
    image = whole(image, (round(image.width * scale), round(image.height * scale)))
    left, top = (image.width - size[0]) // 2, (image.height - size[1]) // 2
    return image.crop((left, top, left + size[0], top + size[1]))


def decode(
    target: Path,
    files: Iterable[Path | Encoded],
    shape: Shape,
    fit: Fit = whole,
    *,
    number: int | None = None,
) -> None:
    """Write the images to `target` as one `.npy`, uint8 [n, height, width, channels].

    `number` of the images is needed unless `files` is a sequence. Cost: Python's default number of threads;
    memory of `_AT_A_TIME` images, for any n.
    """
    width, height, channels = shape
    number = len(list(files)) if number is None else number
    if not number:
        np.save(target, np.zeros((0, height, width, channels), np.uint8))
        return
    images = np.lib.format.open_memmap(target, "w+", np.uint8, (number, height, width, channels))
    with target.open("r+b") as file:  # else a full disk would raise SIGBUS later
        os.posix_fallocate(file.fileno(), 0, target.stat().st_size)

    def put(row: int, file: Path | Encoded) -> None:
        images[row] = decoded_image(file, shape, fit)

    with ThreadPoolExecutor() as pool:  # Pillow decodes without the interpreter's lock
        rows = enumerate(files)
        while some := list(islice(rows, _AT_A_TIME)):
            list(pool.map(put, *zip(*some, strict=True)))
    images.flush()


def _opened(file: Path | Encoded) -> Image:
    from PIL import Image

    with guarded(file), warnings.catch_warnings():
        # PIL refuses an image of twice as many pixels by itself.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(BytesIO(file.content) if isinstance(file, Encoded) else file)


def _upright_size(image: Image, file: Path | Encoded) -> tuple[int, int]:
    """Width and height once the image is turned as its EXIF says."""
    with guarded(file):
        is_on_its_side = image.getexif().get(_ORIENTATION, 1) >= 5
    return image.size[::-1] if is_on_its_side else image.size


def decoded_image(file: Path | Encoded, shape: Shape, fit: Fit) -> np.ndarray:
    """Decode one image, uint8 [height, width, channels]; a damaged file is a `UsageError`."""
    with _opened(file) as image:
        return fitted(image, file, shape, fit)


def fitted(image: Image, name: object, shape: Shape, fit: Fit) -> np.ndarray:
    """Turn an image by its EXIF tag, convert and fit it: uint8 [height, width, channels].

    Transparent pixels show white, whatever color is stored beneath them.
    """
    from PIL import ImageOps

    _check_mode(image, name)
    with guarded(name):
        upright = _on_white(ImageOps.exif_transpose(image))
        converted = upright.convert("L" if shape.channels == 1 else "RGB")
        result = fit(converted, (shape.width, shape.height))
        return np.asarray(result).reshape(shape.height, shape.width, shape.channels)


def _on_white(image: Image) -> Image:
    if not image.has_transparency_data:
        return image
    image = image.convert("RGBA")
    ground = image.copy()
    ground.paste((255, 255, 255, 255), (0, 0, *image.size))
    ground.alpha_composite(image)
    return ground


def _check_mode(image: Image, name: object) -> None:
    if image.mode.startswith(("I", "F")):
        raise UsageError(
            f"{name}: mode {image.mode!r} has more than 8 bits a channel; convert it to 8 bits"
        )
