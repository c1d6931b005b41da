"""Substitute for a run's data that its models and results need: shapes, the encoding of rows, and counts.

A run over a network has it as network.json in its workdir, from what the clients sent before the first round;
a saved predictor (`jaxfed.api.predictor`) in its JSON file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxfed.data.client_rows import Partition
from jaxfed.data.encoding import RowEncoding, encoding_from
from jaxfed.experiment.store.records import read_json
from jaxfed.experiment.store.workdir import NETWORK, write_json
from jaxfed.federation.census import Census, feature_sums
from jaxfed.federation.clients import Federation
from jaxfed.host import safe_files

_NO_ROWS = np.zeros(0, np.int64)


class DataForm(NamedTuple):
    """Substitute for a simulation's data (`Simulation`)."""

    class_names: tuple[str, ...]
    dtype: str  # of an example's numbers
    shape: tuple[int, ...]  # of an example
    encoding: RowEncoding  # of rows from outside jaxfed
    census: Census  # counts and sums of all clients

    @classmethod
    def of(
        cls, class_names: tuple[str, ...], federation: Federation, encoding: RowEncoding
    ) -> DataForm:
        """Return the form of a simulation's federation."""
        part, x = federation.partition, federation.x
        sums = feature_sums(x, np.concatenate([part.joined.joined, federation.server]))
        examples = tuple(part.sizes.sum(axis=0).tolist())
        labels = tuple(federation.label_counts)
        census = Census(federation.capacity, federation.max_labels, sums, labels, examples)
        return cls(class_names, x.dtype.name, x.shape[1:], encoding, census)

    def federation(self, *_: Any, **__: Any) -> Federation:
        """Return the federation without examples; arguments are those of a simulation's."""
        nobody = (_NO_ROWS,) * len(self.census.examples)
        return Federation(
            np.zeros((0, *self.shape), self.dtype),
            np.zeros(0, np.int32),
            Partition(nobody, nobody, nobody),
            len(self.class_names),
            census=self.census,
        )

    def row_encoding(self, *_: Any) -> RowEncoding:
        """Return the encoding of rows; arguments are those of a simulation's."""
        return self.encoding

    def described(self) -> dict[str, Any]:
        """Return the form as a JSON object, which `form_from` reads."""
        census = self.census._asdict()
        if self.census.sums is not None:
            census["sums"] = self.census.sums._asdict()
        return {**self._asdict(), "encoding": self.encoding.described(), "census": census}

    def write(self, workdir: Path) -> None:
        """Write network.json."""
        write_json(workdir / NETWORK, self.described())


def form_from(described: dict[str, Any]) -> DataForm:
    """Return the form that `DataForm.described` describes; for guarded callers."""
    encoding = encoding_from(described["encoding"])
    form: DataForm = safe_files.typed(DataForm, {**described, "encoding": encoding}, "form")
    return form._replace(dtype=np.dtype(form.dtype).name)


def is_network(workdir: Path) -> bool:
    """True for the workdir of a run over a network."""
    return (workdir / NETWORK).exists()


def read(workdir: Path) -> DataForm | None:
    """Read network.json; None for the workdir of a simulation."""
    if not is_network(workdir):
        return None
    content = read_json(workdir, NETWORK)
    with safe_files.guarded(workdir / NETWORK):
        return form_from(content)
