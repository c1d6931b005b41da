"""Sets of images by name, from their publishers' files; `dataset.name` is the folder's name.

ROOT/brain_mri/yes/*.jpg, no/*.jpg                                   155 and 98 slices
ROOT/pneumonia/[chest_xray/]{train,val,test}/{NORMAL,PNEUMONIA}/*    5,216, 16 and 624 X-rays
ROOT/pneumonia_mnist/pneumoniamnist.npz                              4,708, 524 and 624 of them, 28 x 28
ROOT/cinic10/{train,valid,test}/{airplane,...,truck}/*.png           90,000 images of 32 x 32 each
ROOT/isic2018/ISIC2018_Task3_Training_Input/*.jpg                    10,015 images of 600 x 450
ROOT/isic2018/[...]/ISIC2018_Task3_Training_GroundTruth.csv          image, and the diagnoses one-hot
ROOT/fed_isic2019/ISIC_2019_Training_Input_preprocessed/*.jpg        of FLamby's scripts, shorter side 224
ROOT/fed_isic2019/train_test_split                                   a table that FLamby's repository carries
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from absl import logging

from jaxfed.data.dataset import Dataset, natural_clients
from jaxfed.data.readers import npz
from jaxfed.data.readers.image_files import images_in
from jaxfed.data.readers.image_folder import Examples, check_there, classes_in, decoded, rows_of
from jaxfed.errors import UsageError

BRAIN_MRI = (
    "yes/ and no/ of "
    "https://www.kaggle.com/datasets/navoneel/brain-mri-images-for-brain-tumor-detection"
)
PNEUMONIA = "chest_xray/ of https://www.kaggle.com/datasets/paultimothymooney/chest-xray-pneumonia"
PNEUMONIA_MNIST = "pneumoniamnist.npz of https://medmnist.com"
CINIC10 = "train/ and test/ of CINIC-10.tar.gz of https://doi.org/10.7488/ds/2448"
_ISIC = "of https://challenge.isic-archive.com/data/#2018"
ISIC2018 = f"ISIC2018_Task3_Training_Input/ and ISIC2018_Task3_Training_GroundTruth.csv {_ISIC}"
_FLAMBY = "ISIC_2019_Training_Input_preprocessed"
_FLAMBY_TABLES = ("train_test_split", "train_test_split.csv")
FED_ISIC2019 = f"FLamby's {_FLAMBY}/ and its repository's train_test_split"

CHESTS = ("NORMAL", "PNEUMONIA")
CINIC_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
LESIONS = ("MEL", "NV", "BCC", "AKIEC", "BKL", "DF", "VASC")  # of 2018
LESIONS_2019 = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
_CROP, _SHORTER_SIDE = 200, 224  # pixels of FLamby's test images, and of the prepared ones


def brain_mri(folder: Path, image_size: int | None = None) -> Dataset:
    """Brain MRI: uint8 [n, s, s, 1], slices with a tumor and without; s = `image_size` or 150, no test split.

    (N. Chakrabarty, on Kaggle, 2019.) Images are grey and resized whole (bilinear). Duplicates are left out:
    images with the pixels, after resizing, of an earlier one of the class, 25 in all. A copy on both sides of
    a split would be a test example seen in training. FedCT's code keeps them, has three equal channels, and
    tests on the first 53 files of one of the two folders, all of one class.

    Raises:
        UsageError: no images of a class, or one that cannot be read.
    """
    names = ("no", "yes")
    examples = [example for example in classes_in(folder) if example[1] in names]
    for name in names:
        if not any(kind == name for _, kind in examples):
            raise UsageError(f"{folder}: no images in {name}/; needed are {BRAIN_MRI}")
    data = decoded(folder, examples, [], names, image_size or 150, channels=1)
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

    Raises:
        UsageError: a folder is missing or has no images, or one cannot be read.
    """
    inner = folder / "chest_xray"
    place = inner if inner.is_dir() else folder
    train, val, test = (
        _of_classes(place, split, CHESTS, PNEUMONIA, allows_none=split == "val")
        for split in ("train", "val", "test")
    )
    data = decoded(place, train + val, test, CHESTS, image_size or 224, channels=1)
    return replace(data, name="pneumonia")


