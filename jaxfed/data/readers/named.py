"""Data sets by name: bundled with scikit-learn, or a folder of the data root with its publishers' files.

ROOT/wine_quality/winequality-{red,white}.csv      1,599 and 4,898 rows
ROOT/adult/adult.data, adult.test                  32,561 and 16,281 rows
ROOT/mushroom/agaricus-lepiota.data                8,124 rows, the class first
ROOT/covertype/covtype.data.gz (or covtype.data)   581,012 rows, the class 1..7 last
ROOT/covertype/covtype.NAME.data.gz                a part of it
ROOT/brain_mri/yes/*.jpg, no/*.jpg                                   155 and 98 slices
ROOT/pneumonia/[chest_xray/]{train,val,test}/{NORMAL,PNEUMONIA}/*    5,216, 16 and 624 X-rays
ROOT/pneumonia_mnist/pneumoniamnist.npz                              4,708, 524 and 624 of them, 28 x 28
ROOT/fed_isic2019/ISIC_2019_Training_Input_preprocessed/*.jpg        of FLamby's scripts, shorter side 224
ROOT/fed_isic2019/train_test_split                                   a table that FLamby's repository carries

UCI's tables are coded as in FedCT's code. It standardizes over all rows, test rows included;
`preprocessing.kind="standardized"` over training rows.
"""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from jaxfed.data.cache import cached_arrays, files_key
from jaxfed.data.dataset import Dataset
from jaxfed.data.readers import guarded
from jaxfed.data.readers.arrays import plain_arrays
from jaxfed.data.readers.images import Examples, decoded, images_in
from jaxfed.errors import UsageError

PUBLISHED = {  # rows of the publishers' tables
    "adult.data": 32_561,
    "adult.test": 16_281,
    "agaricus-lepiota.data": 8_124,
    "winequality-red.csv": 1_599,
    "winequality-white.csv": 4_898,
    "covtype.data": 581_012,
    "covtype.data.gz": 581_012,
}
FORESTS = (
    *("spruce/fir", "lodgepole pine", "ponderosa pine", "cottonwood/willow", "aspen"),
    *("Douglas-fir", "krummholz"),
)
CHESTS = ("NORMAL", "PNEUMONIA")
LESIONS = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
_WINE = (
    *("fixed acidity", "volatile acidity", "citric acid", "residual sugar", "chlorides"),
    *("free sulfur dioxide", "total sulfur dioxide", "density", "pH", "sulphates", "alcohol"),
    "quality",
)
# Column -> None: not a feature; float: numbers, its largest value; texts: their codes, 0, 1, ... Texts with
# a space between them have one code, and * stands for all others.
_ADULT: dict[str, float | tuple[str, ...] | None] = {
    "age": np.inf,
    "workclass": (
        *("", "? Private", "State-gov", "Federal-gov", "Self-emp-not-inc", "Self-emp-inc"),
        *("Local-gov", "Without-pay", "Never-worked"),
    ),
    "fnlwgt": np.inf,
    "education": None,
    "education-num": np.inf,
    "marital-status": (
        *("Widowed", "Divorced", "Separated", "Never-married", "Married-civ-spouse"),
        *("Married-spouse-absent", "Married-AF-spouse"),
    ),
    "occupation": None,
    "relationship": ("Not-in-family Unmarried Own-child Other-relative", "Husband Wife"),
    "race": ("White Other", "Black", "Asian-Pac-Islander", "Amer-Indian-Eskimo"),
    "sex": ("Female", "Male"),
    "capital-gain": 99_999.0,
    "capital-loss": np.inf,
    "hours-per-week": 99.0,
    "native-country": ("*", "United-States ?"),
    "income": None,
}
_OCCUPATIONS = (
    *("Adm-clerical", "Armed-Forces", "Craft-repair", "Exec-managerial", "Farming-fishing"),
    *("Handlers-cleaners", "Machine-op-inspct", "Other-service", "Priv-house-serv"),
    *("? Prof-specialty", "Protective-serv", "Sales", "Tech-support", "Transport-moving"),
)
_FORMAT = 1  # of Covertype in the cache
_FLAMBY = "ISIC_2019_Training_Input_preprocessed"
_FLAMBY_TABLE = "train_test_split"
_CROP, _SHORTER_SIDE = 200, 224  # pixels of FLamby's test images, and of the prepared ones


