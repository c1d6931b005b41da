"""Data of a server: what it holds itself, in the place of a simulation's data set.

    held = read(folder)
    held.federation(census, number)  # no client's examples

The folder has shared.json (`Shared`), and test.npz, validation.npz and public.npz if the server holds them;
`jaxfed.flower.deployment.dealing` writes it for a trial.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from jaxfed.data.client_rows import Partition
from jaxfed.data.dataset import UNLABELED
from jaxfed.data.encoding import RowEncoding, encoding_from, encoding_of_arrays
from jaxfed.data.given_examples import examples_of, labels_of
from jaxfed.errors import UsageError
from jaxfed.federation.census import Census
from jaxfed.federation.clients import Federation
from jaxfed.flower.client.client_data import PUBLIC, arrays_of, as_examples, settings_from
from jaxfed.host import safe_files
from jaxfed.settings import Allowed, Described, Ge, check

SHARED = "shared.json"
HELD_OUT = ("test", "validation", "server")
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
    """Content of shared.json: the form of everybody's examples.

    Attributes:
        num_classes: C.
        class_names: of the classes.
        example: type and sizes of one example.
        columns: names of the columns of an example; () if they have none.
        encoding: of rows as they are outside jaxfed, which `launch.flower try` writes.
    """

    num_classes: Annotated[int, Ge(2)]
    class_names: Sequence[str]
    example: Annotated[
        Any, Allowed(_is_form, "a list of 'uint8' or 'float32' and the sizes of an example")
    ]
    columns: Sequence[str] = ()
    encoding: Annotated[dict[str, Any] | None, Described("what `launch.flower try` writes")] = None

    def __post_init__(self) -> None:
        """Check the fields."""
        check(self)
        number, shape = len(self.class_names), self.example[1:]
        if number != self.num_classes:
            raise UsageError(f"{number} class_names, and num_classes={self.num_classes}")
        if self.columns and not len(self.columns) == len({*self.columns}) == shape[-1]:
            raise UsageError(
                f"columns has {len({*self.columns})} names for examples of shape {shape}; name each column"
            )

    def row_encoding(self) -> RowEncoding:
        """Return the encoding of rows: the one of the file, or that of arrays."""
        dtype, *shape = self.example
        if self.encoding is None:
            return encoding_of_arrays(tuple(shape), dtype, tuple(self.columns))
        try:
            found = encoding_from(self.encoding)
            form = found.prepared(found.encoder.blank())
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            raise UsageError("encoding is damaged; deal anew, or leave it out") from None
        if [str(form.dtype), *form.shape[1:]] != self.example:
            raise UsageError(f"encoding gives {form.dtype}{list(form.shape[1:])} examples")
        return found


@dataclass(frozen=True)
class ServerData:
    """Examples that a server holds, and the form of everybody's.

    Attributes:
        shared: the form.
        encoding: of rows as they are outside jaxfed.
        parts: {"test", "validation" or "public": (x, y, number of each example in the data set)}.
    """

    shared: Shared
    encoding: RowEncoding
    parts: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=dict)

    def federation(self, census: Census | None, num_clients: int) -> Federation:
        """Return the federation as the server knows it."""
        nobody = (_NOBODY,) * num_clients
        dtype, *shape = self.shared.example
        x, y, count = [np.zeros((0, *shape), dtype)], [_NOBODY], 0
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
            self.shared.num_classes,
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
    file = folder / SHARED
    shared = settings_from(Shared, safe_files.json_object(safe_files.content_of(file), file), file)
    try:
        encoding = shared.row_encoding()
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None
    if (folder / "server.npz").exists():
        raise UsageError(f"{folder / 'server.npz'}: on a network the labels are at clients")
    files = {name: folder / f"{name}.npz" for name in (*HELD_OUT, PUBLIC.removesuffix(".npz"))}
    parts = {name: _part(each, shared) for name, each in files.items() if each.exists()}
    return ServerData(shared, encoding, parts)


def _part(file: Path, shared: Shared) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x, y and the numbers of a file's examples."""
    arrays = arrays_of(file, "x")
    dtype, *shape = shared.example
    like = np.zeros((0, *shape), dtype)
    x = examples_of(as_examples(examples_of(arrays["x"], str(file))), str(file), like)
    nothing = np.full(len(x), UNLABELED, np.int64)
    y = labels_of(arrays.get("y", nothing), str(file), len(x), shared.num_classes)
    number = arrays.get("number", nothing)
    if number.dtype.kind not in "iu" or number.shape != y.shape:
        raise UsageError(
            f"{file}: number is {number.dtype}{list(number.shape)}; use integers [{len(x)}]"
        )
    return x, y, number
