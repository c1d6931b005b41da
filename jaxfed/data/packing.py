"""A federation in a folder, from which its examples are read as needed.

    pack(((x_of(k), y_of(k)) for k in range(10**6)), "clients", test=(x_test, y_test))
    federation = Federation.open_packed("clients")

FOLDER/
  packed.json        format, num_classes, class_names, client_names, clients, example [type, ...],
                     rows {own, validation, test: n}, files {name: size}
  x.npy              examples [n, ...]: each client's labeled and unlabeled ones, client after client; then
                     the validation and test examples
  y.npy              int32 [n], classes in the same order, -1 if unknown
  counts.npy         int64 [3, M], each client's numbers of labeled and unlabeled examples, and 0
  test_client.npy    int32 [n_test], the client of each test example, if the source has it

Clients are written one after another: memory holds a few of them at a time, and the labels of all. `x` is
memory-mapped, not read; only its size and shape are checked. The other files have checksums.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from jaxfed.data.client_rows import ClientRows, Partition
from jaxfed.data.dataset import UNLABELED, Dataset
from jaxfed.data.given_examples import GivenExamples, each_of, num_classes_of
from jaxfed.data.mapped_rows import gathered, mapped
from jaxfed.data.readers.guard import guarded
from jaxfed.errors import UsageError
from jaxfed.host import storage
from jaxfed.host.location import location
from jaxfed.host.safe_files import array, content_of, json_object

Pair = tuple[npt.ArrayLike, npt.ArrayLike]

_HEADER, _EXAMPLES, _FORMAT = "packed.json", "x.npy", 1
_COLUMNS = ("y", "counts", "test_client")  # files beside the examples
_APART = ("validation", "test")  # examples that are no client's own
_AT_ONCE = 2**24  # bytes of examples in memory


def pack(
    clients: Iterable[Pair] | Dataset,
    folder: str | os.PathLike[str],
    *,
    test: Pair | None = None,
    validation: Pair | None = None,
    num_classes: int | None = None,
) -> Path:
    """Write a federation to a new folder.

    A killed process leaves no folder of this name, only a hidden one next to it that the next call removes.

    Args:
        clients: an iterable of each client's examples [n_j, ...] and labels, -1 for unlabeled, which is read
            once; or a `Dataset` with a client for each row, such as `load` returns for LEAF's files or for a
            table with a `client_key`; its test split becomes `test`. Other arguments need an iterable.
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
    given: dict[str, Any] = {"validation": validation, "test": test, "num_classes": num_classes}
    if isinstance(clients, Dataset):
        clients, given = _of_dataset(clients, given)
    with storage.begun_folder(place.absolute()) as begun:
        made = begun / "made"
        made.mkdir()  # with the mode that the user's umask gives
        with (made / _EXAMPLES).open("wb") as stream:
            _write_clients(_Writer(made, stream), clients, given)
        made.rename(place)
    return place


