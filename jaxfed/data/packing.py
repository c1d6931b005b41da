"""A federation in a folder, from which its examples are read as needed.

    pack(((x_of(k), y_of(k)) for k in range(10**6)), "clients", test=(x_test, y_test))
    federation = Federation.open_packed("clients")

FOLDER/
  packed.json        format, num_classes, validation and test (numbers of examples), files {name: size}
  x.npy              examples [n, ...]: each client's labeled and unlabeled ones, client after client; then
                     the validation and test examples
  y.npy              int32 [n], classes in the same order, -1 if unknown
  counts.npy         int64 [2, M], each client's numbers of labeled and unlabeled examples

Clients are written one after another: memory holds a few of them at a time, and the labels of all. `x` is
memory-mapped, not read; only its size and shape are checked. The other files have checksums.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from jaxfed.data.client_rows import ClientRows, Partition
from jaxfed.data.dataset import UNLABELED, Dataset
from jaxfed.data.given_examples import GivenExamples, each_of, num_classes_of
from jaxfed.data.mapped_rows import mapped
from jaxfed.data.readers import guarded
from jaxfed.errors import UsageError
from jaxfed.host import storage
from jaxfed.host.location import location
from jaxfed.host.safe_files import array, content_of, json_object

Pair = tuple[npt.ArrayLike, npt.ArrayLike]

_HEADER, _EXAMPLES, _FORMAT = "packed.json", "x.npy", 2
_AT_ONCE = 2**24  # bytes of examples in memory


def pack(
    clients: Iterable[Pair],
    folder: str | os.PathLike[str],
    *,
    test: Pair | None = None,
    validation: Pair | None = None,
    num_classes: int | None = None,
) -> Path:
    """Write a federation to a new folder.

    A killed process leaves no folder of this name, only a hidden one next to it that the next call removes.

    Args:
        clients: an iterable of each client's examples [n_j, ...] and labels, -1 for unlabeled; read once.
        folder: a path that does not exist.
        test, validation, num_classes: as for `Federation.from_clients`.

    Raises:
        UsageError: the folder exists; arguments that `Federation.from_clients` refuses; examples whose type
            does not convert to that of the first client's.
        OSError: for example, the disk is full; nothing is left behind.
    """
    place = location(folder, "folder")
    if place.exists():
        raise UsageError(f"{place}: it exists; give a new folder, or delete it first")
    examples = GivenExamples("pack", num_classes)
    with storage.begun_folder(place.absolute()) as begun:
        made = begun / "made"
        made.mkdir()  # with the mode that the user's umask gives
        with (made / _EXAMPLES).open("wb") as stream:
            rows = _Rows(stream)
            counts = list(_written(rows, examples, each_of(clients, "pack: `clients`")))
            sizes = {"validation": 0, "test": 0}
            for name, part in (("validation", validation), ("test", test)):
                if part is not None:
                    examples.add(part, name)
                    rows.append(*examples.joined()[:2])
                    sizes[name] = len(rows.y[-1])
            y = rows.finished()
        np.save(made / "y.npy", y)
        np.save(made / "counts.npy", np.concatenate(counts, axis=1))
        classes = num_classes_of("pack", int(y.max()), num_classes)
        files = {file.name: _sum_of(file) for file in sorted(made.glob("*.npy"))}
        header = {"format": _FORMAT, "num_classes": classes, "files": files, **sizes}
        with storage.whole_file(made / _HEADER) as file:
            json.dump(header, file, indent=1)
        made.rename(place)
    return place


class _Rows:
    """An `.npy` file of examples whose number is known at the end, and their labels."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._like: np.ndarray | None = None
        self.y: list[np.ndarray] = []

    def append(self, x: np.ndarray, y: np.ndarray) -> None:
        if self._like is None:
            self._like = x[:0]
            self._write_shape(0)
        if not np.can_cast(x.dtype, self._like.dtype, "safe"):
            wrong = f"some examples are {self._like.dtype} and some {x.dtype}"
            raise UsageError(f"pack: {wrong}; give all the same type")
        with storage.naming(Path(self._stream.name)):
            self._stream.write(np.ascontiguousarray(x, self._like.dtype).data)
        self.y.append(y)

    def finished(self) -> np.ndarray:
        """Write the number of examples; return their labels."""
        y = np.concatenate(self.y)
        if not len(y):
            raise UsageError("pack: the clients have no examples")
        self._stream.seek(0)
        self._write_shape(len(y))  # NumPy leaves room for a first axis of any length
        self._stream.flush()
        os.fsync(self._stream.fileno())
        return y

    def _write_shape(self, number: int) -> None:
        assert self._like is not None
        form = {"descr": np.lib.format.dtype_to_descr(self._like.dtype), "fortran_order": False}
        shape = (number, *self._like.shape[1:])
        np.lib.format.write_array_header_1_0(self._stream, {**form, "shape": shape})


