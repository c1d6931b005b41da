"""`load`: a data set by its name or its path."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from jaxfed.data import csv_table, image_folder, npz, tfds_source
from jaxfed.data.dataset import Dataset
from jaxfed.data.embedded import EMBEDDED
from jaxfed.errors import UsageError

_TABLES = (".csv", ".tsv", ".data", ".csv.gz", ".data.gz")


def load(
    name_or_path: str | Path,
    *,
    root: str | Path | None = None,
    label_key: str | None = None,
    image_size: int | None = None,
) -> Dataset:
    """Load a data set.

    Args:
        name_or_path: the name of an embedded set (digits, breast_cancer); the path of an .npz or CSV
            file or of a folder of images; or a TFDS name (cifar10, emnist/byclass) prepared as
            array_record. A path is told by its ending or a slash at its beginning (./images, /data/x);
            any existing folder is one.
        root: where prepared TFDS sets are; None is $JAXFED_DATA, else TFDS's default.
        label_key: what to take as label: a TFDS feature ("coarse_label" of cifar100) or a CSV column;
            the other sources have one label only.
        image_size: for image folders only, pixels a side.

    Returns:
        `Dataset`. No TensorFlow is imported, whatever the source.

    Raises:
        UsageError: one line: what was looked for, where, and how to get it.
    """
    name_or_path = os.fspath(name_or_path)
    if name_or_path in EMBEDDED:
        _refuse(name_or_path, label_key=label_key, image_size=image_size)
        return EMBEDDED[name_or_path]()
    path = Path(name_or_path).expanduser()
    lower = name_or_path.lower()
    if lower.endswith((".npz", *_TABLES)):
        if not path.is_file():
            raise UsageError(f"data set {name_or_path!r}: no such file ({path.absolute()})")
        _refuse(name_or_path, image_size=image_size)
        if lower.endswith(".npz"):
            _refuse(name_or_path, label_key=label_key)
            return npz.read(path)
        return csv_table.read(path, label_key)
    if name_or_path.startswith((".", "/", "~")) and not path.is_dir():
        raise UsageError(
            f"data set {name_or_path!r}: no such folder ({path.absolute()}), and a file must end in "
            f".npz or {', '.join(_TABLES)}"
        )

    if not name_or_path:
        raise UsageError(f"data set '': name one, such as {', '.join(EMBEDDED)}, or give a path")
    place = _root(root)
    folder = tfds_source.version_directory(place, name_or_path)
    if folder is not None:
        _refuse(name_or_path, image_size=image_size)
        return tfds_source.read(name_or_path, folder, label_key)
    if path.is_dir():
        _refuse(name_or_path, label_key=label_key)
        return image_folder.read(path, image_size)
    nearest = get_close_matches(name_or_path, EMBEDDED, n=1)
    hint = f" (did you mean {nearest[0]!r}?)" if nearest else ""
    raise UsageError(
        f"data set {name_or_path!r} not found{hint}; looked for {place / name_or_path}/VERSION/"
        "dataset_info.json (a TFDS set in array_record format; its place is --config.dataset.root or "
        "$JAXFED_DATA). To get it, where TensorFlow is installed: tfds.builder("
        f"{name_or_path!r}, data_dir={str(place)!r}, file_format='array_record')"
        f".download_and_prepare(). Without any data: {', '.join(EMBEDDED)}; or the path of an .npz or "
        "CSV file or an image folder"
    )


def _refuse(name: str, **options: object) -> None:
    """An option that the source at hand does not have is a mistake, not something to pass over."""
    for option, value in options.items():
        if value is not None:
            raise UsageError(
                f"{option}={value!r} does not apply to data set {name!r}: leave it out"
            )


def _root(root: str | Path | None) -> Path:
    """Where TFDS sets are looked for."""
    given = root or os.environ.get("JAXFED_DATA") or os.environ.get("TFDS_DATA_DIR")
    return Path(given or "~/tensorflow_datasets").expanduser()
