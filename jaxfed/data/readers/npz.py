"""Arrays in an `.npz` file: x and y, or MedMNIST's train_images and train_labels."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from absl import logging

from jaxfed.data.dataset import UNLABELED, Dataset, dataset_of
from jaxfed.data.given_examples import integer_images
from jaxfed.data.readers.guard import guarded
from jaxfed.data.readers.table_encoder import is_wide
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
    "subclass": ("subclass",),
    "subclass_test": ("subclass_test",),
}
_CONTENTS = {  # role -> allowed kinds of dtype, and their description in errors
    **dict.fromkeys(("x", "x_test", "x_validation"), ("biuf", "numbers [n, ...]")),
    **dict.fromkeys(("y", "y_test", "y_validation"), ("biufUS", "integers or names [n]")),
    **dict.fromkeys(("subclass", "subclass_test"), ("iu", "integers [n]")),
}
_SPLIT = "train(ing)?|test(ing)?|val(id|idation)?"
_OF_A_SPLIT = re.compile(  # names of examples or labels: none of them may stay unread
    rf"(({_SPLIT})_?)?([xy]|images?|labels?|targets?|data|examples?|features)(_?({_SPLIT}))?|{_SPLIT}"
)
_OF_EXAMPLES = re.compile(r"(.*_)?(x|images?|data|examples?|features)(_.*)?")  # of x's form
_COLUMNS = ("client_id", "client_id_test", "class_names", "subclass", "subclass_test")


def read(path: Path, client_key: str | None = None, *, labels_optional: bool = False) -> Dataset:
    """Read x [n, ...] and y [n] (or [n, 1]); optionally x_test, y_test, x_val, y_val and others.

    uint8 [n, h, w] is read as grey images and gets a channel; other dtypes become float32, or float64 if that
    would make whole numbers above 2^24 equal. Names may be in any case, X_train and train_x too. The array
    `client_key`, and `client_key`_test if it is there, replace client_id. Test examples without clients are a
    test set for all together.

    `jaxfed.data.labels` defines unlabeled examples of y. With `labels_optional`, as of `jaxfed.data.load`, y
    and the array `client_key` may be missing.

    Raises:
        UsageError: the file is not an npz file of plain arrays, has no x and y, half of a test split, or
            examples or labels that nothing reads; x is not numeric; labels have fractions; a test example has
            no label.
    """
    arrays = plain_arrays(path)
    if client_key is not None and not (labels_optional and client_key not in arrays):
        arrays = _with_clients(path, arrays, client_key)
    there_are = ", ".join(arrays)
    arrays = _by_role(path, arrays)
    x, y = arrays.get("x"), arrays.get("y")
    if labels_optional and x is not None and x.ndim and y is None:
        y = np.full(len(x), UNLABELED)
    if x is None or y is None:
        raise UsageError(
            f"{path}: has arrays {there_are}; use the names x and y, or train_images and train_labels"
        )
    for role, array in arrays.items():
        kinds, allowed = _CONTENTS.get(role, ("iuUS", "integers or names [n]"))
        if array.dtype.kind not in kinds or not array.ndim or (array.ndim > 1 and role in _COLUMNS):
            raise UsageError(
                f"{path}: {role} has type {array.dtype} and shape {array.shape}; use {allowed}"
            )
        if role[0] == "x" and (wrong := integer_images(array, axes=3)):
            raise UsageError(f"{path}: {role}: {wrong}")
    for split in ("test", "validation"):
        absent = [role for role in (f"x_{split}", f"y_{split}") if role not in arrays]
        if len(absent) == 1:
            there = "xy"[absent[0][0] == "x"] + f"_{split}"
            raise UsageError(
                f"{path}: {there} without {absent[0]}; a {split} split needs both, there are {there_are}"
            )
    if "x_test" not in arrays:  # validation examples alone are the test split
        for kind, none in (("x", x[:0]), ("y", y[:0])):
            arrays[f"{kind}_test"] = arrays.pop(f"{kind}_validation", none)
    x, x_test, x_validation = _examples(x, arrays["x_test"], arrays.get("x_validation", x[:0]))
    y, y_test = _column(path, "y", y), _column(path, "y_test", arrays["y_test"])
    splits = [(x, y), (x_test, y_test)]
    if len(x_validation):
        splits.append((x_validation, _column(path, "y_validation", arrays["y_validation"])))
    return dataset_of(
        path,
        splits,
        where=f"{path}: y",
        class_names=arrays.get("class_names"),
        clients=(arrays.get("client_id"), arrays.get("client_id_test")),
        **{
            role: arrays[role].astype(np.int32)
            for role in ("subclass", "subclass_test")
            if role in arrays
        },
    )


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
    """Return the arrays by their roles in `_NAMES`; log the names of others.

    Raises:
        UsageError: examples or labels with an unknown name.
    """
    roles = {name: role for role, names in _NAMES.items() for name in names}
    found, unread = dict[str, np.ndarray](), list[str]()
    for name, array in arrays.items():
        role = roles.get(name.lower(), name)
        if role in found or role not in _NAMES:
            unread.append(name)
        else:
            found[role] = array
    form = found["x"].shape[1:] if "x" in found else ()
    for name in unread:
        are_alike = form and arrays[name].shape[1:] == form and _OF_EXAMPLES.fullmatch(name.lower())
        if are_alike or _OF_A_SPLIT.fullmatch(name.lower()):
            known = (" or ".join(names) for role, names in _NAMES.items() if role[0] in "xy")
            raise UsageError(
                f"{path}: array {name} is not read; leave it out, or use one of the names "
                f"{', '.join(known)}"
            )
    if unread:
        logging.info("%s: arrays that are not read: %s", path, ", ".join(unread))
    return found


def _with_clients(
    path: Path, arrays: Mapping[str, np.ndarray], client_key: str
) -> dict[str, np.ndarray]:
    others = {*_NAMES["client_id"], *_NAMES["client_id_test"]}
    chosen = {name: array for name, array in arrays.items() if name not in others}
    for role, key in (("client_id", client_key), ("client_id_test", f"{client_key}_test")):
        if key in arrays:
            chosen[role] = arrays[key]
        elif role == "client_id":
            wrong = f"no array {key} in {path}; there are {', '.join(arrays)}"
            raise UsageError(wrong, key="client_key", value=client_key)
    return chosen


def _examples(*splits: np.ndarray) -> list[np.ndarray]:
    """Return the examples of all splits with the types and shapes of `read`."""
    splits = tuple(x[:, None] if x.ndim == 1 else x for x in splits)  # one feature
    wide = (
        is_wide(each)
        for x in splits
        if x.dtype.itemsize > 3 and len(x)
        for each in x.reshape(len(x), -1).T
    )
    widest = np.float64 if any(wide) else np.float32
    with np.errstate(over="ignore"):  # to inf, which Dataset refuses
        typed = [x if x.dtype == np.uint8 else x.astype(widest) for x in splits]
    return [x[..., None] if x.dtype == np.uint8 and x.ndim == 3 else x for x in typed]


def _column(path: Path, role: str, y: np.ndarray) -> np.ndarray:
    """Labels [n] from [n] or [n, 1]."""
    if y.ndim == 2 and y.shape[1] == 1:
        return y[:, 0]
    if y.ndim != 1:
        raise UsageError(f"{path}: {role} has shape {y.shape}; use one label an example, [n]")
    return y
