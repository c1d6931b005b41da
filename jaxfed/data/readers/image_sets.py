"""Sets of images by name, from their publishers' files; `dataset.name` is the folder's name.

ROOT/brain_mri/yes/*.jpg, no/*.jpg                                   155 and 98 slices
ROOT/pneumonia/[chest_xray/]{train,val,test}/{NORMAL,PNEUMONIA}/*    5,216, 16 and 624 X-rays
ROOT/pneumonia_mnist/pneumoniamnist.npz                              4,708, 524 and 624 of them, 28 x 28
ROOT/fed_isic2019/ISIC_2019_Training_Input_preprocessed/*.jpg        of FLamby's scripts, shorter side 224
ROOT/fed_isic2019/train_test_split                                   a table that FLamby's repository carries
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from absl import logging

from jaxfed.data.dataset import Dataset, natural_clients
from jaxfed.data.readers import npz
from jaxfed.data.readers.guard import guarded
from jaxfed.data.readers.image_files import images_in
from jaxfed.data.readers.image_folder import Examples, decoded, existing, rows_of
from jaxfed.errors import UsageError

BRAIN_MRI = (
    "yes/ and no/ of "
    "https://www.kaggle.com/datasets/navoneel/brain-mri-images-for-brain-tumor-detection"
)
PNEUMONIA = "chest_xray/ of https://www.kaggle.com/datasets/paultimothymooney/chest-xray-pneumonia"
PNEUMONIA_MNIST = "pneumoniamnist.npz of https://medmnist.com"
_FLAMBY = "ISIC_2019_Training_Input_preprocessed"
_FLAMBY_TABLES = ("train_test_split", "train_test_split.csv")
FED_ISIC2019 = f"FLamby's {_FLAMBY}/ and its repository's train_test_split"

CHESTS = ("NORMAL", "PNEUMONIA")
_MEDMNIST = (("train", "val"), ("test",))  # its parts of each split
LESIONS = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
_CROP, _SHORTER_SIDE = 200, 224  # pixels of FLamby's test images, and of the prepared ones


def brain_mri(folder: Path, image_size: int | None = None) -> Dataset:
    """Brain MRI: uint8 [n, s, s, 1], slices with a tumor and without; s = `image_size` or 150, no test split.

    (N. Chakrabarty, on Kaggle, 2019.) Images are grey and resized whole (bilinear). Duplicates are left out:
    images with the pixels, after resizing, of an earlier one of the class, 25 in all. A copy on both sides of
    a split would be a test example seen in training. FedCT's code keeps them, has three equal channels, and
    tests on the first 53 files of one of the two folders, all of one class.
    """
    examples = [example for name in ("no", "yes") for example in _of_class(folder, name, BRAIN_MRI)]
    data = decoded(folder, examples, [], ("no", "yes"), image_size or 150, channels=1)
    rows = np.column_stack([data.y.astype(np.uint8), data.x.reshape(len(data.y), -1)])
    first = np.sort(np.unique(rows, axis=0, return_index=True)[1])
    if copies := len(rows) - len(first):
        text = "%s: %d of %d images are copies and are left out"
        logging.warning(text, folder, copies, len(rows))
    return replace(data, name="brain_mri", x=data.x[first], y=data.y[first])


def pneumonia(folder: Path, image_size: int | None = None) -> Dataset:
    """Pneumonia: X-rays of children's chests, healthy or not (bacterial and viral pneumonia are one class).

    uint8 [5232, s, s, 1] and [624, s, s, 1], grey, s = `image_size` or 224, resized whole (bilinear). (D.
    Kermany et al. "Identifying Medical Diagnoses and Treatable Diseases by Image-Based Deep Learning". Cell,
    2018.) The 16 images of `val` belong to the publishers' training split, as here. FedCT counts 5,286
    training images, 54 more than exist. Its code has three equal channels, and tests on the folder `val` of a
    split of its own.
    """
    inner = folder / "chest_xray"
    place = inner if inner.is_dir() else folder
    train, val, test = (
        [
            example
            for name in CHESTS
            for example in _of_class(place / split, name, "" if split == "val" else PNEUMONIA)
        ]
        for split in ("train", "val", "test")
    )
    data = decoded(place, train + val, test, CHESTS, image_size or 224, channels=1)
    return replace(data, name="pneumonia")


def _of_class(folder: Path, name: str, origin: str) -> Examples:
    examples = [(file, name) for file in images_in(folder / name)]
    if origin and not examples:
        raise UsageError(f"{folder}: no images in {name}/; needed are {origin}")
    return examples


def pneumonia_mnist(folder: Path) -> Dataset:
    """PneumoniaMNIST: the X-rays of `pneumonia`, grey, 28 x 28, of MedMNIST v2.

    uint8 [5232, 28, 28, 1] and [624, 28, 28, 1]. (J. Yang et al. "MedMNIST v2: A large-scale lightweight
    benchmark for 2D and 3D biomedical image classification". Scientific Data, 2023.) MedMNIST took its
    validation split out of the training images. Here it is merged back, as in `pneumonia`;
    `dataset.validation_fraction` draws a new one if needed.
    """
    file = folder / "pneumoniamnist.npz"
    if not file.is_file():
        raise UsageError(f"{folder}: no {file.name}; it is {PNEUMONIA_MNIST}")
    with guarded(file):
        arrays = npz.plain_arrays(file)
        splits = [
            [np.concatenate([arrays[f"{part}_{kind}"] for part in parts]) for parts in _MEDMNIST]
            for kind in ("images", "labels")
        ]
        (x, x_test), (y, y_test) = splits
        x, x_test, y, y_test = x[..., None], x_test[..., None], y[:, 0], y_test[:, 0]
    return Dataset("pneumonia_mnist", x, y, x_test, y_test, 2, CHESTS)


def is_fed_isic2019(folder: Path) -> bool:
    """True if the folder has FLamby's images or table."""
    return any((folder / name).exists() for name in (_FLAMBY, *_FLAMBY_TABLES))


def fed_isic2019(folder: Path, image_size: int | None = None) -> Dataset:
    """Fed-ISIC2019 as FLamby prepares it: skin lesions from six centers, eight diagnoses.

    uint8 [18597, s, s, 3] and [4650, s, s, 3]; `client_id` is the center. The table has a line for each of
    23,247 images: its name, diagnosis one-hot and as `target`, `center` 0..5, `fold` train or test. (J. Ogier
    du Terrail et al. "FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning in Realistic
    Healthcare Settings". NeurIPS 2022.)

    Args:
        folder: the layout above.
        image_size: pixels a side of the center crop, s. The image is first scaled to a shorter side of
            224 s / 200. None is 200: FLamby's center crop, without resampling.
    """
    table = next((folder / name for name in _FLAMBY_TABLES if (folder / name).is_file()), None)
    if table is None:
        raise UsageError(
            f"{folder}: no {_FLAMBY_TABLES[0]}; copy it there from FLamby's repository, "
            f"flamby/datasets/fed_isic2019/dataset_creation_scripts/{_FLAMBY_TABLES[0]}"
        )
    splits: dict[str, Examples] = {"train": [], "test": []}
    centers: dict[str, list[int]] = {"train": [], "test": []}
    with guarded(table):
        for row in rows_of(table, ("image", "target", "center", "fold")):
            file, target = folder / _FLAMBY / f"{row['image']}.jpg", int(row["target"])
            splits[row["fold"]].append((file, dict(enumerate(LESIONS))[target]))
            centers[row["fold"]].append(int(row["center"]))
    makers = "FLamby's download_isic.py and resize_images.py make them"
    train, test = (existing(table, examples, makers) for examples in splits.values())
    own, of_test = (np.array(numbers, np.int32) for numbers in centers.values())
    clients = natural_clients(own, of_test, len(test))
    del clients["client_names"]  # they are numbers
    return decoded(
        *(folder, train, test, LESIONS, image_size or _CROP),
        channels=3,
        share=_CROP / _SHORTER_SIDE,
        **clients,
    )