def wine_quality(folder: Path) -> Dataset:
    """Wine Quality: is it red or white, by eleven measurements and the quality that tasters gave it?

    float32 [5320, 12], 1,359 red and 3,961 white, no test split. (P. Cortez et al. "Modeling wine preferences
    by data mining from physicochemical properties". Decision Support Systems, 2009.) Published to predict
    quality, 0 to 10, as in FedCT's text (E.2). FedCT's code predicts the type, with quality as a feature;
    only this explains its accuracies of 0.92 to 0.98. So it is done here. Duplicate rows of a type are left
    out, as in FedCT's code; 5,320 of 6,497 remain. FedCT has 5,295: it drops rows with missing values of a
    merged table, while the original files lack none.
    """
    kept = []
    for kind in ("red", "white"):
        file = _file(folder, f"winequality-{kind}.csv")
        table = _table(file, _WINE)
        x = np.stack([_numbers(file, table[name]) for name in _WINE], axis=1, dtype=np.float32)
        kept.append(x[np.sort(np.unique(x, axis=0, return_index=True)[1])])
    y = np.repeat(np.arange(2, dtype=np.int32), list(map(len, kept)))
    return _one_split("wine_quality", np.concatenate(kept), y, ("red", "white"))


def adult(folder: Path) -> Dataset:
    """Adult: does a person earn more than $50,000 a year, by the census of 1994?

    (B. Becker, R. Kohavi, 1996.) float32 [32561, 26] and [16281, 26], classes 0 (up to $50,000) and 1; not
    scaled: the 12 columns of `_ADULT`, then a one-hot code of 14 occupations.

    A capital gain of 99,999 and 99 hours a week, which mean this much or more, are replaced by the mean of
    their column in adult.data. FedCT's code uses the mean over all rows, test rows included, and its own
    split of all rows. `dataset.pooled` makes such a split; some rows behind the two means are then test rows.
    It replaces a missing value ("?") by the most frequent one, and treats the race "Other" as missing.
    """
    files = [_file(folder, name) for name in ("adult.data", "adult.test")]
    tables = [_table(file, tuple(_ADULT)) for file in files]
    incomes, splits = ("<=50K", ">50K"), []
    for file, table in zip(files, tables, strict=True):
        columns = []
        for name, kind in _ADULT.items():
            if isinstance(kind, tuple):
                columns.append(_codes(file, name, table[name], kind))
            elif kind is not None:
                values, mean = (
                    _numbers(file, table[name]),
                    _numbers(files[0], tables[0][name]).mean(),
                )
                columns.append(np.where(values == kind, mean, values))
        occupation = _codes(file, "occupation", table["occupation"], _OCCUPATIONS)
        columns += [*(occupation == np.arange(len(_OCCUPATIONS))[:, None])]
        income = [cell.rstrip(".") for cell in table["income"]]  # dots end test rows
        x = np.stack(columns, axis=1, dtype=np.float32)
        splits.append((x, _codes(file, "income", income, incomes)))
    (x, y), (x_test, y_test) = splits
    return Dataset("adult", x, y, x_test, y_test, 2, incomes)


def mushroom(folder: Path) -> Dataset:
    """Mushroom: edible or poisonous, by 22 properties, each a letter. (J. Schlimmer, 1987.)

    float32 [8124, 21]: the rank of each property's letter among those that occur, from 0; 4,208 edible, 3,916
    poisonous, no test split. An unknown stalk root, "?", is an additional letter, and the constant veil type
    is left out. The numbers impose an order that the letters do not have, which suffices for trees.
    """
    file = _file(folder, "agaricus-lepiota.data")
    classes, *properties = _table(file, tuple(map(str, range(23)))).values()
    del properties[15]  # the veil type
    x = np.stack([np.unique(cells, return_inverse=True)[1] for cells in properties], axis=1)
    y = _codes(file, "class", classes, ("e", "p"))
    return _one_split("mushroom", x.astype(np.float32), y, ("edible", "poisonous"))


def covertype(folder: Path) -> Dataset:
    """Covertype: which of seven kinds of forest grows on 30 x 30 m, by 54 cartographic variables.

    float32 [581012, 54], raw units, classes 0..6; no test split. Parsed once and cached. (J. Blackard, D.
    Dean, 1999.) FedCT uses raw units; networks and graphs need `preprocessing.kind="standardized"`. Without
    the whole file a part of it is read, and its number of rows is logged. The first 15,120 rows are balanced;
    the whole file is not.
    """
    file = _file(folder, "covtype.data.gz", "covtype.data", "covtype.*.data.gz")

    def make(target: Path) -> None:
        with guarded(file):
            table = np.loadtxt(file, dtype=np.int32, delimiter=",", ndmin=2)
        _check_count(file, len(table))
        np.save(target / "x.npy", table[:, :-1].astype(np.float32))
        np.save(target / "y.npy", table[:, -1] - 1)

    arrays = cached_arrays("covertype", files_key([file], _FORMAT, str(file.resolve())), make)
    if (number := len(arrays["y"])) != 581_012:
        logging.warning("%s: %d rows of Covertype's 581012", file, number)
    return _one_split("covertype", arrays["x"], arrays["y"], FORESTS)


