"""Arrays in files: all of a data set in one `.npz` file, or examples beside a table of labels and clients.

    A.npz                              x and y, or MedMNIST's train_images and train_labels
    FOLDER/*.npy, FOLDER/*.csv         embeddings, say, and a table of their labels: row i is row i
    FOLDER/{train*,test*}.{npy,csv}    the same of two splits; files are chosen by name as those of tables are

Rows of several files follow each other in the order of their names, part-2 before part-10, or of a list. An
`.npz` file beside a table holds one array, or its examples are x. A table is any of
`jaxfed.data.readers.tables`. A single `.npy` file of float32 or bytes stays on disk.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from jaxfed.data.dataset import Dataset, dataset_of
from jaxfed.data.given_examples import integer_images
from jaxfed.data.mapped_rows import mapped
from jaxfed.data.readers import guarded, splits_by_name, tables
from jaxfed.data.readers.tables import is_wide
from jaxfed.errors import UsageError

_NAMES = {  # role -> its spellings, in any case
    "x": ("x", "x_train", "train_x", "train_images"),
    "y": ("y", "y_train", "train_y", "train_labels"),
    "x_test": ("x_test", "test_x", "test_images"),
    "y_test": ("y_test", "test_y", "test_labels"),
    "x_validation": ("x_val", "val_x", "x_valid", "x_validation", "val_images"),
    "y_validation": ("y_val", "val_y", "y_valid", "y_validation", "val_labels"),
    "client_id": ("client_id", "writer", "client_id_train"),
    "client_id_test": ("client_id_test", "writer_test"),
    "class_names": ("class_names", "classes"),
}
_OF_EXAMPLES = re.compile(  # names of examples or labels, none of which may stay unread
    r"(.*_)?([xy]|images?|labels?|targets?|data|examples?|features)(_.*)?|[xy]?(train|test|val)\w*"
)


def read(path: Path, client_key: str | None = None) -> Dataset:
    """Read x [n, ...] and y [n] (or [n, 1]); optionally x_test, y_test and others.

    uint8 [n, h, w] is read as grey images and gets a channel; other dtypes become float32, or float64 if that
    would make whole numbers above 2^24 equal. Names may be in any case, X_train and train_x too. The array
    `client_key`, and `client_key`_test if it is there, replace client_id. Test examples without clients are a
    test set for all together. `jaxfed.data.given_examples` defines unlabeled examples. Examples or labels of
    other names are refused.
    """
    arrays = plain_arrays(path)
    present = ", ".join(arrays)
    if client_key is not None:
        if client_key not in arrays:
            wrong = f"no array {client_key} in {path}; there are {present}"
            raise UsageError(wrong, key="client_key", value=client_key)
        keys = {"client_id": client_key, "client_id_test": f"{client_key}_test"}
        chosen = {role: arrays[key] for role, key in keys.items() if key in arrays}
        usual = {name for role in keys for name in _NAMES[role]}
        arrays = {name: each for name, each in arrays.items() if name not in usual} | chosen
    arrays = _by_role(path, arrays)
    suffixes = [suffix for suffix in ("", "_test", "_validation") if arrays.keys() & _both(suffix)]
    for suffix in suffixes[2:]:
        logging.warning("%s: not read: %s", path, ", ".join(sorted(_both(suffix))))
    x, y = list[np.ndarray](), list[np.ndarray]()
    # Without test names, validation examples are the test split.
    for suffix in ("", *suffixes[1:2]):
        if lacking := _both(suffix) - arrays.keys():
            wrong = f"no array {' and no array '.join(sorted(lacking))}; there are {present}"
            raise UsageError(f"{path}: {wrong}; use the names x and y, x_test and y_test")
        x.append(arrays[f"x{suffix}"])
        labels = arrays[f"y{suffix}"]
        y.append(labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels)
    if odd := [each.shape for each in (*y, arrays.get("client_id", y[0])) if each.ndim != 1]:
        raise UsageError(f"{path}: labels or clients have shape {odd[0]}; use one an example, [n]")
    if len(x) == 1:
        x, y = [x[0], x[0][:0]], [y[0], y[0][:0]]
    for role, each in arrays.items():
        if role[0] not in "xy" and each.dtype.kind not in "iuUS":  # NaN would be a client
            raise UsageError(f"{path}: {role} has type {each.dtype}; use integers or names")
    return dataset_of(
        path,
        list(zip(_examples(path, x), y, strict=True)),
        where=f"{path}: y",
        class_names=arrays.get("class_names"),
        clients=(arrays.get("client_id"), arrays.get("client_id_test")),
    )


def _both(suffix: str) -> set[str]:
    return {f"x{suffix}", f"y{suffix}"}


def plain_arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of the file; pickled objects are refused."""
    with path.open("rb") as stream:
        if not zipfile.is_zipfile(stream):  # NumPy would advise to unpickle it
            raise UsageError(f"{path}: not an .npz file, as numpy.savez writes it")
    with guarded(path), path.open("rb") as stream, np.load(stream) as file:
        try:
            arrays = dict(file)
        except ValueError as error:
            if "Object arrays" not in str(error):
                raise
            raise UsageError(
                f"{path}: holds Python objects; save numbers as arrays of a numeric type, and names as "
                "arrays of texts (names.astype(str))"
            ) from error
        if others := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
            raise UsageError(f"{path}: {others[0]} is no array")
        return arrays


