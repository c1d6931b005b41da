"""Data of a server: what it holds itself, in the place of a simulation's data set.

    held = read(folder)
    held.federation(census, number)  # no client's examples

`jaxfed.flower.deployment.dealing` writes the folder: test.npz, validation.npz, public.npz and shared.json.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxfed.data.client_rows import Partition
from jaxfed.data.dataset import UNLABELED
from jaxfed.data.encoding import RowEncoding, encoding_from, encoding_of_arrays
from jaxfed.data.given_examples import examples_of, labels_of
from jaxfed.errors import UsageError
from jaxfed.federation.census import Census
from jaxfed.federation.clients import Federation
from jaxfed.flower.client.client_data import PUBLIC, arrays_of, as_examples
from jaxfed.flower.messages.steps import one_line
from jaxfed.host import safe_files

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
        encoding: of rows as they are outside jaxfed.
        columns: names of the columns of an example; () if they have none.
        parts: {"test", "validation" or "public": (x, y, number of each example in the data set)}.
    """

    num_classes: int
    class_names: tuple[str, ...]
    example: tuple[int, ...]
    dtype: np.dtype
    encoding: RowEncoding
    columns: tuple[str, ...] = ()
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
    """Read a server's folder."""
    shared = _read_shared(folder / SHARED)
    parts = {}
    for name in (*HELD_OUT, PUBLIC.removesuffix(".npz")):
        file = folder / f"{name}.npz"
        if file.exists():
            parts[name] = _part(file, shared)
    if "server" in parts:
        raise UsageError(f"{folder / 'server.npz'}: on a network the labels are at clients")
    return replace(shared, parts=parts)


def _read_shared(file: Path) -> ServerData:
    """Return what shared.json has, without parts."""
    found = safe_files.json_object(safe_files.content_of(file), file)
    for key, (allowed, holds) in _IN_SHARED.items():
        if key not in found and key not in _OPTIONAL:
            raise UsageError(f"{file}: {key} is missing; use {allowed}")
        if key in found and not holds(found[key]):
            shown = f"{found[key]!r}"[:_LONGEST_SHOWN]
            raise UsageError(f"{file}: {key}={one_line(shown)}: use {allowed}")
    number, names = found["num_classes"], found["class_names"]
    if len(names) != number:
        raise UsageError(f"{file}: {len(names)} class_names, and num_classes={number}")
    dtype, *shape = found["example"]
    columns = tuple(found.get("columns", ()))
    if columns and len(columns) != shape[-1]:
        raise UsageError(
            f"{file}: columns has {len(columns)} names for examples of shape {shape}; name each column"
        )
    encoding = encoding_of_arrays(tuple(shape), dtype, columns)
    if "encoding" in found:
        try:
            encoding = encoding_from(found["encoding"])
            form = encoding.prepared(encoding.encoder.blank())
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            raise UsageError(f"{file}: encoding is damaged; deal anew, or leave it out") from None
        if [str(form.dtype), *form.shape[1:]] != found["example"]:
            raise UsageError(f"{file}: encoding gives {form.dtype}{list(form.shape[1:])} examples")
    return ServerData(number, tuple(names), tuple(shape), np.dtype(dtype), encoding, columns)


def _is_form(value: Any) -> bool:
    """True for the type and the shape of an example."""
    return (
        isinstance(value, list)
        and len(value) > 1
        and value[0] in ("uint8", "float32")
        and all(type(size) is int and size > 0 for size in value[1:])
    )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


_LONGEST_SHOWN = 60
_IN_SHARED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "num_classes": ("an integer from 2 on", lambda value: type(value) is int and value > 1),
    "class_names": ("a list of texts", _are_texts),
    "example": ("a list of 'uint8' or 'float32' and the sizes of an example", _is_form),
    "columns": (
        "a list of different texts, the names of the columns of an example",
        lambda value: _are_texts(value) and len(set(value)) == len(value),
    ),
    "encoding": ("what `launch.flower try` writes", lambda value: isinstance(value, dict)),
}
_OPTIONAL = ("columns", "encoding")


def _part(file: Path, shared: ServerData) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x, y and the numbers of a file's examples."""
    arrays = arrays_of(file, "x")
    like = np.zeros((0, *shared.example), shared.dtype)
    x = examples_of(as_examples(examples_of(arrays["x"], str(file))), str(file), like)
    nothing = np.full(len(x), UNLABELED, np.int64)
    y = labels_of(arrays.get("y", nothing), str(file), len(x), shared.num_classes)
    number = arrays.get("number", nothing)
    if number.dtype.kind not in "iu" or number.shape != y.shape:
        raise UsageError(
            f"{file}: number is {number.dtype}{list(number.shape)}; use integers [{len(x)}]"
        )
    return x, y, number
