"""PneumoniaMNIST: the X-rays of `pneumonia`, grey, 28 x 28, of MedMNIST v2.

    ROOT/pneumonia_mnist/pneumoniamnist.npz    4,708 images to train on, 524 to validate on, 624 to test on

(J. Yang et al. "MedMNIST v2: A large-scale lightweight benchmark for 2D and 3D biomedical image
classification". Scientific Data, 2023.) A small substitute for FedCT's images of 224 x 224 pixels.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jaxfed.data.dataset import Dataset
from jaxfed.data.readers.npz import plain_arrays
from jaxfed.errors import UsageError

ORIGIN = "pneumoniamnist.npz of https://medmnist.com"
CLASSES = ("NORMAL", "PNEUMONIA")
_FILE = "pneumoniamnist.npz"
_SPLITS = ("train", "val", "test")


def read(folder: Path) -> Dataset:
    """uint8 [5232, 28, 28, 1] and [624, 28, 28, 1].

    MedMNIST took its validation split out of the training images. Here it is merged back, as in `pneumonia`;
    `dataset.validation_fraction` draws a new one if needed.

    Raises:
        UsageError: the file is missing, or lacks one of MedMNIST's arrays.
    """
    file = folder / _FILE
    if not file.is_file():
        raise UsageError(f"{folder}: no {_FILE}; it is {ORIGIN}")
    arrays = plain_arrays(file)
    lacking = {
        f"{split}_{kind}" for split in _SPLITS for kind in ("images", "labels")
    } - arrays.keys()
    if lacking:
        raise UsageError(f"{file}: not MedMNIST's file (it has no {', '.join(sorted(lacking))})")
    splits = {
        split: (arrays[f"{split}_images"][..., None], arrays[f"{split}_labels"].ravel())
        for split in _SPLITS
    }
    for split, (pictures, labels_of) in splits.items():
        size = pictures.shape[1:]
        if (
            size != (28, 28, 1)
            or pictures.dtype != np.uint8
            or not np.isin(labels_of, (0, 1)).all()
        ):
            raise UsageError(
                f"{file}: {split} holds {pictures.dtype} images {list(size[:2])} and labels "
                f"{labels_of.min(initial=0)} to {labels_of.max(initial=0)}; MedMNIST's file of 28 x 28 "
                "bytes, labeled 0 and 1, is needed"
            )
    images, labels = zip(*splits.values(), strict=True)
    x, y = np.concatenate(images[:2]), np.concatenate(labels[:2]).astype(np.int32)
    return Dataset("pneumonia_mnist", x, y, images[2], labels[2].astype(np.int32), 2, CLASSES)
