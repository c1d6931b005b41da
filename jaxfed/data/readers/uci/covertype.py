"""Covertype: which of seven kinds of forest grows on 30 x 30 m, by 54 cartographic variables.

    ROOT/covertype/covtype.data.gz (or covtype.data)    581,012 rows, the class 1..7 last
    ROOT/covertype/covtype.NAME.data.gz                 a part of it

(J. Blackard, D. Dean, 1999.)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from absl import logging

from jaxfed.data.cache import cached_arrays, files_key
from jaxfed.data.dataset import Dataset
from jaxfed.data.readers.uci.original import check_count, found
from jaxfed.errors import UsageError

ORIGIN = "https://archive.ics.uci.edu/dataset/31/covertype"
CLASSES = (
    *("spruce/fir", "lodgepole pine", "ponderosa pine", "cottonwood/willow", "aspen"),
    *("Douglas-fir", "krummholz"),
)
_FILES = ("covtype.data.gz", "covtype.data")
_ROWS, _WIDTH = 581_012, 55
_FORMAT = 1


def read(folder: Path) -> Dataset:
    """float32 [n, 54], raw units, classes 0..6; no test split. Parsed once and cached.

    FedCT uses raw units; networks and graphs need `preprocessing.kind="standardized"`. Without the whole file
    a part of it is read, and its number of rows is logged. The first 15,120 rows are balanced; the whole file
    is not.

    Raises:
        UsageError: no file, or a row that is not 55 integers, the last of them 1 to 7.
    """
    parts = sorted(path.name for path in folder.glob("covtype.*.data.gz"))
    file = found(folder, [*_FILES, *parts], ORIGIN)

    def make(target: Path) -> None:
        try:
            table = np.loadtxt(file, dtype=np.int32, delimiter=",", ndmin=2)
        except (ValueError, OSError, EOFError) as error:
            raise UsageError(f"{file}: {' '.join(str(error).split())}") from error
        check_count(file, len(table))
        if table.shape[1] != _WIDTH:
            raise UsageError(f"{file}: rows of {table.shape[1]} cells; use {_WIDTH}")
        y = table[:, -1] - 1
        if not (len(y) and y.min() >= 0 and y.max() < len(CLASSES)):
            raise UsageError(f"{file}: the last column has other values than 1..{len(CLASSES)}")
        np.save(target / "x.npy", table[:, :-1].astype(np.float32))
        np.save(target / "y.npy", y)

    arrays = cached_arrays("covertype", files_key([file], _FORMAT, str(file.resolve())), make)
    x, y = arrays["x"], arrays["y"]
    if len(y) != _ROWS:
        logging.warning("%s: %d rows of Covertype's %d", file, len(y), _ROWS)
    return Dataset("covertype", x, y, x[:0], y[:0], len(CLASSES), CLASSES)
