"""Numbers of a data set's training rows that other rows are completed and scaled by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxfed.errors import UsageError


class Gaps(NamedTuple):
    """Columns with missing values, and the values that take their place.

    Fields:
        columns: numbers of the columns in which a value was missing, ascending.
        medians: float32, of the training rows' values in these columns.
    """

    columns: tuple[int, ...]
    medians: tuple[float, ...]

    def filled(self, x: np.ndarray, names: Sequence[str] = ()) -> np.ndarray:
        """Replace NaN in x [n, d] by the medians, and append an indicator (0 or 1) for each column.

        Args:
            x: float32, unchanged.
            names: of the d columns, for errors.

        Raises:
            UsageError: a value is missing in another column.
        """
        is_gap = np.isnan(x)
        other = np.setdiff1d(np.flatnonzero(is_gap.any(axis=0)), self.columns)
        if len(other):
            column = int(other[0])
            row = int(np.flatnonzero(is_gap[:, column])[0])
            name = names[column] if len(names) else column
            raise UsageError(
                f"row {row}: column {name!r} has no value, and had one in every row of the training data; "
                "give a value"
            )
        columns, filled = list(self.columns), x.copy()
        for column, median in zip(self.columns, self.medians, strict=True):
            filled[is_gap[:, column], column] = median
        return np.concatenate([filled, is_gap[:, columns].astype(np.float32)], axis=1)


class Standardization(NamedTuple):
    """The transform x' = (x - mean) scale, computed in float64, returned as float32."""

    mean: np.ndarray
    scale: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Transform examples [n, ...]."""
        return ((x - self.mean) * self.scale).astype(np.float32)