def pneumonia_mnist(folder: Path) -> Dataset:
    """PneumoniaMNIST: the X-rays of `pneumonia`, grey, 28 x 28, of MedMNIST v2.

    uint8 [5232, 28, 28, 1] and [624, 28, 28, 1]. (J. Yang et al. "MedMNIST v2: A large-scale lightweight
    benchmark for 2D and 3D biomedical image classification". Scientific Data, 2023.) MedMNIST took its
    validation split out of the training images. Here it is merged back, as in `pneumonia`;
    `dataset.validation_fraction` draws a new one if needed.

    Raises:
        UsageError: the file is missing, or lacks one of MedMNIST's arrays.
    """
    file = folder / "pneumoniamnist.npz"
    if not file.is_file():
        raise UsageError(f"{folder}: no {file.name}; it is {PNEUMONIA_MNIST}")
    data = npz.read(file)
    wrong = ""
    if data.x_validation is None or data.y_validation is None:
        wrong = "it has no val_images"
    elif data.x.shape[1:] != (28, 28, 1) or data.num_classes != 2:
        wrong = f"{data.num_classes} classes of {data.x.dtype}{list(data.x.shape[1:])}"
    if wrong:
        raise UsageError(f"{file}: not MedMNIST's file of 28 x 28 bytes of two classes ({wrong})")
    return replace(
        data,
        name="pneumonia_mnist",
        x=np.concatenate([data.x, data.x_validation]),
        y=np.concatenate([data.y, data.y_validation]),
        class_names=CHESTS,
        x_validation=None,
        y_validation=None,
    )


def cinic10(folder: Path) -> Dataset:
    """CINIC-10: CIFAR-10's images, and downscaled images of ImageNet, in CIFAR-10's classes.

    uint8 [90000, 32, 32, 3] twice: the publishers' train and test; gray images among them become RGB. (L. N.
    Darlow et al. "CINIC-10 is not ImageNet or CIFAR-10". arXiv:1810.03505, 2018.) Their `valid`, 90,000 more,
    is not read, as in SAGE's code. An incomplete split, as after an interrupted extraction, is logged.

    Raises:
        UsageError: a class has no images, or an image cannot be read.
    """
    splits = []
    for split in ("train", "test"):
        examples = [
            example
            for name in CINIC_CLASSES
            for example in _of_classes(folder, split, [name], CINIC10)
        ]
        if len(examples) != 90_000:
            text = "%s: %d images, where the publishers have %d"
            logging.warning(text, folder / split, len(examples), 90_000)
        splits.append(examples)
    train, test = splits
    return replace(decoded(folder, train, test, CINIC_CLASSES, 32), name="cinic10")


def _of_classes(
    folder: Path, split: str, classes: Sequence[str], origin: str, *, allows_none: bool = False
) -> Examples:
    examples = [(file, name) for name in classes for file in images_in(folder / split / name)]
    if not examples and not (allows_none and not (folder / split).is_dir()):
        places = " and ".join(f"{split}/{name}" for name in classes)
        raise UsageError(f"{folder}: no images in {places}; needed are {origin}")
    return examples


def is_isic2018(folder: Path) -> bool:
    """True if the folder has the training images of ISIC 2018 or their table."""
    return _has(folder, "Training")


def isic2018(folder: Path, image_size: int | None = None) -> Dataset:
    """ISIC 2018, task 3: dermoscopic images of skin lesions, seven diagnoses (HAM10000 is its training set).

    uint8 [10015, s, s, 3], s = `image_size` or 224, resized whole (bilinear), and a test split: `Test` (1,512
    images), else `Validation` (193), in place of `Training` in the names. Without either it is empty: a share
    of the training images is then drawn for testing. Several images of the training set show the same lesion,
    and such a draw splits by image, not by lesion. (N. Codella et al. "Skin lesion analysis toward melanoma
    detection 2018". arXiv:1902.03368, 2019. P. Tschandl et al. "The HAM10000 dataset". Scientific Data 5,
    2018.)

    Raises:
        UsageError: images or a table are missing, a line of the table is not one-hot, or an image cannot be
            read.
    """
    tested = next((split for split in ("Test", "Validation") if _has(folder, split)), None)
    train = _lesions(folder, "Training")
    test = _lesions(folder, tested) if tested else []
    return replace(decoded(folder, train, test, LESIONS, image_size or 224), name="isic2018")


def _has(folder: Path, split: str) -> bool:
    images = folder / f"ISIC2018_Task3_{split}_Input"
    return images.is_dir() or _table_of(folder, split) is not None