def brain_mri(folder: Path, image_size: int | None = None) -> Dataset:
    """Brain MRI: uint8 [n, s, s, 1], slices with a tumor and without; s = `image_size` or 150, no test split.

    (N. Chakrabarty, on Kaggle, 2019.) Images are grey and resized whole (bilinear). Duplicates are left out:
    images with the pixels, after resizing, of an earlier one of the class, 25 in all. A copy on both sides of
    a split would be a test example seen in training. FedCT's code keeps them, has three equal channels, and
    tests on the first 53 files of one of the two folders, all of one class.
    """
    examples = [*_of_class(folder, "no"), *_of_class(folder, "yes")]
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
    root = inner if inner.is_dir() else folder
    train, val, test = (
        [
            example
            for name in CHESTS
            for example in _of_class(root / split, name, is_needed=split != "val")
        ]
        for split in ("train", "val", "test")
    )
    data = decoded(root, train + val, test, CHESTS, image_size or 224, channels=1)
    return replace(data, name="pneumonia")


def pneumonia_mnist(folder: Path) -> Dataset:
    """PneumoniaMNIST: the X-rays of `pneumonia`, grey, 28 x 28, of MedMNIST v2.

    uint8 [5232, 28, 28, 1] and [624, 28, 28, 1]. (J. Yang et al. "MedMNIST v2: A large-scale lightweight
    benchmark for 2D and 3D biomedical image classification". Scientific Data, 2023.) MedMNIST took its
    validation split out of the training images. Here it is merged back, as in `pneumonia`;
    `dataset.validation_fraction` draws a new one if needed.
    """
    file = _file(folder, "pneumoniamnist.npz")
    with guarded(file):
        arrays = plain_arrays(file)
        (x, x_test), (y, y_test) = (
            [
                np.concatenate([arrays[f"{part}_{kind}"] for part in parts])
                for parts in (("train", "val"), ("test",))
            ]
            for kind in ("images", "labels")
        )
        x, x_test, y, y_test = x[..., None], x_test[..., None], y[:, 0], y_test[:, 0]
    return Dataset("pneumonia_mnist", x, y, x_test, y_test, 2, CHESTS)


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
    table = folder / _FLAMBY_TABLE
    if not table.is_file():
        raise UsageError(
            f"{folder}: no {table.name}; copy it there from FLamby's repository, "
            f"flamby/datasets/fed_isic2019/dataset_creation_scripts/{table.name}"
        )
    splits: dict[str, Examples] = {"train": [], "test": []}
    centers: dict[str, list[int]] = {"train": [], "test": []}
    with guarded(table), table.open(newline="", encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            image = folder / _FLAMBY / f"{row['image']}.jpg"
            splits[row["fold"]].append((image, dict(enumerate(LESIONS))[int(row["target"])]))
            centers[row["fold"]].append(int(row["center"]))
    listed = [image for examples in splits.values() for image, _ in examples]
    if missing := [image for image in listed if not image.is_file()]:
        raise UsageError(
            f"{table}: {len(missing)} of its {len(listed)} images are missing, first {missing[0]}; FLamby's "
            "download_isic.py and resize_images.py make them"
        )
    train, test = splits.values()
    of_train, of_test = (np.array(numbers, np.int32) for numbers in centers.values())
    form: dict[str, Any] = {"channels": 3, "share": _CROP / _SHORTER_SIDE}
    form |= {"client_id": of_train, "client_id_test": of_test}
    return decoded(folder, train, test, LESIONS, image_size or _CROP, **form)


def digits() -> Dataset:
    """Digits: 1,797 images float32 [8, 8, 1] in 17 levels from 0 to 1, 10 classes; no test split."""
    package = importlib.util.find_spec("sklearn")  # to import it would take a second
    if package is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    file = Path(str(package.origin)).parent / "datasets" / "data" / "digits.csv.gz"
    rows = np.loadtxt(file, delimiter=",")
    x = (rows[:, :-1] / 16).reshape(-1, 8, 8, 1).astype(np.float32)
    return _one_split("digits", x, rows[:, -1].astype(np.int32), tuple(map(str, range(10))))


def breast_cancer() -> Dataset:
    """Breast cancer: float32 [569, 30], raw units, malignant or benign; no test split."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    x, y = bunch.data.astype(np.float32), bunch.target.astype(np.int32)
    return _one_split("breast_cancer", x, y, tuple(map(str, bunch.target_names)))


EMBEDDED: dict[str, Callable[[], Dataset]] = {"digits": digits, "breast_cancer": breast_cancer}


class Named(NamedTuple):
    """A set by name.

    Attributes:
        origin: description of the required files.
        read: folder and options -> data set; None: the reader is chosen by the folder's contents.
        options: of `load` that the reader takes.
    """

    origin: str
    read: Callable[..., Dataset] | None = None
    options: tuple[str, ...] = ()


_UCI, _KAGGLE = "https://archive.ics.uci.edu/dataset/", "https://www.kaggle.com/datasets/"
NAMED: dict[str, Named] = {
    "femnist": Named("the Parquet files of https://huggingface.co/datasets/flwrlabs/femnist"),
    "fed_isic2019": Named(
        f"FLamby's {_FLAMBY}/ and its repository's {_FLAMBY_TABLE}", fed_isic2019, ("image_size",)
    ),
    "mini_imagenet": Named("a folder of images a class, or train/, val/ and test/ of such"),
    "wine_quality": Named(
        f"winequality-red.csv and winequality-white.csv of {_UCI}186/wine+quality", wine_quality
    ),
    "adult": Named(f"adult.data and adult.test of {_UCI}2/adult", adult),
    "mushroom": Named(f"agaricus-lepiota.data of {_UCI}73/mushroom", mushroom),
    "covertype": Named(f"covtype.data.gz of {_UCI}31/covertype", covertype),
    "brain_mri": Named(
        f"yes/ and no/ of {_KAGGLE}navoneel/brain-mri-images-for-brain-tumor-detection",
        brain_mri,
        ("image_size",),
    ),
    "pneumonia": Named(
        f"chest_xray/ of {_KAGGLE}paultimothymooney/chest-xray-pneumonia",
        pneumonia,
        ("image_size",),
    ),
    "pneumonia_mnist": Named("pneumoniamnist.npz of https://medmnist.com", pneumonia_mnist),
}


def _one_split(name: str, x: np.ndarray, y: np.ndarray, classes: tuple[str, ...]) -> Dataset:
    return Dataset(name, x, y, x[:0], y[:0], len(classes), classes)


def _file(folder: Path, *patterns: str) -> Path:
    for pattern in patterns:
        if files := sorted(filter(Path.is_file, folder.glob(pattern))):  # no device, no FIFO
            return files[0]
    raise UsageError(f"{folder}: no {patterns[0]}; needed are {NAMED[folder.name].origin}")


def _of_class(folder: Path, name: str, *, is_needed: bool = True) -> Examples:
    examples = [(file, name) for file in images_in(folder / name)]
    if is_needed and not examples:
        known = (each.origin for key, each in NAMED.items() if key in folder.parts)
        raise UsageError(f"{folder}: no images in {name}/; needed are {next(known)}")
    return examples


def _table(file: Path, columns: Sequence[str]) -> dict[str, list[str]]:
    """A file's columns, without a header and lines that begin with `|`."""
    with guarded(file), file.open(newline="", encoding="utf-8-sig") as stream:
        lines = csv.reader(stream, delimiter=";" if file.suffix == ".csv" else ",")
        rows = [[cell.strip() for cell in line] for line in lines if line and line[0][:1] != "|"]
        if file.suffix == ".csv" and rows.pop(0) != list(columns):
            raise UsageError(f"{file}: its columns are not {', '.join(columns)}")
        _check_count(file, len(rows))
        return dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))


def _check_count(file: Path, count: int) -> None:
    """Refuse a file with another number of rows than published: a truncated download, or a part."""
    published = PUBLISHED.get(file.name, count)
    if count != published:
        raise UsageError(
            f"{file}: {count} rows, but the published file has {published}; download it again, or rename "
            "a part of it and load it as a CSV file"
        )


def _numbers(file: Path, cells: list[str]) -> np.ndarray:
    with guarded(file):
        return np.array(cells, np.float64)


def _codes(file: Path, name: str, cells: list[str], texts: Sequence[str]) -> np.ndarray:
    """int32 [n], the index of each cell's text among `texts`, as in `_ADULT`."""
    code = {text: index for index, group in enumerate(texts) for text in group.split()}
    numbers = np.array([code.get(cell, code.get("*", -1)) for cell in cells], np.int32)
    if (numbers < 0).any():
        cell = cells[int((numbers < 0).argmax())]
        wrong = f"column {name!r} has {cell!r}; choose one of {', '.join(map(repr, code))}"
        raise UsageError(f"{file}: {wrong}")
    return numbers
