"""CINIC-10: CIFAR-10's images, and downscaled images of ImageNet, in CIFAR-10's classes.

    ROOT/cinic10/{train,valid,test}/{airplane,automobile,...,truck}/*.png    90,000 images of 32 x 32 each

(L. N. Darlow et al. "CINIC-10 is not ImageNet or CIFAR-10". arXiv:1810.03505, 2018.)
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from absl import logging

from jaxfed.data.dataset import Dataset
from jaxfed.data.readers.image_files import images_in
from jaxfed.data.readers.image_folder import Examples, decoded
from jaxfed.errors import UsageError

ORIGIN = "train/ and test/ of CINIC-10.tar.gz of https://doi.org/10.7488/ds/2448"
CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_SIZE = 32
_WHOLE = 90_000


def read(folder: Path) -> Dataset:
    """uint8 [90000, 32, 32, 3] twice: the publishers' train and test; gray images among them become RGB.

    Their `valid`, 90,000 more, is not read, as in SAGE's code. An incomplete split, as after an interrupted
    extraction, is logged.

    Raises:
        UsageError: a class has no images, or an image cannot be read.
    """
    data = decoded(folder, _split(folder, "train"), _split(folder, "test"), CLASSES, _SIZE)
    return dataclasses.replace(data, name="cinic10")


def _split(folder: Path, split: str) -> Examples:
    examples: Examples = []
    for name in CLASSES:
        files = images_in(folder / split / name)
        if not files:
            raise UsageError(f"{folder}: no images in {split}/{name}; needed are {ORIGIN}")
        examples.extend((file, name) for file in files)
    if len(examples) != _WHOLE:
        text = "%s: %d images, where the publishers have %d"
        logging.warning(text, folder / split, len(examples), _WHOLE)
    return examples
