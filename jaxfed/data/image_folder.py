"""Images in folders named after their classes: ROOT/CLASS/*.png, or ROOT/{train,test}/CLASS/*.png."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from jaxfed.data.cache import cached_arrays, files_key
from jaxfed.data.dataset import Dataset
from jaxfed.errors import UsageError

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
TEST_NAMES = ("test", "val", "valid", "validation")
_FORMAT = 1


def read(folder: Path, image_size: int | None = None) -> Dataset:
    """Read a folder of images; decoded once, in parallel, and cached as arrays.

    Args:
        folder: holds one folder a class, or a folder `train` and perhaps `test` (or `val`) of such.
        image_size: pixels a side; images are resized whole to that square (bilinear). None: images of
            one size stay as they are, images of several become squares of the median of their shorter
            sides, 224 at most.

    Returns:
        uint8 [n, h, w, 3], or [n, h, w, 1] where all images are grey; classes in sorted order.

    Raises:
        UsageError: no images, or one that cannot be read.
    """
    if image_size is not None and image_size < 1:
        raise UsageError(f"image_size={image_size}: allowed are integers from 1 on")
    train = folder / "train" if (folder / "train").is_dir() else folder
    test = next((folder / name for name in TEST_NAMES if (folder / name).is_dir()), None)
    if train == folder:
        test = None  # a class may be named "test"
    names = sorted(
        {path.name for part in (train, test) if part for path in part.iterdir() if _images(path)}
    )
    if not names:
        raise UsageError(
            f"{folder}: no images; needed are folders named after classes, with files "
            f"*{', *'.join(ENDINGS[:3])}"
        )
    splits = {
        "train": [(file, c) for c, name in enumerate(names) for file in _images(train / name)],
        "test": [(file, c) for c, name in enumerate(names) for file in _images(test / name)]
        if test
        else [],
    }
    files = [file for examples in splits.values() for file, _ in examples]

    def make(target: Path) -> None:
        size, channels = _shape(files, image_size)
        for split, examples in splits.items():
            with ThreadPoolExecutor() as pool:  # Pillow decodes without the interpreter's lock
                images = list(
                    pool.map(lambda file: _decode(file, size, channels), (f for f, _ in examples))
                )
            shape = (0, size[1], size[0], channels)
            np.save(
                target / f"x-{split}.npy", np.stack(images) if images else np.zeros(shape, np.uint8)
            )
            np.save(target / f"y-{split}.npy", np.array([c for _, c in examples], np.int32))

    key = files_key(files, _FORMAT, str(folder.resolve()), names, image_size)
    arrays = cached_arrays(f"images-{folder.name}", key, make)
    return Dataset(
        name=str(folder),
        x=arrays["x-train"],
        y=arrays["y-train"],
        x_test=arrays["x-test"],
        y_test=arrays["y-test"],
        num_classes=len(names),
        class_names=tuple(names),
    )


def _images(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(
        file
        for file in folder.iterdir()
        if file.suffix.lower() in ENDINGS and not file.name.startswith(".")  # "._1.png" of macOS
    )


def _shape(files: list[Path], image_size: int | None) -> tuple[tuple[int, int], int]:
    """((width, height), channels) that all images are brought to."""
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
        return (image_size, image_size), channels
    if len(set(sizes)) == 1:
        return sizes[0], channels
    side = min(int(np.median([min(size) for size in sizes])), 224)
    return (side, side), channels


def _opened(file: Path) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(file)
    except (UnidentifiedImageError, OSError) as error:
        raise UsageError(f"{file}: cannot be read as an image") from error


def _decode(file: Path, size: tuple[int, int], channels: int) -> np.ndarray:
    from PIL import Image

    with _opened(file) as image:
        try:
            converted = image.convert("L" if channels == 1 else "RGB")
        except OSError as error:
            raise UsageError(f"{file}: cannot be read as an image ({error})") from error
    if converted.size != size:
        converted = converted.resize(size, Image.Resampling.BILINEAR)
    return np.asarray(converted).reshape(size[1], size[0], channels)