def _by_role(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays by their roles in `_NAMES`; of others, examples and labels are refused."""
    roles = {name: role for role, names in _NAMES.items() for name in names}
    arrays_by_role, unread = dict[str, np.ndarray](), list[str]()
    for name, array in arrays.items():
        role = roles.get(name.lower(), "")
        if role and role not in arrays_by_role:
            arrays_by_role[role] = array
        elif _OF_EXAMPLES.fullmatch(name.lower()):
            known = (" or ".join(names) for role, names in _NAMES.items() if role[0] in "xy")
            wrong = f"array {name} is not read; leave it out, or use one of the names"
            raise UsageError(f"{path}: {wrong} {', '.join(known)}")
        else:
            unread.append(name)
    if unread:
        logging.info("%s: arrays that are not read: %s", path, ", ".join(unread))
    return arrays_by_role


def files_in(folder: Path) -> list[Path]:
    """The files in a folder in the order of their names, numbers in them by value; none without a folder."""

    def parts(file: Path) -> list[tuple[str, int]]:
        pieces = re.split(r"(\d+)", file.name)
        return [("", int(part)) if part.isdecimal() else (part, 0) for part in pieces]

    return sorted(filter(Path.is_file, folder.iterdir()), key=parts) if folder.is_dir() else []


def recognizes(files: Sequence[Path]) -> bool:
    """True if arrays are among the files, and a table beside them."""
    return all(_arrays_and_tables(files))


def _arrays_and_tables(files: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    regular = [file for file in files if file.is_file()]
    arrays = [file for file in regular if file.name.lower().endswith((".npy", ".npz"))]
    return arrays, [file for file in regular if file.name.lower().endswith(tables.ENDINGS)]


def read_beside_table(path: Path, files: Sequence[Path], **options: Any) -> Dataset:
    """Read arrays and a table out of these files; `options` are those of `tables.read`."""
    arrays, labels = map(splits_by_name, _arrays_and_tables(files))
    train = [_array(file) for file in arrays.train]
    test = [_array(file) for file in arrays.test] or [train[0][:0]]
    if len(types := {str(part.dtype) for part in (*train, *test)}) > 1:
        raise UsageError(f"{path}: arrays of {' and '.join(sorted(types))}; use one type for all")
    joint = [each[0] if len(each) == 1 else np.concatenate(each) for each in (train, test)]
    x, x_test = _examples(path, joint)
    return tables.read(path, labels, **options, arrays=(x, x_test))


def _array(file: Path) -> np.ndarray:
    """The examples in a file; those of an `.npy` file are memory-mapped."""
    if file.suffix.lower() == ".npy":
        with guarded(file):
            return mapped(file)
    arrays = plain_arrays(file)
    if len(arrays) > 1 and "x" not in arrays:
        raise UsageError(f"{file}: its arrays are {', '.join(arrays)}; name the examples x")
    return arrays["x"] if "x" in arrays else next(iter(arrays.values()))


def _examples(path: Path, splits: list[np.ndarray]) -> list[np.ndarray]:
    """Return the examples of all splits with the types and shapes of `read`."""
    for x in splits:
        is_number = x.dtype.kind in "biuf"
        if wrong := integer_images(x, axes=3) if is_number else f"{x.dtype} are no numbers":
            raise UsageError(f"{path}: x: {wrong}")
    splits = [x[:, None] if x.ndim == 1 else x for x in splits]  # one feature
    wide = (
        is_wide(each)
        for x in splits
        if x.dtype.itemsize > 3 and x.dtype != np.float32 and len(x)
        for each in x.reshape(len(x), -1).T
    )
    widest = np.float64 if any(wide) else np.float32
    with np.errstate(over="ignore"):  # to inf, which Dataset refuses
        typed = [x if x.dtype == np.uint8 else x.astype(widest, copy=False) for x in splits]
    return [x[..., None] if x.dtype == np.uint8 and x.ndim == 3 else x for x in typed]
