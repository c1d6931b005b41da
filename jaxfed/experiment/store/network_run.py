"""network.json in the workdir of a run over a network: what its results need in place of the clients' data.

It has the form of an example, the encoding of rows, and the counts that clients sent in their hellos.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxfed.data.client_rows import Partition
from jaxfed.data.encoding import RowEncoding, encoding_from
from jaxfed.experiment.store.records import read_json
from jaxfed.experiment.store.workdir import NETWORK, write_json
from jaxfed.federation.census import Census
from jaxfed.federation.clients import Federation
from jaxfed.host import safe_files

_NO_ROWS = np.zeros(0, np.int64)


class NetworkRun(NamedTuple):
    """Substitute for a simulation's data in the results of a network run (`Simulation`).

    Fields:
        class_names: C names.
        dtype: type of an example's numbers.
        shape: shape of an example.
        encoding: encoding of rows from outside jaxfed.
        census: counts and sums of all clients.
    """

    class_names: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    encoding: RowEncoding
    census: Census

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

    def write(self, workdir: Path) -> None:
        """Write the file."""
        census = self.census._asdict()
        if self.census.sums is not None:
            census["sums"] = self.census.sums._asdict()
        described = {"encoding": self.encoding.described(), "census": census}
        write_json(workdir / NETWORK, {**self._asdict(), **described})


def is_network(workdir: Path) -> bool:
    """True for the workdir of a run over a network."""
    return (workdir / NETWORK).exists()


def read(workdir: Path) -> NetworkRun | None:
    """Read the file; None for the workdir of a simulation."""
    if not is_network(workdir):
        return None
    given = read_json(workdir, NETWORK)
    with safe_files.guarded(workdir / NETWORK):
        given["encoding"] = encoding_from(given["encoding"])
        found: NetworkRun = safe_files.typed(NetworkRun, given, "network")
        return found._replace(dtype=np.dtype(found.dtype).name)
