"""Sets of image files by class: folders named after classes.

    ROOT/CLASS/**/*.png                             one split
    ROOT/{train,test}/CLASS/**/*.png                two; `val` (or `valid`, ...) is the test split without
                                                    test; also as {Training,Testing}, {TRAIN,TEST}

Few-shot splits have no class in common, so none can test a classifier of the others. They are read as one set
without a test split. (Mini-ImageNet: 100 classes of 600. XCLP's authors test on a fixed folder with 100 of
each. As the paper does not list these images, `jaxfed.config.data.dealing` draws as many, stratified, once
for all repeats.)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from jaxfed.data.cache import cached_arrays, files_key
from jaxfed.data.dataset import Dataset
from jaxfed.data.readers.encoders import ImageEncoder
from jaxfed.data.readers.image_files import (
    ENDINGS,
    Fit,
    Shape,
    center,
    common_shape,
    decode,
    images_below,
    is_image,
    whole,
)
from jaxfed.errors import UsageError

TRAIN_NAMES = ("train", "training")
TEST_NAMES = ("test", "testing", "val", "valid", "validation")
_FORMAT = 4
_HIDDEN = (".", "__")  # prefixes of folders that hold no class: .ipynb_checkpoints, __MACOSX

Examples = list[tuple[Path, str]]  # a file and its class


def read(folder: Path, image_size: int | None = None) -> Dataset:
    """Read a folder of images; decoded once, in parallel, and cached as arrays.

    A class's images lie in its folder or in folders in it; hidden folders are not classes. The number
    of skipped files is logged. Images are rotated by their EXIF tag, and resized whole (bilinear) to a square
    of `image_size`; without it `common_shape` decides. uint8 [n, h, w, 3], or [n, h, w, 1] where all images
    are grey; classes in sorted order.
    """
    train, test = _splits(folder)
    names = sorted({name for _, name in chain(train, test)})
    if not names:
        raise UsageError(
            f"{folder}: no images; use folders named after classes, with files *{', *'.join(ENDINGS[:3])}; "
            f"tables are read by a pattern, '{folder}/*.csv'"
        )
    return decoded(folder, train, test, names, image_size)


def decoded(
    folder: Path,
    train: Examples,
    test: Examples,
    class_names: Sequence[str],
    image_size: int | None,
    *,
    channels: int | None = None,
    share: float = 0.0,
    **more: Any,
) -> Dataset:
    """The images of both splits, decoded once, in parallel, and cached as arrays.

    `channels` makes all of them grey (1) or RGB (3). A center crop keeps `share` of the shorter side; with 0
    images are resized whole. `more` are further fields of the data set.
    """
    number = {name: c for c, name in enumerate(class_names)}
    files = [file for file, _ in chain(train, test)]
    fit: Fit = partial(center, share=share) if share else whole

    def make(target: Path) -> None:
        if image_size is None or channels is None:
            shape = common_shape(files, image_size)
        else:
            shape = Shape(image_size, image_size, channels)
        for split, examples in (("train", train), ("test", test)):
            rows = [file for file, _ in examples]
            decode(target / f"x-{split}.npy", rows, shape, fit)
            labels = np.array([number[name] for _, name in examples], np.int32)
            np.save(target / f"y-{split}.npy", labels)

    settings = str(folder.resolve()), train, test, image_size, channels, share
    key = files_key(files, _FORMAT, *settings)
    arrays = cached_arrays(f"images-{folder.name}", key, make)
    _, height, width, depth = arrays["x-train"].shape
    return Dataset(
        name=str(folder),
        x=arrays["x-train"],
        y=arrays["y-train"],
        x_test=arrays["x-test"],
        y_test=arrays["y-test"],
        num_classes=len(class_names),
        class_names=tuple(class_names),
        encoder=ImageEncoder(width, height, depth, share),
        **more,
    )


def _splits(folder: Path) -> tuple[Examples, Examples]:
    """The examples for training, and those for testing if there are any."""
    places = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.is_dir()}
    train = next((name for name in TRAIN_NAMES if name in places), "")
    is_split = train and (places[train].name == "train" or not places.keys().isdisjoint(TEST_NAMES))
    if (
        not is_split
    ):  # a class may be named "test", and Train or Training without a test folder, too
        return classes_in(folder), []
    own = classes_in(places[train])
    found = {name: classes_in(places[name]) for name in TEST_NAMES if name in places}
    others = [*chain(*found.values())]
    if found and {name for _, name in own}.isdisjoint(name for _, name in others):
        return sorted(own + others, key=lambda example: example[::-1]), []
    test, *unread = [*found, ""]  # without test names, `val` is the test split
    if unread := [places[name].name for name in unread if name]:
        logging.warning("%s: not read: %s", folder, ", ".join(unread))
    return own, found.get(test, [])


def classes_in(folder: Path) -> Examples:
    """The images below a folder, with their classes: the names of its subfolders."""
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith(_HIDDEN))
    loose = sum(is_image(path) for path in inside)
    if loose:
        logging.warning("%s: %d images in no class's folder are not read", folder, loose)
    found = {path: images_below(path, _HIDDEN) for path in inside if path.is_dir()}
    return [(file, path.name) for path, files in found.items() for file in files]
