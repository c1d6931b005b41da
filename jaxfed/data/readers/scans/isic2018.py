"""ISIC 2018, task 3: dermoscopic images of skin lesions, seven diagnoses (HAM10000 is its training set).

    ROOT/isic2018/ISIC2018_Task3_Training_Input/*.jpg           10,015 images of 600 x 450
    ROOT/isic2018/ISIC2018_Task3_Training_GroundTruth.csv       image, and the diagnoses one-hot

The table may be in a folder of its name, as in the archive. `Test` (1,512 images) or `Validation` (193)
in place of `Training` names the files of a test split. (N. Codella et al. "Skin lesion analysis toward
melanoma detection 2018". arXiv:1902.03368, 2019. P. Tschandl et al. "The HAM10000 dataset". Scientific Data
5, 2018.)
"""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

from jaxfed.data.dataset import Dataset
from jaxfed.data.readers.image_files import check_image_size
from jaxfed.data.readers.image_folder import Examples, decoded
from jaxfed.errors import UsageError

CLASSES = ("MEL", "NV", "BCC", "AKIEC", "BKL", "DF", "VASC")
_SIZE = 224


def _images(split: str) -> str:
    return f"ISIC2018_Task3_{split}_Input"


def _table(split: str) -> str:
    return f"ISIC2018_Task3_{split}_GroundTruth"


_PLACE = "of https://challenge.isic-archive.com/data/#2018"
ORIGIN = f"{_images('Training')}/ and {_table('Training')}.csv {_PLACE}"


def recognizes(folder: Path) -> bool:
    """True if the folder has the training images or their table."""
    return _has(folder, "Training")


def read(folder: Path, image_size: int | None = None) -> Dataset:
    """uint8 [10015, s, s, 3], s = `image_size` or 224, resized whole (bilinear), and a test split.

    The test split is `Test`, else `Validation`. Without either it is empty: a share of the training images is
    then drawn for testing. Several images of the training set show the same lesion, and such a draw splits by
    image, not by lesion.

    Raises:
        UsageError: images or a table are missing, a line of the table is not one-hot, or an image cannot be
            read.
    """
    check_image_size(image_size)
    tested = next((split for split in ("Test", "Validation") if _has(folder, split)), None)
    train = _split(folder, "Training")
    test = _split(folder, tested) if tested else []
    data = decoded(folder, train, test, CLASSES, image_size or _SIZE)
    return dataclasses.replace(data, name="isic2018")


def _has(folder: Path, split: str) -> bool:
    return (folder / _images(split)).is_dir() or _table_of(folder, split) is not None


def _table_of(folder: Path, split: str) -> Path | None:
    name = f"{_table(split)}.csv"
    return next(filter(Path.is_file, (folder / name, folder / _table(split) / name)), None)


def _split(folder: Path, split: str) -> Examples:
    """The images that a split's table lists, with their diagnoses."""
    table = _table_of(folder, split)
    images = folder / _images(split)
    if table is None or not images.is_dir():
        absent = f"{_table(split)}.csv" if table is None else f"{images.name}/"
        raise UsageError(f"{folder}: no {absent}; needed are {ORIGIN.replace('Training', split)}")
    examples = [(images / f"{image}.jpg", name) for image, name in _diagnoses(table)]
    missing = [file for file, _ in examples if not file.is_file()]
    if missing:
        raise UsageError(
            f"{folder}: {len(missing)} of the {len(examples)} images in {table.name} are missing, first "
            f"{missing[0]}; needed are those {_PLACE}"
        )
    return examples


def _diagnoses(table: Path) -> list[tuple[str, str]]:
    """Name and diagnosis of each image of the table."""
    found = []
    with table.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        columns = reader.fieldnames or ()
        if absent := [name for name in ("image", *CLASSES) if name not in columns]:
            raise UsageError(f"{table}: no column {', '.join(absent)}; it has {', '.join(columns)}")
        for row in reader:
            try:
                values = [float(row[name]) for name in CLASSES]
            except (TypeError, ValueError):
                values = []
            if sorted(values) != [0.0] * (len(CLASSES) - 1) + [1.0]:
                raise UsageError(
                    f"{table}: line {reader.line_num}: {row['image']!r}: use 1.0 for one of "
                    f"{', '.join(CLASSES)}, and 0.0 for the others"
                )
            found.append((row["image"], CLASSES[values.index(1.0)]))
    if not found:
        raise UsageError(f"{table}: lists no images; needed are those {_PLACE}")
    return found
