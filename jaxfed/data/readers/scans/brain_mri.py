"""Brain MRI: slices with a tumor and without.

    ROOT/brain_mri/yes/*.jpg, no/*.jpg    155 and 98 images

(N. Chakrabarty, on Kaggle, 2019.) 25 of them are exact copies of another. A copy on both sides of a
split would be a test example seen in training, so one of each is kept.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from absl import logging

from jaxfed.data.dataset import Dataset
from jaxfed.data.readers.image_files import check_image_size
from jaxfed.data.readers.image_folder import classes_in, decoded
from jaxfed.errors import UsageError

ORIGIN = "yes/ and no/ of https://www.kaggle.com/datasets/navoneel/brain-mri-images-for-brain-tumor-detection"
CLASSES = ("no", "yes")
_SIZE = 150


def read(folder: Path, image_size: int | None = None) -> Dataset:
    """uint8 [n, s, s, 1], grey, s = `image_size` or 150, resized whole (bilinear); no test split.

    Duplicates are left out: images with the pixels, after resizing, of an earlier one of the class. Their
    number is logged. FedCT's code keeps them, has three equal channels, and tests on the first 53 files of
    one of the two folders, all of one class.

    Raises:
        UsageError: no images of a class, or one that cannot be read.
    """
    check_image_size(image_size)
    examples = [example for example in classes_in(folder) if example[1] in CLASSES]
    for name in CLASSES:
        if not any(kind == name for _, kind in examples):
            raise UsageError(f"{folder}: no images in {name}/; needed are {ORIGIN}")
    data = decoded(folder, examples, [], CLASSES, image_size or _SIZE, channels=1)
    rows = np.column_stack([data.y.astype(np.uint8), data.x.reshape(len(data.y), -1)])
    first = np.sort(np.unique(rows, axis=0, return_index=True)[1])
    if len(first) < len(rows):
        logging.warning(
            "%s: %d of %d images are copies and are left out",
            folder,
            len(rows) - len(first),
            len(rows),
        )
    return dataclasses.replace(data, name="brain_mri", x=data.x[first], y=data.y[first])
