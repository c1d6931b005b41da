"""Data sets by name: bundled with scikit-learn, or a folder of the data root with its publisher's files."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxfed.data.dataset import Dataset
from jaxfed.data.readers import image_sets as images
from jaxfed.data.readers import uci


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


NAMED: dict[str, Named] = {
    "femnist": Named(
        "the train/ and test/ that LEAF's ./preprocess.sh -s niid --sf 1.0 -k 0 -t sample makes "
        "in data/femnist/data"
    ),
    "fed_isic2019": Named(images.FED_ISIC2019),
    "cinic10": Named(images.CINIC10, images.cinic10),
    "isic2018": Named(images.ISIC2018, images.isic2018, ("image_size",)),
    "mini_imagenet": Named(
        "images/ and the few-shot train.csv, val.csv and test.csv, or a folder a class"
    ),
    "wine_quality": Named(
        f"winequality-red.csv and winequality-white.csv of {uci.ORIGINS['wine_quality']}",
        uci.wine_quality,
    ),
    "adult": Named(f"adult.data and adult.test of {uci.ORIGINS['adult']}", uci.adult),
    "mushroom": Named(f"agaricus-lepiota.data of {uci.ORIGINS['mushroom']}", uci.mushroom),
    "covertype": Named(f"covtype.data.gz of {uci.ORIGINS['covertype']}", uci.covertype),
    "brain_mri": Named(images.BRAIN_MRI, images.brain_mri, ("image_size",)),
    "pneumonia": Named(images.PNEUMONIA, images.pneumonia, ("image_size",)),
    "pneumonia_mnist": Named(images.PNEUMONIA_MNIST, images.pneumonia_mnist),
}


def _digits() -> Dataset:
    rows = _digit_rows()
    x = (rows[:, :-1] / 16).reshape(-1, 8, 8, 1).astype(np.float32)
    y = rows[:, -1].astype(np.int32)
    return Dataset("digits", x, y, x[:0], y[:0], 10, tuple(map(str, range(10))))


def _digit_rows() -> np.ndarray:
    """float64 [1797, 64 + 1], pixels and class.

    If scikit-learn's file is at its usual place, it is read without importing scikit-learn, which takes a
    second.
    """
    package = find_spec("sklearn")
    if package is not None and package.origin is not None:
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.exists():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])


def _breast_cancer() -> Dataset:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    x, y = bunch.data.astype(np.float32), bunch.target.astype(np.int32)
    return Dataset("breast_cancer", x, y, x[:0], y[:0], 2, tuple(map(str, bunch.target_names)))


EMBEDDED: dict[str, Callable[[], Dataset]] = {"digits": _digits, "breast_cancer": _breast_cancer}
"""digits: 1,797 images float32 `[8, 8, 1]` in 17 levels from 0 to 1, 10 classes. breast_cancer: 569 x 30,
float32, raw units, 2 classes (malignant, benign). Neither has a test split."""