def _written(rows: _Rows, examples: GivenExamples, clients: Iterable[Pair]) -> Iterator[np.ndarray]:
    """Write clients, labeled examples first; yield their columns of `counts`, [2, k]."""

    def flushed() -> np.ndarray:
        x, y, sizes = examples.joined()
        owner, is_unlabeled = np.repeat(np.arange(len(sizes)), sizes), y < 0
        order = np.argsort(2 * owner + is_unlabeled, kind="stable")
        rows.append(x[order], y[order])
        unlabeled = np.bincount(owner[is_unlabeled], minlength=len(sizes))
        return np.stack([sizes - unlabeled, unlabeled])

    for client in clients:
        examples.add(client, "clients[{}]")
        if examples.num_bytes >= _AT_ONCE:
            yield flushed()
    yield flushed()


def _sum_of(file: Path) -> str:
    return str(file.stat().st_size) if file.name == _EXAMPLES else storage.file_checksum(file)


def recognizes(folder: Path) -> bool:
    """True if `pack` wrote the folder."""
    return (folder / _HEADER).is_file()


def read(folder: Path) -> Dataset:
    """Return the clients' examples as a data set with a client for each example; x stays on disk.

    A config distributes labels by `federation.labeled_fraction` among all examples whose class is known.
    """
    held = opened(folder)
    x, y, sizes = held["x"], held["y"], held["partition"].sizes.sum(axis=0)
    if len(held["validation"]):
        raise UsageError(
            f"{folder}: it holds validation examples, and a config draws these from clients' own; use "
            "jaxfed.Federation.open_packed, or pack without them"
        )
    num_own, client_id = int(sizes.sum()), np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    classes = tuple(map(str, range(held["num_classes"])))
    splits = x[:num_own], y[:num_own], x[num_own:], y[num_own:]
    return Dataset(str(folder), *splits, len(classes), classes, client_id=client_id)


def opened(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the arguments of a `Federation` that `pack` wrote, with x memory-mapped.

    A folder that is damaged, half copied or of another version is refused.
    """
    place = location(folder, "folder")
    if not recognizes(place):
        raise UsageError(f"{place}: no {_HEADER} in it; give a folder that jaxfed.data.pack wrote")
    with guarded(str(place)):
        header = json_object(content_of(place / _HEADER), place / _HEADER)
        if (version := header.get("format")) != _FORMAT:
            wrong = f"format {version}, and this version of jaxfed reads {_FORMAT}"
            raise UsageError(f"{place}: {wrong}; pack the clients again")
        for name, written in header["files"].items():
            if (checksum := _sum_of(place / Path(name).name)) != written:
                what = "bytes" if name == _EXAMPLES else "size and checksum"
                raise _damaged(
                    place, f"{name} has {what} {checksum}, and was written with {written}"
                )
        x = mapped(place / _EXAMPLES)
        y, counts = (array(content_of(place / f"{name}.npy")) for name in ("y", "counts"))
        labeled, unlabeled = counts
        classes = header["num_classes"]
        num_own = int(counts.sum())
        end = num_own + header["validation"]
        if (
            not len(x) == len(y) == end + header["test"]
            or min(header["validation"], header["test"], counts.min(initial=0)) < 0
            or not UNLABELED <= y.min(initial=0) <= y.max(initial=0) < classes
        ):
            raise _damaged(place, "its files do not fit together")
    start = np.cumsum(labeled + unlabeled) - labeled - unlabeled
    held = ClientRows(start, labeled), ClientRows(start + labeled, unlabeled)
    return {
        **{"x": x, "y": y, "num_classes": classes},
        "partition": Partition(*held, ClientRows.empty(len(labeled))),
        **{"validation": np.arange(num_own, end), "test": np.arange(end, len(y))},
    }


def _damaged(folder: Path, wrong: str) -> UsageError:
    advice = "it is damaged or half copied: copy it again, or pack the clients again"
    return UsageError(f"{folder}: {wrong}; {advice}")
