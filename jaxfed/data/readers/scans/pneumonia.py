"""Pneumonia: X-rays of children's chests, healthy or not (bacterial and viral pneumonia are one class).

    ROOT/pneumonia/{train,val,test}/{NORMAL,PNEUMONIA}/*.jpeg    5,216, 16 and 624 images

(D. Kermany et al. "Identifying Medical Diagnoses and Treatable Diseases by Image-Based Deep Learning". Cell,
2018.) The archive's folder chest_xray may be in between. The 16 images of `val` belong to the publishers'
training split, as here. FedCT counts 5,286 training images, 54 more than exist.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from jaxfed.data.dataset import Dataset
from jaxfed.data.readers.image_files import check_image_size, images_in
from jaxfed.data.readers.image_folder import Examples, decoded
from jaxfed.errors import UsageError

ORIGIN = "chest_xray/ of https://www.kaggle.com/datasets/paultimothymooney/chest-xray-pneumonia"
CLASSES = ("NORMAL", "PNEUMONIA")
_SIZE = 224


def read(folder: Path, image_size: int | None = None) -> Dataset:
    """uint8 [5232, s, s, 1] and [624, s, s, 1], grey, s = `image_size` or 224, resized whole (bilinear).

    FedCT's code has three equal channels, and tests on the folder `val` of a split of its own.

    Raises:
        UsageError: a folder is missing or has no images, or one cannot be read.
    """
    check_image_size(image_size)
    inner = folder / "chest_xray"
    place = inner if inner.is_dir() else folder
    train = [*_split(place, "train"), *(_split(place, "val") if (place / "val").is_dir() else [])]
    data = decoded(place, train, _split(place, "test"), CLASSES, image_size or _SIZE, channels=1)
    return dataclasses.replace(data, name="pneumonia")


def _split(place: Path, split: str) -> Examples:
    examples = [(file, name) for name in CLASSES for file in images_in(place / split / name)]
    if not examples:
        raise UsageError(
            f"{place}: no images in {split}/{CLASSES[0]} and {split}/{CLASSES[1]}; needed is {ORIGIN}"
        )
    return examples
