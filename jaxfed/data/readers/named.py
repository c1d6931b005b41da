"""Data sets by name, each a folder of the data root: the reader, and the origin of its files."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jaxfed.data.dataset import Dataset
from jaxfed.data.readers import image_sets as images
from jaxfed.data.readers import uci


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
    "fed_isic2019": Named(images.FED_ISIC2019),
    "cinic10": Named(images.CINIC10, images.cinic10),
    "isic2018": Named(images.ISIC2018, images.isic2018, has_image_size=True),
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
    "brain_mri": Named(images.BRAIN_MRI, images.brain_mri, has_image_size=True),
    "pneumonia": Named(images.PNEUMONIA, images.pneumonia, has_image_size=True),
    "pneumonia_mnist": Named(images.PNEUMONIA_MNIST, images.pneumonia_mnist),
}
