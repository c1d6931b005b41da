"""Data of a server: what it holds itself, in place of a simulation's data set.

The folder has shared.json (`Shared`), and test.npz, validation.npz and public.npz if the server holds them;
`jaxfed.flower.deployment.trial` writes it for a trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from jaxfed.data.client_rows import Partition
from jaxfed.errors import UsageError
from jaxfed.federation.census import Census
from jaxfed.federation.clients import Federation
from jaxfed.flower.client.client_data import Points, points_of, settings_from
from jaxfed.flower.client.client_run import checksum
from jaxfed.flower.messages import records
from jaxfed.flower.messages.setup import Form
from jaxfed.host import safe_files
from jaxfed.settings import Allowed, check

SHARED = "shared.json"
PARTS = ("test", "validation", "public")  # files, and fields of a federation
_NOBODY = np.zeros(0, np.int64)


def _is_form(value: Any) -> bool:
    """True for the type and the shape of an example."""
    return (
        isinstance(value, list)
        and len(value) > 1
        and value[0] in ("uint8", "float32")
        and all(type(size) is int and size > 0 for size in value[1:])
    )


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Content of shared.json: names of the classes, and the form of everybody's examples."""

    class_names: Annotated[Sequence[str], Allowed(lambda names: len(names) > 1, "a list of names")]
    example: Annotated[
        Any, Allowed(_is_form, "a list of 'uint8' or 'float32' and the sizes of an example")
    ]
    columns: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Check the fields."""
        check(self)
        if self.columns and not len(self.columns) == len({*self.columns}) == self.example[-1]:
            raise UsageError(
                f"columns has {len({*self.columns})} names for examples {self.example}; name each column"
            )

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.class_names)


class ServerData(NamedTuple):
    """Holdings of a server: `shared`, and the examples of each of `PARTS` that is there."""

    shared: Shared
    parts: dict[str, Points]

    @property
    def form(self) -> Form:
        """Form of everybody's examples."""
        dtype, *shape = self.shared.example
        public = self.parts["public"].x if "public" in self.parts else None
        return Form(dtype, tuple(shape), tuple(self.shared.columns), checksum(public))

    def federation(self, census: Census | None, num_clients: int) -> Federation:
        """Return the federation as the server knows it."""
        nobody = (_NOBODY,) * num_clients
        dtype, *shape = self.shared.example
        nothing = Points(np.zeros((0, *shape), dtype), np.zeros(0, np.int32))
        x, y = map(np.concatenate, zip(nothing, *self.parts.values(), strict=True))
        ends = np.cumsum([len(part.y) for part in self.parts.values()])
        rows = np.split(np.arange(len(y)), ends)[:-1] if self.parts else []
        return Federation(
            x,
            y,
            Partition(nobody, nobody, nobody),
            self.shared.num_classes,
            census=census,
            **dict(zip(self.parts, rows, strict=True)),
        )

    def checksums(self) -> dict[str, str]:
        """Return a checksum of each array, to detect changed data."""
        return {name: records.fingerprint(part._asdict()) for name, part in self.parts.items()}


def read(folder: Path) -> ServerData:
    """Read a server's folder."""
    file = folder / SHARED
    shared = settings_from(Shared, safe_files.json_object(safe_files.content_of(file), file), file)
    dtype, *shape = shared.example
    like = np.zeros((0, *shape), dtype)
    files = {name: folder / f"{name}.npz" for name in PARTS}
    parts = {
        name: points_of(each, shared.num_classes, like)[0]
        for name, each in files.items()
        if each.exists()
    }
    return ServerData(shared, parts)
