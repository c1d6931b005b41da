"""Mushroom: edible or poisonous, by 22 properties, each a letter.

    ROOT/mushroom/agaricus-lepiota.data    8,124 rows, the class first

(J. Schlimmer, 1987. 4,208 edible, 3,916 poisonous.)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jaxfed.data.dataset import Dataset
from jaxfed.data.readers.table_encoder import Column, TableEncoder
from jaxfed.data.readers.uci.original import cells, check_count, codes, found

ORIGIN = "https://archive.ics.uci.edu/dataset/73/mushroom"
_FILE = "agaricus-lepiota.data"
_WIDTH, _CLASS, _VEIL_TYPE = 23, 0, 16


def read(folder: Path) -> Dataset:
    """float32 [8124, 21]: the rank of each property's letter among those that occur, from 0.

    Coded as in FedCT: an unknown stalk root, "?", is an additional letter, and the constant veil type is left
    out. The numbers impose an order that the letters do not have, which suffices for trees. FedCT
    standardizes over all rows, test rows included; `preprocessing.kind="standardized"` uses training rows
    only. No test split.

    Raises:
        UsageError: the file is missing, or a row has another width, or another class than e and p.
    """
    file = found(folder, [_FILE], ORIGIN)
    texts = cells(file, _WIDTH)
    check_count(file, len(texts))
    y = codes(file, "class", texts[:, _CLASS], {"e": 0, "p": 1}).astype(np.int32)
    places = [place for place in range(_WIDTH) if place not in (_CLASS, _VEIL_TYPE)]
    kinds, ranks = zip(
        *(np.unique(texts[:, place], return_inverse=True) for place in places), strict=True
    )
    x = np.stack(ranks, axis=1).astype(np.float32)
    columns = tuple(
        Column(str(place), tuple(letters.tolist()), tuple(range(len(letters))))
        for place, letters in zip(places, kinds, strict=True)
    )
    encoder = TableEncoder(columns, tuple(map(str, range(_WIDTH))), str(_CLASS))
    classes = ("edible", "poisonous")
    return Dataset("mushroom", x, y, x[:0], y[:0], 2, classes, encoder=encoder)
