"""Data sets by name: bundled with scikit-learn, or a folder of the data root with its publisher's files."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
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
    "mini_imagenet": Named(
        "images/ and the few-shot train.csv, val.csv and test.csv, or a folder a class"
    ),
    **{name: Named(origin, getattr(uci, name)) for name, origin in uci.ORIGINS.items()},
    "brain_mri": Named(images.BRAIN_MRI, images.brain_mri, ("image_size",)),
    "pneumonia": Named(images.PNEUMONIA, images.pneumonia, ("image_size",)),
    "pneumonia_mnist": Named(images.PNEUMONIA_MNIST, images.pneumonia_mnist),
}


def _digits() -> Dataset:
    package = importlib.util.find_spec("sklearn")  # to import it would take a second
    assert package is not None
    file = Path(str(package.origin)).parent / "datasets" / "data" / "digits.csv.gz"
    rows = np.loadtxt(file, delimiter=",")
    x = (rows[:, :-1] / 16).reshape(-1, 8, 8, 1).astype(np.float32)
    y = rows[:, -1].astype(np.int32)
    return Dataset("digits", x, y, x[:0], y[:0], 10, tuple(map(str, range(10))))


def _breast_cancer() -> Dataset:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    x, y = bunch.data.astype(np.float32), bunch.target.astype(np.int32)
    return Dataset("breast_cancer", x, y, x[:0], y[:0], 2, tuple(map(str, bunch.target_names)))


EMBEDDED: dict[str, Callable[[], Dataset]] = {"digits": _digits, "breast_cancer": _breast_cancer}
"""digits: 1,797 images float32 `[8, 8, 1]` in 17 levels from 0 to 1, 10 classes. breast_cancer: 569 x 30,
float32, raw units, 2 classes (malignant, benign). Neither has a test split."""
