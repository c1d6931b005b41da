"""Data of a server: what it holds itself, in the place of a simulation's data set.

    held = read(folder)
    held.federation(census, number)  # no client's examples

The folder has test.npz, validation.npz, public.npz and shared.json, as `deployment.dealing` writes them.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jaxfed.data.dataset import UNLABELED, Partition
from jaxfed.data.readers.npz import plain_arrays
from jaxfed.errors import UsageError
from jaxfed.federation.census import Census
from jaxfed.federation.clients import Federation
from jaxfed.flower.client.client_data import PUBLIC, as_examples

SHARED = "shared.json"
HELD_OUT = ("test", "validation", "server")
_NOBODY = np.zeros(0, np.int64)


@dataclass(frozen=True)
class ServerData:
    """Examples that a server holds, and the form of everybody's.

    Attributes:
        num_classes: C.
        class_names: of the classes.
        example: shape of one example.
        dtype: of examples.
        parts: {"test", "validation" or "public": (x, y, number of each example in the data set)}.
    """

    num_classes: int
    class_names: tuple[str, ...]
    example: tuple[int, ...]
    dtype: np.dtype
    parts: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=dict)

    def federation(self, census: Census | None, num_clients: int) -> Federation:
        """Return the federation as the server knows it."""
        nobody = (_NOBODY,) * num_clients
        x, y, count = [np.zeros((0, *self.example), self.dtype)], [_NOBODY], 0
        places: dict[str, Any] = {}
        for name, (part, labels, _) in self.parts.items():
            x.append(part)
            y.append(labels)
            places[name] = np.arange(count, count + len(part))
            count += len(part)
        return Federation(
            np.concatenate(x),
            np.concatenate(y).astype(np.int32),
            Partition(nobody, nobody, nobody),
            self.num_classes,
            census=census,
            **places,
        )

    @property
    def numbers(self) -> np.ndarray:
        """int64 [n], the number of each example in the data set, -1 for none."""
        return np.concatenate([_NOBODY, *(number for *_, number in self.parts.values())])

    def checksums(self) -> dict[str, str]:
        """Return a checksum of each array, to detect changed data."""
        return {
            f"{kind}_{name}": f"{a.dtype}{list(a.shape)} {zlib.crc32(a.tobytes()):08x}"
            for name, arrays in self.parts.items()
            for kind, a in zip("xy", arrays[:2], strict=True)
        }


def read(folder: Path) -> ServerData:
    """Read a server's folder.

    Raises:
        UsageError: a file is missing, damaged, or does not fit the others.
    """
    shared: dict[str, Any] = _read_shared(folder)
    dtype, *shape = shared["example"]
    parts = {}
    for name in (*HELD_OUT, PUBLIC.removesuffix(".npz")):
        file = folder / f"{name}.npz"
        if file.exists():
            parts[name] = _part(file, tuple(shape), np.dtype(dtype))
    if "server" in parts:
        raise UsageError(f"{folder / 'server.npz'}: on a network the labels are at clients")
    return ServerData(
        int(shared["num_classes"]),
        tuple(shared["class_names"]),
        tuple(shape),
        np.dtype(dtype),
        parts,
    )


def _read_shared(folder: Path) -> dict[str, Any]:
    """Return the contents of a server's shared.json.

    Raises:
        UsageError: it is missing or damaged.
    """
    file = folder / SHARED
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise UsageError(f"{file}: damaged; an object is needed")
    return found


def _part(
    file: Path, shape: tuple[int, ...], dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    arrays = plain_arrays(file)
    if "x" not in arrays:
        raise UsageError(f"{file}: no array x")
    x = as_examples(arrays["x"])
    y = arrays.get("y", np.full(len(x), UNLABELED, np.int32))
    if x.shape[1:] != shape or x.dtype != dtype or len(y) != len(x):
        raise UsageError(
            f"{file}: {x.dtype}{list(x.shape)} and {len(y)} labels; examples of this run are "
            f"{dtype}{list(shape)}"
        )
    return x, y, arrays.get("number", np.full(len(x), UNLABELED, np.int64))
