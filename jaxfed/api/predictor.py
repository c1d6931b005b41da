"""A trained model as a function of raw rows.

predict = result.predictor("fedavg")
predict({"age": 41, "job": "nurse"})     # probabilities, float32 [1, C], of predict.classes
predict.save("model.safetensors")        # `jaxfed.load_predictor` reads it, without data and config
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from jaxfed.api.predictor_file import Contents, contents_of, exported_program, save_predictor
from jaxfed.api.stages import PLATFORMS
from jaxfed.host import storage
from jaxfed.host.location import file_to_write


class Predictor(Contents):
    """Probabilities of the classes of raw rows.

    Attributes:
        method: its name in the run.
        classes: their names, in the order of the probabilities.
        encoding: from rows to examples, as in the run.
        stages: from examples to probabilities.
    """

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

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the numbers of a row that the exported program takes; () for arrays and images."""
        return self.encoding.encoder.names

    def save(self, file: str | os.PathLike[str], *, platforms: tuple[str, ...] = PLATFORMS) -> Path:
        """Write the predictor to one file, which `jaxfed.load_predictor` reads.

        Args:
            file: its path; an existing one is replaced. Missing folders are created.
            platforms: devices that it can be used on: "cpu", "cuda", "tpu", "rocm".

        Returns:
            The path.

        Raises:
            UsageError: a model of each client; a network that cannot be compiled for a platform; a file that
                cannot be written; flatbuffers is missing.
        """
        return save_predictor(self, file, platforms)

    def export(self, *, platforms: tuple[str, ...] = PLATFORMS) -> bytes:
        """Return the numeric part as a program that runs without jaxfed.

            program = jax.export.deserialize(bytearray(content))
            program.call(x)        # x [n, ...] with any n from 1 on -> probabilities, float32 [n, C]

        x is what `encode` gives for rows, before scaling and features: uint8 images, or float32 numbers,
        NaN where one is missing; float64 under `jax.enable_x64()` if a column needs it (`Column.is_wide`).
        `inputs` names the numbers of a table, where a text is a number of its own (0 or 1). Weights are
        constants of the program.

        Args:
            platforms: as for `save`.

        Raises:
            UsageError: as for `save`.
        """
        return exported_program(self, platforms)

    def save_exported(
        self, file: str | os.PathLike[str], *, platforms: tuple[str, ...] = PLATFORMS
    ) -> Path:
        """Write `export` to a file; return its path."""
        path = file_to_write(file, "file")
        content = self.export(platforms=platforms)
        path.parent.mkdir(parents=True, exist_ok=True)
        with storage.whole_file(path, "wb") as stream:
            stream.write(content)
        return path

    def encode(self, rows: Any) -> np.ndarray:
        """Return rows as the exported program takes them, [n, ...].

        Raises:
            UsageError: as for a call.
        """
        x = self.encoding.encoder(rows)
        self.encoding.prepared(x)  # which refuses gaps that the run never had
        is_narrow = self.encoding.scaling is None and x.dtype == np.float64
        return x.astype(np.float32) if is_narrow else x


def load_predictor(file: str | os.PathLike[str]) -> Predictor:
    """Read a predictor that `Predictor.save` wrote: the same probabilities, bit for bit, on the same device.

    Neither the data, the config nor the run are needed, nor a registered network.

    Raises:
        UsageError: one line: no such file, another file, a damaged one, one of a later version;
            flatbuffers is missing.
    """
    found = contents_of(file)
    return Predictor(found.method, found.classes, found.encoding, found.stages)
