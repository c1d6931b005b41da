"""A trained model as a function of raw rows.

predict = result.predictor("fedavg")
predict({"age": 41, "job": "nurse"})     # probabilities, float32 [1, C], of predict.classes
predict.save("model.safetensors")        # `jaxfed.load_predictor` reads it, without data and config
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxfed.api.stages import PLATFORMS, HostStage, Stage
from jaxfed.data.encoding import RowEncoding


@dataclass(frozen=True, eq=False, repr=False)
class Predictor:
    """Probabilities of the classes of raw rows.

    Attributes:
        method: its name in the run.
        classes: their names, in the order of the probabilities.
        encoding: from rows to examples, as in the run.
        stages: from examples to probabilities.
    """

    method: str
    classes: tuple[str, ...]
    encoding: RowEncoding
    stages: tuple[Stage | HostStage, ...]

    def __call__(self, rows: Any) -> np.ndarray:
        """Return probabilities, float32 [n, C], of one row or several.

        Args:
            rows: as the data set's publisher or owner has them (`accepts`).

        Raises:
            UsageError: rows of another kind, a missing column, a text that the training data do not have.
        """
        x = self.encoding(rows)
        for stage in self.stages:
            x = stage(x)
        return x

    def __repr__(self) -> str:
        """One line: the method, its classes, the rows that it takes."""
        return f"Predictor({self.method}: {len(self.classes)} classes; takes {self.accepts})"

    @property
    def accepts(self) -> str:
        """The kinds of rows that it takes, in words."""
        return self.encoding.encoder.accepts
