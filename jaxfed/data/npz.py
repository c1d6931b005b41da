"""Arrays in an `.npz` file: x and y, or MedMNIST's train_images and train_labels."""

from __future__ import annotations

import zipfile
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


def read(path: Path) -> Dataset:
    """Read x [n, ...] and y [n] (or [n, 1]); optionally x_test, y_test, client_id and class_names.

    uint8 [n, h, w] is taken for grey images and gets a channel; anything but uint8 becomes float32.

    Raises:
        UsageError: not an npz file of plain arrays, without x and y, or x not numbers, or labels that
            are fractions or hold -1 for "unlabeled" (that is for `partition` to decide).
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise UsageError(f"{path}: not an .npz file of plain arrays ({error})") from error
    x, y = _take(arrays, "x"), _take(arrays, "y")
    if x is None or y is None:
        raise UsageError(
            f"{path}: arrays {', '.join(arrays)}, but x and y are needed "
            "(or train_images and train_labels)"
        )
    for name, array, kinds in (("x", x, "biuf"), ("y", y, "biuUS")):
        if array.dtype.kind not in kinds or not array.ndim:
            raise UsageError(
                f"{path}: {name} of type {array.dtype} and shape {array.shape}: x are numbers [n, ...], "
                "y integers or names [n]"
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
    if x.dtype != np.uint8:
        return x.astype(np.float32)
    return x[..., None] if x.ndim == 3 else x


def _column(y: np.ndarray) -> np.ndarray:
    """Labels [n] of [n] or [n, 1]."""
    return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
