"""Fed-ISIC2019 as FLamby prepares it: skin lesions from six centers, eight diagnoses.

    ROOT/ISIC_2019_Training_Input_preprocessed/IMAGE.jpg    its scripts' result: shorter side 224
    ROOT/train_test_split                                   a table that FLamby's repository carries

The table has a line for each of 23,247 images: its name, diagnosis one-hot and as `target`, `center`
0..5, `fold` train or test. (J. Ogier du Terrail et al. "FLamby: Datasets and Benchmarks for Cross-Silo
Federated Learning in Realistic Healthcare Settings". NeurIPS 2022.)
"""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path

import numpy as np

from jaxfed.data.cache import cached_arrays, files_key
from jaxfed.data.dataset import Dataset, client_numbers
from jaxfed.data.readers.image_encoder import ImageEncoder
from jaxfed.data.readers.image_files import Shape, center, check_image_size, decode
from jaxfed.errors import UsageError

IMAGES = "ISIC_2019_Training_Input_preprocessed"
CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
_TABLES = ("train_test_split", "train_test_split.csv")
_SIZE = 200  # pixels a side of FLamby's test images
_SHORTER_SIDE = 224  # pixels of the shorter side of the prepared images
_SHARE = _SIZE / _SHORTER_SIDE
_FORMAT = 1


def recognizes(folder: Path) -> bool:
    """True if the folder has the images or the table."""
    return any((folder / name).exists() for name in (IMAGES, *_TABLES))


def read(folder: Path, image_size: int | None = None) -> Dataset:
    """Read the center crops of the images; decoded once, in parallel, and cached as arrays.

    Args:
        folder: the layout above.
        image_size: pixels a side of the center crop, s. The image is first scaled to a shorter side of
            224 s / 200. None is 200: FLamby's center crop, without resampling.

    Returns:
        uint8 [18597, s, s, 3] and [4650, s, s, 3]; `client_id` is the center.

    Raises:
        UsageError: the table or the images are missing, or a line of the table is not as above.
    """
    check_image_size(image_size)
    table = next((folder / name for name in _TABLES if (folder / name).is_file()), None)
    if table is None:
        raise UsageError(
            f"{folder}: no {_TABLES[0]}; copy it there from FLamby's repository, "
            f"flamby/datasets/fed_isic2019/dataset_creation_scripts/{_TABLES[0]}"
        )
    splits = _read_table(table)
    files = {
        fold: [folder / IMAGES / f"{row['image']}.jpg" for row in rows]
        for fold, rows in splits.items()
    }
    joint = [file for split in files.values() for file in split]
    missing = [file for file in joint if not file.is_file()]
    if missing:
        raise UsageError(
            f"{folder}: {len(missing)} of the {len(joint)} images in {table.name} are missing, first "
            f"{missing[0]}; FLamby's download_isic.py and resize_images.py make them"
        )
    size = image_size or _SIZE

    def make(target: Path) -> None:
        for fold, paths in files.items():
            decode(
                target / f"x-{fold}.npy",
                paths,
                Shape(size, size, 3),
                partial(center, share=_SHARE),
            )

    key = files_key([table, *joint], _FORMAT, str(folder.resolve()), size)
    arrays = cached_arrays("fed_isic2019", key, make)
    columns = {
        (fold, name): np.array([row[name] for row in rows], np.int32)
        for fold, rows in splits.items()
        for name in ("target", "center")
    }
    client_id, client_id_test = client_numbers(
        columns["train", "center"], columns["test", "center"]
    )
    return Dataset(
        name=str(folder),
        x=arrays["x-train"],
        y=columns["train", "target"],
        x_test=arrays["x-test"],
        y_test=columns["test", "target"],
        num_classes=len(CLASSES),
        class_names=CLASSES,
        client_id=client_id,
        client_id_test=client_id_test,
        encoder=ImageEncoder(size, size, 3, _SHARE),
    )


def _read_table(table: Path) -> dict[str, list[dict[str, str]]]:
    """The lines of each fold."""
    splits: dict[str, list[dict[str, str]]] = {"train": [], "test": []}
    with table.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        columns = reader.fieldnames or ()
        absent = [name for name in ("image", "target", "center", "fold") if name not in columns]
        if absent:
            raise UsageError(f"{table}: no column {', '.join(absent)}; it has {', '.join(columns)}")
        for row in reader:
            if row["target"] not in map(str, range(len(CLASSES))):
                problem = f"target={row['target']!r}: use 0 to {len(CLASSES) - 1}"
            elif not (row["center"] or "").isdigit():
                problem = f"center={row['center']!r}: use integers from 0 on"
            elif row["fold"] not in splits:
                problem = f"fold={row['fold']!r}: choose one of 'train', 'test'"
            else:
                splits[row["fold"]].append(row)
                continue
            raise UsageError(f"{table}: line {reader.line_num}: {problem}")
    return splits