class _Writer:
    """The files of a folder; sections are written in the order of the module's docstring."""

    def __init__(self, folder: Path, stream: IO[bytes]) -> None:
        self._folder, self._stream = folder, stream
        self._like: np.ndarray | None = None
        self.y = {name: [np.zeros(0, np.int32)] for name in ("own", *_APART)}

    def append(self, section: str, x: np.ndarray, y: np.ndarray) -> None:
        """Write examples of a section, and remember their classes."""
        with storage.naming(self._folder / _EXAMPLES):
            if self._like is None:
                self._like = x[:0]
                self._write_shape(self._like, 0)
            if not np.can_cast(x.dtype, self._like.dtype, "safe"):
                wrong = f"some examples are {self._like.dtype} and some {x.dtype}"
                raise UsageError(f"pack: {wrong}; give all the same type")
            self._stream.write(np.ascontiguousarray(x, self._like.dtype).data)
        self.y[section].append(y.astype(np.int32))

    def finish(self, counts: np.ndarray, num_classes: int, **more: Any) -> None:
        """Write the remaining files, the header last; `more` are further files and entries of the header."""
        y = np.concatenate([part for parts in self.y.values() for part in parts])
        if self._like is None or not len(y):
            raise UsageError("pack: the clients have no examples")
        self._stream.seek(0)
        self._write_shape(self._like, len(y))  # NumPy leaves room for a first axis of any length
        self._stream.flush()
        os.fsync(self._stream.fileno())
        columns = {"y": y, "counts": counts, "test_client": more.pop("test_client", None)}
        for name, column in columns.items():
            if column is not None:
                np.save(self._folder / f"{name}.npy", column)
        header = {
            "format": _FORMAT,
            "num_classes": num_classes,
            "class_names": list(map(str, range(num_classes))),
            "client_names": [],
            "clients": counts.shape[1],
            "example": [str(self._like.dtype), *self._like.shape[1:]],
            "rows": {name: sum(map(len, parts)) for name, parts in self.y.items()},
            "files": {file.name: _sum_of(file) for file in sorted(self._folder.glob("*.npy"))},
        }
        with storage.whole_file(self._folder / _HEADER) as stream:
            json.dump(header | more, stream, indent=1)

    def _write_shape(self, like: np.ndarray, number: int) -> None:
        described: dict[str, Any] = {"descr": np.lib.format.dtype_to_descr(like.dtype)}
        described |= {"fortran_order": False, "shape": (number, *like.shape[1:])}
        np.lib.format.write_array_header_1_0(self._stream, described)


def _sum_of(file: Path) -> str:
    return str(file.stat().st_size) if file.name == _EXAMPLES else storage.file_checksum(file)


def _write_clients(writer: _Writer, clients: Iterable[Pair], given: dict[str, Any]) -> None:
    examples = GivenExamples("pack", given["num_classes"])
    counts = list(_written(writer, examples, each_of(clients, "pack: `clients`")))
    for name in ("validation", "test"):
        if given[name] is not None:
            examples.add(given[name], name)
            writer.append(name, *examples.joined()[:2])
    highest = max(int(part.max(initial=-1)) for parts in writer.y.values() for part in parts)
    found = num_classes_of("pack", highest, given["num_classes"])
    writer.finish(np.concatenate(counts, axis=1), found, **given.get("header", {}))


def _written(
    writer: _Writer, examples: GivenExamples, clients: Iterable[Pair]
) -> Iterator[np.ndarray]:
    """Write clients, labeled examples first; yield their rows of `counts`, [3, k]."""

    def flushed() -> np.ndarray:
        x, y, sizes = examples.joined()
        owner, is_unlabeled = np.repeat(np.arange(len(sizes)), sizes), y < 0
        order = np.argsort(2 * owner + is_unlabeled, kind="stable")
        writer.append("own", x[order], y[order])
        unlabeled = np.bincount(owner[is_unlabeled], minlength=len(sizes))
        return np.stack([sizes - unlabeled, unlabeled, np.zeros_like(sizes)])

    for client in clients:
        examples.add(client, "clients[{}]")
        if examples.num_bytes >= _AT_ONCE:
            yield flushed()
    yield flushed()


def _of_dataset(data: Dataset, given: dict[str, Any]) -> tuple[Iterable[Pair], dict[str, Any]]:
    """The clients of a data set, and what `_write_clients` is given for them."""
    if others := [name for name, part in given.items() if part is not None]:
        raise UsageError(f"pack: a Dataset has these by itself; leave out {', '.join(others)}")
    if data.client_id is None:
        wrong = "it names no clients; load it with client_key=COLUMN"
        raise UsageError(f"pack: data set {data.name!r}: {wrong}")
    columns = (data.client_id, data.client_id_test)
    number = 1 + max(int(ids.max(initial=-1)) for ids in columns if ids is not None)
    rows = ClientRows.by_owner(np.arange(len(data.y)), data.client_id, number)
    names = {"class_names": list(data.class_names), "client_names": list(data.client_names)}
    given |= {"num_classes": data.num_classes, "header": names}
    given["header"]["test_client"] = data.client_id_test
    if len(data.y_test):
        given["test"] = data.x_test, data.y_test
    return ((gathered(data.x, own), data.y[own]) for own in rows), given


# Reading.