def _table_of(folder: Path, split: str) -> Path | None:
    name = f"ISIC2018_Task3_{split}_GroundTruth"
    return next(filter(Path.is_file, (folder / f"{name}.csv", folder / name / f"{name}.csv")), None)


def _lesions(folder: Path, split: str) -> Examples:
    table, images = _table_of(folder, split), folder / f"ISIC2018_Task3_{split}_Input"
    if table is None or not images.is_dir():
        absent = f"ISIC2018_Task3_{split}_GroundTruth.csv" if table is None else f"{images.name}/"
        raise UsageError(f"{folder}: no {absent}; needed are {ISIC2018.replace('Training', split)}")
    examples = [
        (images / f"{row['image']}.jpg", _diagnosis(table, line, row))
        for line, row in rows_of(table, ("image", *LESIONS))
    ]
    if not examples:
        raise UsageError(f"{table}: lists no images; needed are those {_ISIC}")
    check_there(table, examples, f"; needed are those {_ISIC}")
    return examples


def _diagnosis(table: Path, line: int, row: dict[str, str]) -> str:
    try:
        values = [float(row[name]) for name in LESIONS]
    except (TypeError, ValueError):
        values = []
    if sorted(values) != [0.0] * (len(LESIONS) - 1) + [1.0]:
        raise UsageError(
            f"{table}: line {line}: {row['image']!r}: use 1.0 for one of {', '.join(LESIONS)}, and 0.0 for "
            "the others"
        )
    return LESIONS[values.index(1.0)]


def is_fed_isic2019(folder: Path) -> bool:
    """True if the folder has FLamby's images or table."""
    return any((folder / name).exists() for name in (_FLAMBY, *_FLAMBY_TABLES))


def fed_isic2019(folder: Path, image_size: int | None = None) -> Dataset:
    """Fed-ISIC2019 as FLamby prepares it: skin lesions from six centers, eight diagnoses.

    uint8 [18597, s, s, 3] and [4650, s, s, 3]; `client_id` is the center. The table has a line for each of
    23,247 images: its name, diagnosis one-hot and as `target`, `center` 0..5, `fold` train or test. (J. Ogier
    du Terrail et al. "FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning in Realistic
    Healthcare Settings". NeurIPS 2022.) Center crops are decoded once, in parallel, and cached as arrays.

    Args:
        folder: the layout above.
        image_size: pixels a side of the center crop, s. The image is first scaled to a shorter side of
            224 s / 200. None is 200: FLamby's center crop, without resampling.

    Raises:
        UsageError: the table or the images are missing, or a line of the table is not as above.
    """
    table = next((folder / name for name in _FLAMBY_TABLES if (folder / name).is_file()), None)
    if table is None:
        raise UsageError(
            f"{folder}: no {_FLAMBY_TABLES[0]}; copy it there from FLamby's repository, "
            f"flamby/datasets/fed_isic2019/dataset_creation_scripts/{_FLAMBY_TABLES[0]}"
        )
    splits: dict[str, Examples] = {"train": [], "test": []}
    centers: dict[str, list[int]] = {"train": [], "test": []}
    for line, row in rows_of(table, ("image", "target", "center", "fold")):
        wrong = ""
        if row["target"] not in map(str, range(len(LESIONS_2019))):
            wrong = f"target={row['target']!r}: use 0 to {len(LESIONS_2019) - 1}"
        elif not (row["center"] or "").isdigit():
            wrong = f"center={row['center']!r}: use integers from 0 on"
        elif row["fold"] not in splits:
            wrong = f"fold={row['fold']!r}: choose one of 'train', 'test'"
        if wrong:
            raise UsageError(f"{table}: line {line}: {wrong}")
        file = folder / _FLAMBY / f"{row['image']}.jpg"
        splits[row["fold"]].append((file, LESIONS_2019[int(row["target"])]))
        centers[row["fold"]].append(int(row["center"]))
    makers = "FLamby's download_isic.py and resize_images.py make them"
    train, test = splits.values()
    check_there(table, train + test, f"; {makers}")
    own, of_test = (np.array(numbers, np.int32) for numbers in centers.values())
    clients = natural_clients(own, of_test, len(test))
    del clients["client_names"]  # they are numbers
    return decoded(
        *(folder, train, test, LESIONS_2019, image_size or _CROP),
        channels=3,
        share=_CROP / _SHORTER_SIDE,
        **clients,
    )
