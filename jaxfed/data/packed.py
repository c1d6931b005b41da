"""A federation in a folder, as `jaxfed.data.pack` writes it and `Federation.open_packed` reads it.

FOLDER/
  packed.json        format, num_classes, class_names, client_names, clients, example [type, ...],
                     rows {own, new, ...: n}, files {name: size}
  x.npy              examples [n, ...]: each client's labeled and unlabeled ones, client after client; then
                     the clients' new points, client after client; then the validation, test, server and
                     public examples
  y.npy              int32 [n], classes in the same order, -1 if unknown
  counts.npy         int64 [3, M], each client's numbers of labeled, unlabeled and new examples
  test_client.npy    int32 [n_test], the client of each test example, if the source has it
  public_labels.npy  int32 [n_u], labels of the public examples, if they are public as well

`x` is memory-mapped, not read; only its size and shape are checked. The other files have checksums.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxfed.data.client_rows import ClientRows, Partition
from jaxfed.data.dataset import UNLABELED, Dataset
from jaxfed.data.mapped_rows import mapped
from jaxfed.data.readers.guard import guarded
from jaxfed.errors import UsageError
from jaxfed.host import storage
from jaxfed.host.location import location
from jaxfed.host.safe_files import Damaged, array, content_of, json_object

HEADER, EXAMPLES = "packed.json", "x.npy"
FORMAT = 1
_FILES = {EXAMPLES, "y.npy", "counts.npy", "test_client.npy", "public_labels.npy"}
APART = (
    "validation",
    "test",
    "server",
    "public",
)  # examples that are no client's own, in this order


class Packed(NamedTuple):
    """Contents of such a folder.

    Fields:
        x: [n, ...], memory-mapped and read-only.
        y: int32 [n].
        partition: each client's rows.
        num_classes: C.
        class_names: C names.
        client_names: M names, or none.
        apart: name -> int64, row numbers of the validation, test, server and public examples.
        test_client: int32 [n_test], or None.
        public_labels: int32 [n_u], or None.
        num_public_classes: number of classes of the public labels, or 0.
    """

    x: np.ndarray
    y: np.ndarray
    partition: Partition
    num_classes: int
    class_names: tuple[str, ...]
    client_names: tuple[str, ...]
    apart: dict[str, np.ndarray]
    test_client: np.ndarray | None
    public_labels: np.ndarray | None
    num_public_classes: int


def recognizes(folder: Path) -> bool:
    """True if `pack` wrote the folder."""
    return (folder / HEADER).is_file()


def opened(folder: str | os.PathLike[str]) -> Packed:
    """Open a folder that `pack` wrote.

    Raises:
        UsageError: the folder does not exist, or is damaged, half copied or of another version.
    """
    place = location(folder, "folder")
    if not recognizes(place):
        there = "no such folder" if not place.is_dir() else f"no {HEADER} in it"
        raise UsageError(f"{place}: {there}; give a folder that jaxfed.data.pack wrote")
    with guarded(str(place)):
        return _opened(place)


def read(folder: Path) -> Dataset:
    """Return the clients' examples as a data set with a client for each example; x stays on disk.

    A config distributes labels by `federation.labeled_fraction` among all examples whose class is known. The
    test split is the test examples or, without any, the clients' new points.

    Raises:
        UsageError: as for `opened`, or the folder has examples that a config draws itself.
    """
    packed = opened(folder)
    labeled, unlabeled, new = packed.partition.sizes
    extra = [name for name in ("validation", "server", "public") if len(packed.apart[name])]
    if extra or (new.any() and len(packed.apart["test"])):
        held = ", ".join(extra) or "both new and test"
        raise UsageError(
            f"{folder}: it holds {held} examples, and a config draws these from clients' own; use "
            "jaxfed.Federation.open_packed, or pack without them"
        )
    own = int((labeled + unlabeled).sum())
    clients = np.arange(len(new), dtype=np.int32)
    is_new = bool(new.any())
    return Dataset(
        name=str(folder),
        x=packed.x[:own],
        y=packed.y[:own],
        x_test=packed.x[own:],
        y_test=packed.y[own:],
        num_classes=packed.num_classes,
        class_names=packed.class_names,
        client_names=packed.client_names,
        client_id=np.repeat(clients, labeled + unlabeled),
        client_id_test=np.repeat(clients, new) if is_new else packed.test_client,
    )


def _opened(folder: Path) -> Packed:
    header = _header(folder)
    x = mapped(folder / EXAMPLES)
    columns = {
        name.removesuffix(".npy"): array(content_of(folder / name, most=None))
        for name in header["files"]
        if name != EXAMPLES
    }
    y, counts, rows = columns["y"], columns["counts"], header["rows"]
    classes = header["num_classes"]
    labeled, unlabeled, new = counts
    numbers = {"own": int((labeled + unlabeled).sum()), "new": int(new.sum())}
    if (
        numbers.items() - rows.items()
        or [str(x.dtype), *x.shape[1:]] != header["example"]
        or len(x) != sum(rows.values())
        or y.shape != x.shape[:1]
        or (counts < 0).any()
        or not UNLABELED <= y.min(initial=0) <= y.max(initial=0) < classes
        or len(header["class_names"]) != classes
        or len(header["client_names"]) not in (0, counts.shape[1])
    ):
        raise _damaged(folder, "its files do not fit together")
    start = np.cumsum(labeled + unlabeled) - labeled - unlabeled
    ends = np.cumsum([rows[name] for name in ("own", "new", *APART)])
    return Packed(
        x,
        y,
        Partition(
            ClientRows(start, labeled),
            ClientRows(start + labeled, unlabeled),
            ClientRows.contiguous(new, first=numbers["own"]),
        ),
        classes,
        tuple(header["class_names"]),
        tuple(header["client_names"]),
        {name: np.arange(end - rows[name], end) for name, end in zip(APART, ends[2:], strict=True)},
        columns.get("test_client"),
        columns.get("public_labels"),
        header["num_public_classes"],
    )


def _header(folder: Path) -> dict[str, Any]:
    """Return the header after checking version, sizes and checksums."""
    try:
        header = json_object(content_of(folder / HEADER), folder / HEADER)
    except Damaged as error:
        raise _damaged(folder, f"{HEADER} is no header") from error
    version = header.get("format")
    if version != FORMAT:
        raise UsageError(
            f"{folder}: format {version}, and this version of jaxfed reads {FORMAT}; pack the clients again, "
            "or use the version that wrote it"
        )
    if header["files"].keys() - _FILES:
        raise _damaged(folder, f"{HEADER} names other files than pack writes")
    for name, written in header["files"].items():
        file = folder / name
        if not file.is_file():
            raise _damaged(folder, f"{name} is missing")
        there = str(file.stat().st_size) if name == EXAMPLES else storage.file_checksum(file)
        if there != written:
            what = "bytes" if name == EXAMPLES else "size and checksum"
            raise _damaged(folder, f"{name} has {what} {there}, and was written with {written}")
    return header


def _damaged(folder: Path, wrong: str) -> UsageError:
    return UsageError(
        f"{folder}: {wrong}; it is damaged or half copied: copy it again, or pack the clients again"
    )