class Packed(NamedTuple):
    """Arguments of a `Federation`, with x memory-mapped; and what only a `Dataset` has of the folder."""

    federation: dict[str, Any]
    class_names: tuple[str, ...]
    client_names: tuple[str, ...]
    test_client: np.ndarray | None


def recognizes(folder: Path) -> bool:
    """True if `pack` wrote the folder."""
    return (folder / _HEADER).is_file()


def read(folder: Path) -> Dataset:
    """Return the clients' examples as a data set with a client for each example; x stays on disk.

    A config distributes labels by `federation.labeled_fraction` among all examples whose class is known.
    """
    held, class_names, client_names, test_client = opened(folder)
    sizes = held["partition"].sizes.sum(axis=0)
    if len(held["validation"]):
        raise UsageError(
            f"{folder}: it holds validation examples, and a config draws these from clients' own; use "
            "jaxfed.Federation.open_packed, or pack without them"
        )
    own = int(sizes.sum())
    return Dataset(
        name=str(folder),
        x=held["x"][:own],
        y=held["y"][:own],
        x_test=held["x"][own:],
        y_test=held["y"][own:],
        num_classes=held["num_classes"],
        class_names=class_names,
        client_names=client_names,
        client_id=np.repeat(np.arange(len(sizes), dtype=np.int32), sizes),
        client_id_test=test_client,
    )


def opened(folder: str | os.PathLike[str]) -> Packed:
    """Open a folder that `pack` wrote; one that is damaged, half copied or of another version is refused."""
    place = location(folder, "folder")
    if not recognizes(place):
        raise UsageError(f"{place}: no {_HEADER} in it; give a folder that jaxfed.data.pack wrote")
    with guarded(str(place)):
        header = json_object(content_of(place / _HEADER), place / _HEADER)
        if (version := header.get("format")) != _FORMAT:
            wrong = f"format {version}, and this version of jaxfed reads {_FORMAT}"
            raise UsageError(f"{place}: {wrong}; pack the clients again")
        for name, written in header["files"].items():
            if (there := _sum_of(place / Path(name).name)) != written:
                what = "bytes" if name == _EXAMPLES else "size and checksum"
                raise _damaged(place, f"{name} has {what} {there}, and was written with {written}")
        columns = {
            name: array(content_of(place / f"{name}.npy"))
            for name in _COLUMNS
            if f"{name}.npy" in header["files"]
        }
        return _opened(place, header, mapped(place / _EXAMPLES), columns)


def _opened(
    folder: Path, header: dict[str, Any], x: np.ndarray, columns: dict[str, np.ndarray]
) -> Packed:
    y, rows, classes = columns["y"], header["rows"], header["num_classes"]
    labeled, unlabeled, _ = counts = columns["counts"]
    names, client_names = header["class_names"], header["client_names"]
    if (
        rows["own"] != counts.sum()
        or [str(x.dtype), *x.shape[1:]] != header["example"]
        or not len(x) == sum(rows[name] for name in ("own", *_APART)) == len(y)
        or (counts < 0).any()
        or not UNLABELED <= y.min(initial=0) <= y.max(initial=0) < classes == len(names)
        or len(client_names) not in (0, counts.shape[1])
    ):
        raise _damaged(folder, "its files do not fit together")
    start = np.cumsum(labeled + unlabeled) - labeled - unlabeled
    ends = np.cumsum([rows[name] for name in ("own", *_APART)])
    apart = {
        name: np.arange(end - rows[name], end) for name, end in zip(_APART, ends[1:], strict=True)
    }
    federation = {
        "x": x,
        "y": y,
        "partition": Partition(
            ClientRows(start, labeled),
            ClientRows(start + labeled, unlabeled),
            ClientRows.empty(len(labeled)),
        ),
        "num_classes": classes,
    }
    of_test = columns.get("test_client")
    return Packed(federation | apart, tuple(names), tuple(client_names), of_test)


def _damaged(folder: Path, wrong: str) -> UsageError:
    advice = "it is damaged or half copied: copy it again, or pack the clients again"
    return UsageError(f"{folder}: {wrong}; {advice}")
