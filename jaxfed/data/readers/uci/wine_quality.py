"""Wine Quality: is it red or white, by eleven measurements and the quality that tasters gave it?

    ROOT/wine_quality/winequality-red.csv, winequality-white.csv    1,599 and 4,898 rows

(P. Cortez et al. "Modeling wine preferences by data mining from physicochemical properties". Decision
Support Systems, 2009.) Published to predict quality, 0 to 10, as in FedCT's text (E.2). FedCT's code predicts
the type, red or white, with quality as a feature; only this explains its accuracies of 0.92 to 0.98. So it is
done here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jaxfed.data.dataset import Dataset
from jaxfed.data.readers.table_encoder import Column, TableEncoder
from jaxfed.data.readers.uci.original import cells, check_count, found, numbers
from jaxfed.errors import UsageError

ORIGIN = "https://archive.ics.uci.edu/dataset/186/wine+quality"
CLASSES = ("red", "white")
_FEATURES = (
    *("fixed acidity", "volatile acidity", "citric acid", "residual sugar", "chlorides"),
    *("free sulfur dioxide", "total sulfur dioxide", "density", "pH", "sulphates", "alcohol"),
    "quality",
)


def read(folder: Path) -> Dataset:
    """Both files, each row once: float32 [5320, 12], 1,359 red and 3,961 white, no test split.

    Duplicate rows of a type are left out, as in FedCT's code; 5,320 of 6,497 remain. FedCT has 5,295: it
    drops rows with missing values of a merged table, while the original files lack none. It standardizes over
    all rows, test rows included; `preprocessing.kind="standardized"` uses training rows only.

    Raises:
        UsageError: a file is missing, or has other columns.
    """
    tables = [_table(found(folder, [f"winequality-{kind}.csv"], ORIGIN)) for kind in CLASSES]
    kept = [table[np.sort(np.unique(table, axis=0, return_index=True)[1])] for table in tables]
    x = np.concatenate(kept).astype(np.float32)
    return Dataset(
        name="wine_quality",
        x=x,
        y=np.repeat(np.arange(2, dtype=np.int32), list(map(len, kept))),
        x_test=x[:0],
        y_test=np.zeros(0, np.int32),
        num_classes=2,
        class_names=CLASSES,
        encoder=TableEncoder(tuple(map(Column, _FEATURES)), _FEATURES, delimiter=";"),
    )


def _table(file: Path) -> np.ndarray:
    """Rows of one file, float64 [n, 12]."""
    header, *rows = cells(file, len(_FEATURES), ";")
    if tuple(header) != _FEATURES:
        raise UsageError(f"{file}: columns {', '.join(header)}; needed are {', '.join(_FEATURES)}")
    check_count(file, len(rows))
    return numbers(file, np.array(rows).reshape(-1, len(_FEATURES)))
