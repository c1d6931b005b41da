"""Arrays in an `.npz` file: x and y, or MedMNIST's train_images and train_labels."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxfed.data.dataset import Dataset, class_numbers, client_numbers
from jaxfed.errors import UsageError

_NAMES = {
    "x": ("x", "x_train", "train_images"),
    "y": ("y", "y_train", "train_labels"),
    "x_test": ("x_test", "test_images"),
    "y_test": ("y_test", "test_labels"),
    "client_id": ("client_id", "writer", "client_id_train"),
    "client_id_test": ("client_id_test", "writer_test"),
    "class_names": ("class_names", "classes"),
}
# role, kinds of dtype, in words
_CONTENTS = (
    *((role, "biuf", "numbers [n, ...]") for role in ("x", "x_test")),
    *((role, "biuUS", "integers or names [n]") for role in ("y", "y_test")),
    *((role, "iuUS", "integers or names [n]") for role in ("client_id", "client_id_test")),
    ("class_names", "iuUS", "names [C]"),
)
_COLUMNS = ("client_id", "client_id_test", "class_names")


def read(path: Path) -> Dataset:
    """Read x [n, ...] and y [n] (or [n, 1]); optionally x_test, y_test, client_id and class_names.

    uint8 [n, h, w] is taken for grey images and gets a channel; anything but uint8 becomes float32.

    Raises:
        UsageError: not an npz file of plain arrays, without x and y, or x not numbers, or labels that
            are fractions or hold -1 for "unlabeled" (that is for `partition` to decide).
    """
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise ValueError("it holds one array, as an .npy file does")
        with file:
            arrays = dict(file)
    except (ValueError, zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError) as error:
        raise UsageError(f"{path}: not an .npz file of plain arrays ({error})") from error
    x, y = _take(arrays, "x"), _take(arrays, "y")
    if x is None or y is None:
        raise UsageError(
            f"{path}: arrays {', '.join(arrays)}, but x and y are needed "
            "(or train_images and train_labels)"
        )
    for role, kinds, allowed in _CONTENTS:
        array = _take(arrays, role)
        if array is not None and (array.dtype.kind not in kinds or not array.ndim):
            raise UsageError(
                f"{path}: {role} of type {array.dtype} and shape {array.shape}: allowed are {allowed}"
            )
        if array is not None and role in _COLUMNS and array.ndim > 1:
            raise UsageError(
                f"{path}: {role} of shape {array.shape}: one entry each is needed, [n]"
            )
    if y.dtype.kind == "i" and (y == -1).any() and len(np.unique(y)) > 2:
        raise UsageError(
            f"{path}: {(y == -1).sum()} labels are -1 (unlabeled): load needs every label, and "
            "partition chooses which of them clients know"
        )
    x = _examples(x)
    x_test, y_test = _take(arrays, "x_test"), _take(arrays, "y_test")
    if x_test is None or y_test is None:
        x_test, y_test = x[:0], y[:0]
    (y, y_test), names = class_numbers(
        _column(y), _column(y_test), names=_take(arrays, "class_names")
    )
    client_id, client_id_test = client_numbers(
        _take(arrays, "client_id"), _take(arrays, "client_id_test")
    )
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
    )


def _take(arrays: Mapping[str, np.ndarray], role: str) -> np.ndarray | None:
    return next((arrays[name] for name in _NAMES[role] if name in arrays), None)


def _examples(x: np.ndarray) -> np.ndarray:
    if x.ndim == 1:
        x = x[:, None]  # one feature
    if x.dtype != np.uint8:
        with np.errstate(over="ignore"):  # to inf, which Dataset refuses
            return x.astype(np.float32)
    return x[..., None] if x.ndim == 3 else x


def _column(y: np.ndarray) -> np.ndarray:
    """Labels [n] of [n] or [n, 1]."""
    return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
