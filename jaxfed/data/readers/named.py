"""Data sets by name, each a folder of the data root: the reader, and the origin of its files."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jaxfed.data.dataset import Dataset
from jaxfed.data.readers import cinic10, fed_isic2019
from jaxfed.data.readers.scans import brain_mri, isic2018, pneumonia, pneumonia_mnist
from jaxfed.data.readers.uci import adult, covertype, mushroom, wine_quality


class Named(NamedTuple):
    """A set by name.

    Attributes:
        origin: description of the required files.
        read: folder -> data set, with a keyword `image_size` if it can be chosen; None: the reader is chosen
            by the folder's contents.
        has_image_size: True if `image_size` can be chosen.
    """

    origin: str
    read: Callable[..., Dataset] | None = None
    has_image_size: bool = False


NAMED: dict[str, Named] = {
    "femnist": Named(
        "the train/ and test/ that LEAF's ./preprocess.sh -s niid --sf 1.0 -k 0 -t sample makes "
        "in data/femnist/data"
    ),
    "fed_isic2019": Named(
        f"FLamby's {fed_isic2019.IMAGES}/ and its repository's train_test_split",
    ),
    "cinic10": Named(cinic10.ORIGIN, cinic10.read),
    "isic2018": Named(isic2018.ORIGIN, isic2018.read, has_image_size=True),
    "mini_imagenet": Named(
        "images/ and the few-shot train.csv, val.csv and test.csv, or a folder a class"
    ),
    "wine_quality": Named(
        f"winequality-red.csv and winequality-white.csv of {wine_quality.ORIGIN}", wine_quality.read
    ),
    "adult": Named(f"adult.data and adult.test of {adult.ORIGIN}", adult.read),
    "mushroom": Named(f"agaricus-lepiota.data of {mushroom.ORIGIN}", mushroom.read),
    "covertype": Named(f"covtype.data.gz of {covertype.ORIGIN}", covertype.read),
    "brain_mri": Named(brain_mri.ORIGIN, brain_mri.read, has_image_size=True),
    "pneumonia": Named(pneumonia.ORIGIN, pneumonia.read, has_image_size=True),
    "pneumonia_mnist": Named(pneumonia_mnist.ORIGIN, pneumonia_mnist.read),
}
