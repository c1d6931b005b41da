"""Arrays in an `.npz` file: x and y, or MedMNIST's train_images and train_labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxfed.data.dataset import (
    UNLABELED,
    Dataset,
    class_numbers,
    client_names,
    client_numbers,
)
from jaxfed.data.labels import check_test_labels, read_labels
from jaxfed.errors import UsageError

_NAMES = {
    "x": ("x", "x_train", "train_images"),
    "y": ("y", "y_train", "train_labels"),
    "x_test": ("x_test", "test_images"),
    "y_test": ("y_test", "test_labels"),
    "client_id": ("client_id", "writer", "client_id_train"),
    "client_id_test": ("client_id_test", "writer_test"),
    "class_names": ("class_names", "classes"),
    "subclass": ("subclass",),
    "subclass_test": ("subclass_test",),
}
# role, allowed kinds of dtype, their description in errors
_CONTENTS = (
    *((role, "biuf", "numbers [n, ...]") for role in ("x", "x_test")),
    *((role, "biufUS", "integers or names [n]") for role in ("y", "y_test")),
    *((role, "iuUS", "integers or names [n]") for role in ("client_id", "client_id_test")),
    *((role, "iu", "integers [n]") for role in ("subclass", "subclass_test")),
    ("class_names", "iuUS", "names [C]"),
)
_ONE_ARRAY = b"\x93NUMPY"
_COLUMNS = ("client_id", "client_id_test", "class_names", "subclass", "subclass_test")


def read(path: Path, client_key: str | None = None, *, labels_optional: bool = False) -> Dataset:
    """Read x [n, ...] and y [n] (or [n, 1]); optionally x_test, y_test, client_id, subclass and class_names.

    uint8 [n, h, w] is read as grey images and gets a channel; other dtypes become float32. The array
    `client_key`, and `client_key`_test if it is there, replace client_id. Test examples without clients are a
    test set for all together.

    `jaxfed.data.labels` defines unlabeled examples of y. With `labels_optional`, as of `jaxfed.data.load`, y
    and the array `client_key` may be missing.

    Raises:
        UsageError: the file is not an npz file of plain arrays, has no x and y, or half of a test split; x is
            not numeric; labels have fractions; a test example has no label.
    """
    arrays = plain_arrays(path)
    if client_key is not None and not (labels_optional and client_key not in arrays):
        arrays = _with_clients(path, arrays, client_key)
    x, y = _take(arrays, "x"), _take(arrays, "y")
    if labels_optional and x is not None and x.ndim and y is None:
        y = np.full(len(x), UNLABELED)
    if x is None or y is None:
        raise UsageError(
            f"{path}: has arrays {', '.join(arrays)}; use the names x and y, or train_images and train_labels"
        )
    for role, kinds, allowed in _CONTENTS:
        array = _take(arrays, role)
        if array is not None and (array.dtype.kind not in kinds or not array.ndim):
            raise UsageError(
                f"{path}: {role} has type {array.dtype} and shape {array.shape}; use {allowed}"
            )
        if array is not None and role in _COLUMNS and array.ndim > 1:
            raise UsageError(f"{path}: {role} has shape {array.shape}; use one entry each, [n]")
    x = _examples(x)
    x_test, y_test = _take(arrays, "x_test"), _take(arrays, "y_test")
    if (x_test is None) != (y_test is None):
        there, absent = ("y_test", "x_test") if x_test is None else ("x_test", "y_test")
        raise UsageError(
            f"{path}: {there} without {absent}; a test split needs both, there are {', '.join(arrays)}"
        )
    if x_test is None or y_test is None:
        x_test, y_test = x[:0], y[:0]
    class_names = _take(arrays, "class_names")
    y, y_test = _column(path, "y", y), _column(path, "y_test", y_test)
    labels, labels_test = read_labels([y, y_test], f"{path}: y", are_known=class_names is not None)
    check_test_labels(labels_test, path)
    (y, y_test), names = class_numbers(
        labels.values, labels_test.values, names=class_names, is_labeled=labels.is_labeled
    )
    client_id, client_id_test = client_numbers(
        _take(arrays, "client_id"), _take(arrays, "client_id_test")
    )
    if len(x_test) and _take(arrays, "client_id_test") is None:
        client_id_test = None  # a test set for all clients together
    return Dataset(
        name=str(path),
        x=x,
        y=y,
        x_test=_examples(x_test),
        y_test=y_test,
        num_classes=len(names),
        class_names=names,
        client_id=client_id,
        client_id_test=client_id_test,
        client_names=client_names(_take(arrays, "client_id"), _take(arrays, "client_id_test")),
        subclass=_subclass(arrays, "subclass"),
        subclass_test=_subclass(arrays, "subclass_test"),
        labels_optional=labels_optional,
    )


def plain_arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of the file; pickled objects are refused."""
    with path.open("rb") as file:
        if file.read(len(_ONE_ARRAY)) == _ONE_ARRAY:
            raise UsageError(
                f"{path}: not an .npz file of plain arrays (it holds one array, as an .npy file does)"
            )
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = dict(file)
    except Exception as error:  # zipfile, its decompressors and NumPy raise a dozen kinds
        text = " ".join(str(error).split())[:200]
        if "Object arrays" in text:
            raise UsageError(
                f"{path}: holds Python objects; save numbers as arrays of a numeric type, and names as "
                "arrays of texts (names.astype(str))"
            ) from error
        if "pickled" in text:  # NumPy's guess at any other content, with advice to unpickle it
            text = "it is no zip archive"
        raise UsageError(f"{path}: not an .npz file of plain arrays ({text})") from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # NumPy returns other files of the archive as bytes
            raise UsageError(f"{path}: not an .npz file of plain arrays ({name} is none)")
    return arrays


def _subclass(arrays: Mapping[str, np.ndarray], role: str) -> np.ndarray | None:
    subclass = _take(arrays, role)
    return None if subclass is None else subclass.astype(np.int32)


def _take(arrays: Mapping[str, np.ndarray], role: str) -> np.ndarray | None:
    return next((arrays[name] for name in _NAMES[role] if name in arrays), None)


def _with_clients(
    path: Path, arrays: Mapping[str, np.ndarray], client_key: str
) -> dict[str, np.ndarray]:
    """The arrays with client_id replaced by those that `client_key` names."""
    others = {*_NAMES["client_id"], *_NAMES["client_id_test"]}
    chosen = {name: array for name, array in arrays.items() if name not in others}
    for role, key in (("client_id", client_key), ("client_id_test", f"{client_key}_test")):
        if key in arrays:
            chosen[role] = arrays[key]
        elif role == "client_id":
            wrong = f"no array {key} in {path}; there are {', '.join(arrays)}"
            raise UsageError(wrong, key="client_key", value=client_key)
    return chosen


def _examples(x: np.ndarray) -> np.ndarray:
    if x.ndim == 1:
        x = x[:, None]  # one feature
    if x.dtype != np.uint8:
        with np.errstate(over="ignore"):  # to inf, which Dataset refuses
            return x.astype(np.float32)
    return x[..., None] if x.ndim == 3 else x


def _column(path: Path, role: str, y: np.ndarray) -> np.ndarray:
    """Labels [n] from [n] or [n, 1]."""
    if y.ndim == 2 and y.shape[1] == 1:
        return y[:, 0]
    if y.ndim != 1:
        raise UsageError(f"{path}: {role} has shape {y.shape}; use one label an example, [n]")
    return y
