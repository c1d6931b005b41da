"""A federation in a folder, from which its examples are read as needed.

    pack(((x_of(k), y_of(k)) for k in range(10**6)), "clients", test=(x_test, y_test))
    federation = Federation.open_packed("clients")

FOLDER/
  packed.json        format, num_classes, validation and test (numbers of examples), files (checksums), and
                     a checksum of these
  x.npy              examples [n, ...]: each client's labeled and unlabeled ones, client after client; then
                     the validation and test examples
  y.npy              int32 [n], classes in the same order, -1 if unknown
  counts.npy         int64 [2, M], each client's numbers of labeled and unlabeled examples

Clients are written one after another: memory holds a few of them at a time, and the labels of all. `x` is
memory-mapped, not read; only its size and shape are checked.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxfed.data.client_rows import ClientRows, Partition
from jaxfed.data.dataset import Dataset
from jaxfed.data.given_examples import GivenExamples, each_of, num_classes_of
from jaxfed.data.mapped_rows import mapped
from jaxfed.data.readers import guarded
from jaxfed.errors import UsageError
from jaxfed.host import storage
from jaxfed.host.location import location
from jaxfed.host.safe_files import array, content_of, json_object

Pair = tuple[npt.ArrayLike, npt.ArrayLike]
Block = tuple[np.ndarray, np.ndarray, np.ndarray]  # x, y, and columns of `counts`

_HEADER, _EXAMPLES, _FORMAT = "packed.json", "x.npy", 3
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
    path = location(folder, "folder")
    if path.exists():
        raise UsageError(f"{path}: it exists; give a new folder, or delete it first")
    examples = GivenExamples("pack", num_classes)
    others = {"validation": validation, "test": test}
    with storage.begun_folder(path.absolute()) as begun:
        made = begun / "made"
        made.mkdir()  # with the mode that the user's umask gives
        y, counts = _written(made / _EXAMPLES, _blocks(examples, clients, others))
        np.save(made / "y.npy", y)
        np.save(made / "counts.npy", counts)
        header = {
            "format": _FORMAT,
            "num_classes": num_classes_of("pack", int(y.max(initial=-1)), num_classes),
            "files": _checksums(made),
            **{name: 0 if part is None else np.size(part[1]) for name, part in others.items()},
        }
        with storage.whole_file(made / _HEADER) as file:
            json.dump(header | {"checksum": _checksum(header)}, file, indent=1)
        made.rename(path)
    return path


def _blocks(
    examples: GivenExamples, clients: Iterable[Pair], others: Mapping[str, Pair | None]
) -> Iterator[Block]:
    """Yield some clients at a time, each one's labeled examples first; then the examples of no client."""

    def of_clients() -> Block:
        x, y, sizes = examples.joined()
        owner, is_unlabeled = np.repeat(np.arange(len(sizes)), sizes), y < 0
        order = np.argsort(2 * owner + is_unlabeled, kind="stable")
        unlabeled = np.bincount(owner[is_unlabeled], minlength=len(sizes))
        return x[order], y[order], np.stack([sizes - unlabeled, unlabeled])

    for client in each_of(clients, "pack: `clients`"):
        examples.add(client, "clients[{}]")
        if examples.num_bytes >= _AT_ONCE:
            yield of_clients()
    yield of_clients()
    for name, part in others.items():
        if part is not None:
            examples.add(part, name)
            x, y, _ = examples.joined()
            yield x, y, np.zeros((2, 0), np.int64)


def _written(file: Path, blocks: Iterable[Block]) -> tuple[np.ndarray, np.ndarray]:
    """Write all x to an `.npy` file, of the first one's type; return all y, and `counts`."""
    form, labels, counts = dict[str, Any](), list[np.ndarray](), list[np.ndarray]()
    with file.open("wb") as stream:
        for x, y, columns in blocks:
            if not form:
                form = np.lib.format.header_data_from_array_1_0(x[:0])
                np.lib.format.write_array_header_1_0(stream, form)
            if not np.can_cast(x.dtype, form["descr"], "safe"):
                wrong = f"some examples are {np.dtype(form['descr'])} and some {x.dtype}"
                raise UsageError(f"pack: {wrong}; give all the same type")
            with storage.naming(file):
                stream.write(np.ascontiguousarray(x, form["descr"]).data)
            labels.append(y)
            counts.append(columns)
        stream.seek(0)  # NumPy leaves room for a first axis of any length
        form["shape"] = (sum(map(len, labels)), *form["shape"][1:])
        np.lib.format.write_array_header_1_0(stream, form)
        stream.flush()
        os.fsync(stream.fileno())
    return np.concatenate(labels), np.concatenate(counts, axis=1)


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
    path = location(folder, "folder")
    if not recognizes(path):
        raise UsageError(f"{path}: no {_HEADER} in it; give a folder that jaxfed.data.pack wrote")
    with guarded(str(path)):
        header = json_object(content_of(path / _HEADER), path / _HEADER)
        if (version := header.get("format")) != _FORMAT:
            wrong = f"format {version}, and this version of jaxfed reads {_FORMAT}"
            raise UsageError(f"{path}: {wrong}; pack the clients again")
        checksum = header.pop("checksum")
        x = mapped(path / _EXAMPLES)
        y, counts = (array(content_of(path / f"{name}.npy")) for name in ("y", "counts"))
        labeled, unlabeled = counts
        clients = ClientRows.contiguous(labeled + unlabeled)
        num_own, classes = int(clients.sizes.sum()), header["num_classes"]
        end = num_own + header["validation"]
        if (
            checksum != _checksum(header)
            or header["files"] != _checksums(path)
            or not len(x) == len(y) == end + header["test"]
        ):
            wrong = "its files do not fit together, it is damaged or half copied"
            raise UsageError(f"{path}: {wrong}; copy it again, or pack the clients again")
    held = ClientRows(clients.start, labeled), ClientRows(clients.start + labeled, unlabeled)
    return {
        **{"x": x, "y": y, "num_classes": classes},
        "partition": Partition(*held, ClientRows.empty(len(labeled))),
        **{"validation": np.arange(num_own, end), "test": np.arange(end, len(y))},
    }


def _checksums(folder: Path) -> dict[str, str]:
    return {name: storage.file_checksum(folder / name) for name in ("counts.npy", "y.npy")}


def _checksum(header: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(header, sort_keys=True).encode())
