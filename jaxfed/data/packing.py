"""Write a federation to a folder, from which its examples are read as needed.

    pack(((x_of(k), y_of(k)) for k in range(10**6)), "clients", test=(x_test, y_test))
    federation = Federation.open_packed("clients")

`jaxfed.data.packed` describes the folder. Clients are written one after another: memory holds a few of them
at a time, and the numbers of examples of all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from jaxfed.data.client_rows import ClientRows, Partition
from jaxfed.data.dataset import Dataset
from jaxfed.data.given_examples import (
    GivenExamples,
    check_labels_of,
    each_of,
    num_classes_of,
    with_unknown_classes,
)
from jaxfed.data.mapped_rows import gathered
from jaxfed.data.packed import APART, EXAMPLES, FORMAT, HEADER
from jaxfed.errors import UsageError
from jaxfed.host import storage
from jaxfed.host.location import location

Pair = tuple[npt.ArrayLike, npt.ArrayLike]

_AT_ONCE = 2**24  # bytes of examples in memory


class Held(Protocol):
    """The attributes of a `Federation` that are written."""

    x: np.ndarray
    y: np.ndarray
    partition: Partition
    num_classes: int
    validation: np.ndarray
    test: np.ndarray
    server: np.ndarray
    public: np.ndarray
    public_labels: np.ndarray | None
    num_public_classes: int
    predicted: np.ndarray | None
    census: object


def pack(
    clients: Iterable[Pair] | Dataset | Held,
    folder: str | os.PathLike[str],
    *,
    test: Pair | None = None,
    validation: Pair | None = None,
    new: Iterable[Pair] | None = None,
    server: Pair | None = None,
    public: npt.ArrayLike | Pair | None = None,
    public_labeled: bool = False,
    num_classes: int | None = None,
) -> Path:
    """Write a federation to a new folder.

    A killed process leaves no folder of this name, only a hidden one next to it that the next call removes.

    Args:
        clients: an iterable of each client's examples [n_j, ...] and labels, -1 for unlabeled, which is read
            once; or a `Federation`; or a `Dataset` with a client for each row, such as `load` returns for
            LEAF's files or for a table with a `client_key`; its test split becomes `test`. Arguments after
            `folder` are allowed only with an iterable.
        folder: a path that does not exist.
        test, validation, new, server, public, public_labeled, num_classes: as for `Federation.from_clients`.

    Returns:
        The folder.

    Raises:
        UsageError: the folder exists; arguments that `Federation.from_clients` refuses; examples whose type
            does not convert to that of the first client's.
        OSError: for example, the disk is full; nothing is left behind.
    """
    place = location(folder, "folder")
    if place.exists():
        raise UsageError(f"{place}: it exists; give a new folder, or delete it first")
    apart = (validation, test, server, public)
    given: dict[str, Any] = {"new": new, **dict(zip(APART, apart, strict=True))}
    is_whole = isinstance(clients, Dataset) or hasattr(clients, "census")
    given_too = {**given, "public_labeled": public_labeled or None, "num_classes": num_classes}
    others = [name for name, part in given_too.items() if part is not None]
    if is_whole and others:
        kind = type(clients).__name__
        raise UsageError(f"pack: a {kind} has these by itself; leave out {', '.join(others)}")
    with storage.begun_folder(place.absolute()) as begun, ExitStack() as stack:
        made = begun / "made"
        made.mkdir()  # with the mode that the user's umask gives
        writer = _Writer(made, stack)
        if isinstance(clients, Dataset):
            _write_dataset(writer, clients)
        elif is_whole:
            _write_federation(writer, clients)  # type: ignore[arg-type]
        else:
            given["public"] = with_unknown_classes(public, "pack: `public`")
            _write_clients(writer, clients, given, public_labeled, num_classes)  # type: ignore[arg-type]
        writer.finish()
        made.rename(place)
    return place


class _Column:
    """An `.npy` file to which rows are appended."""

    def __init__(self, file: Path, like: np.ndarray, stack: ExitStack) -> None:
        self._stream = stack.enter_context(file.open("wb"))
        self.dtype, self.shape, self._count = like.dtype, like.shape[1:], 0
        self._header()
        self._first = self._stream.tell()

    def append(self, rows: np.ndarray) -> None:
        self._stream.write(np.ascontiguousarray(rows, self.dtype).data)
        self._count += len(rows)

    def finish(self) -> None:
        self._stream.seek(0)
        self._header()  # NumPy leaves room for a first axis of any length
        assert self._stream.tell() == self._first
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()

    def _header(self) -> None:
        described = {
            "descr": np.lib.format.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": (self._count, *self.shape),
        }
        np.lib.format.write_array_header_1_0(self._stream, described)


class _Writer:
    """The files of a folder; sections are written in the order of `jaxfed.data.packed`."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._x: _Column | None = None
        self._y = _Column(folder / "y.npy", np.zeros(0, np.int32), stack)
        self.rows = dict.fromkeys(("own", "new", *APART), 0)
        self.highest = -1
        self.class_names: Sequence[str] = ()
        self.client_names: Sequence[str] = ()
        self.num_classes = self.num_public_classes = 0
        self.columns: dict[str, np.ndarray] = {}  # further files

    def append(self, section: str, x: np.ndarray, y: np.ndarray) -> None:
        """Write examples and classes of a section."""
        if self._x is None:
            self._x = _Column(self._folder / EXAMPLES, x, self._stack)
        if not np.can_cast(x.dtype, self._x.dtype, "safe"):
            raise UsageError(
                f"pack: some examples are {self._x.dtype} and some {x.dtype}; give all the same type"
            )
        with storage.naming(self._folder / EXAMPLES):
            self._x.append(x)
            self._y.append(y)
        self.highest = max(self.highest, int(y.max(initial=self.highest)))
        self.rows[section] += len(y)

    def copy(self, section: str, x: np.ndarray, y: np.ndarray, rows: np.ndarray) -> None:
        """Write these rows of x and y, in parts."""
        size = max(1, _AT_ONCE // max(1, x[:1].nbytes))
        groups = [rows[start : start + size] for start in range(0, len(rows), size)]
        for group, part in zip(groups, gathered(x, groups), strict=True):
            self.append(section, part, y[group])

    def finish(self) -> None:
        """Write the remaining files, the header last."""
        if self._x is None or not any(self.rows.values()):
            raise UsageError("pack: the clients have no examples")
        self._x.finish()
        self._y.finish()
        for name, column in self.columns.items():
            np.save(self._folder / f"{name}.npy", column)
        files = {
            file.name: str(file.stat().st_size)
            if file.name == EXAMPLES
            else storage.file_checksum(file)
            for file in sorted(self._folder.glob("*.npy"))
        }
        header = {
            "format": FORMAT,
            "num_classes": self.num_classes,
            "class_names": list(self.class_names) or list(map(str, range(self.num_classes))),
            "client_names": list(self.client_names),
            "num_public_classes": self.num_public_classes,
            "clients": self.columns["counts"].shape[1],
            "example": [str(self._x.dtype), *self._x.shape],
            "rows": self.rows,
            "files": files,
        }
        with storage.whole_file(self._folder / HEADER) as stream:
            json.dump(header, stream, indent=1)


def _write_clients(
    writer: _Writer,
    clients: Iterable[Pair],
    given: dict[str, Any],
    public_labeled: bool,
    num_classes: int | None,
) -> None:
    examples = GivenExamples("pack", num_classes)
    clients = each_of(clients, "pack: `clients`")
    later_clients = each_of(() if given["new"] is None else given["new"], "pack: `new`")
    own = list(_written(writer, examples, "own", clients, "clients[{}]"))
    later = list(_written(writer, examples, "new", later_clients, "new[{}]"))
    labeled, unlabeled = map(np.concatenate, zip(*own, strict=True))
    new = np.concatenate([np.zeros(0, np.int64), *(a + b for a, b in later)])
    if given["new"] is None:
        new = np.zeros_like(labeled)
    if len(new) != len(labeled) or not len(labeled):
        raise UsageError(
            f"pack: {len(labeled)} clients and {len(new)} of their new points; one client is needed at "
            "least, and as many of both"
        )
    classes = {name: np.zeros(0, np.int32) for name in APART}
    for name in APART:
        if given[name] is not None:
            examples.add(given[name], name)
            x, classes[name], _ = examples.joined()
            writer.append(name, x, classes[name])
    writer.columns["counts"] = np.stack([labeled, unlabeled, new])
    writer.num_classes = num_classes_of("pack", writer.highest, num_classes)
    check_labels_of("pack", classes["server"], classes["public"], public_labeled)
    if public_labeled:
        writer.columns["public_labels"] = classes["public"]
        writer.num_public_classes = writer.num_classes


def _written(
    writer: _Writer, examples: GivenExamples, section: str, clients: Iterable[Pair], name: str
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Write clients, labeled examples first; yield their numbers of labeled and unlabeled ones."""

    def flushed() -> tuple[np.ndarray, np.ndarray]:
        x, y, sizes = examples.joined()
        owner, is_unlabeled = np.repeat(np.arange(len(sizes)), sizes), y < 0
        order = np.arange(len(y))
        if section == "own":
            order = np.argsort(2 * owner + is_unlabeled, kind="stable")
        writer.append(section, x[order], y[order])
        unlabeled = np.bincount(owner[is_unlabeled], minlength=len(sizes))
        return sizes - unlabeled, unlabeled

    for client in clients:
        examples.add(client, name)
        if examples.num_bytes >= _AT_ONCE:
            yield flushed()
    yield flushed()


def _write_federation(writer: _Writer, federation: Held) -> None:
    for name, allowed in (
        ("census", "pack where all clients are"),
        ("predicted", "pack the examples that the features were made of"),
    ):
        if getattr(federation, name) is not None:
            raise UsageError(
                f"pack: the federation has `{name}`, which a folder cannot hold; {allowed}"
            )
    part, x, y = federation.partition, federation.x, federation.y
    labeled, unlabeled, new = (ClientRows.of(rows) for rows in part)
    own = Partition(labeled, unlabeled, ClientRows.empty(len(new))).joined
    writer.copy("own", x, y, own.joined)
    writer.copy("new", x, y, new.joined)
    for name in APART:
        writer.copy(name, x, y, getattr(federation, name))
    writer.columns["counts"] = part.sizes
    writer.num_classes = federation.num_classes
    writer.num_public_classes = federation.num_public_classes
    if federation.public_labels is not None:
        writer.columns["public_labels"] = np.asarray(federation.public_labels, np.int32)


def _write_dataset(writer: _Writer, data: Dataset) -> None:
    if data.client_id is None or data.has_gaps:
        wrong, allowed = "cells are missing", "fill them first"
        if data.client_id is None:
            wrong, allowed = "it names no clients", "load it with client_key=COLUMN"
        raise UsageError(f"pack: data set {data.name!r}: {wrong}; {allowed}")
    columns = (data.client_id, data.client_id_test)
    number = 1 + max(int(ids.max(initial=-1)) for ids in columns if ids is not None)
    labeled, unlabeled = (
        ClientRows.by_owner(rows, data.client_id[rows], number)
        for rows in map(np.flatnonzero, (data.is_labeled, ~data.is_labeled))
    )
    part = Partition(labeled, unlabeled, ClientRows.empty(number))
    writer.copy("own", data.x, data.y, part.joined.joined)
    writer.copy("validation", *data.validation, np.arange(len(data.validation[1])))
    writer.copy("test", data.x_test, data.y_test, np.arange(len(data.y_test)))
    writer.columns["counts"] = part.sizes
    writer.num_classes = data.num_classes
    writer.class_names, writer.client_names = data.class_names, data.client_names
    if data.client_id_test is not None:
        writer.columns["test_client"] = np.asarray(data.client_id_test, np.int32)
