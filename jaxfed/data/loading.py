"""Load a data set by its name or its path.

An external reader is registered, `READERS.register(name)` (`jaxfed.registry`): a function that
returns a `Dataset`, whose keywords are those of the config's section `name`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jaxfed.data import packing
from jaxfed.data.dataset import Dataset
from jaxfed.data.readers import (
    Splits,
    arrays,
    guarded,
    images,
    matching,
    splits_by_name,
    tables,
    tfds_source,
)
from jaxfed.data.readers.named import EMBEDDED, NAMED
from jaxfed.errors import UsageError, did_you_mean, nearest
from jaxfed.host.location import location, path_text
from jaxfed.registry import Registry

READERS: Registry[Callable[..., Dataset]] = Registry("reader", {}, reserved=[*EMBEDDED, *NAMED])

_TABLE_OPTIONS = ("label_key", "client_key", "drop", "image_size")


def load(
    name_or_path: str | Path | Sequence[str | Path],
    *,
    root: str | Path | None = None,
    label_key: str | None = None,
    client_key: str | None = None,
    image_size: int | None = None,
    drop: Collection[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Load a data set.

    Args:
        name_or_path: one of

            - the name of an embedded set (digits, breast_cancer), of a folder in `root` with its publishers'
              files (`jaxfed.data.readers.named`), or of a TFDS set there (cifar10, emnist/byclass), prepared
              as array_record; sets by name are also looked for in ../uci and ../images of `root`
            - the path of an .npz file, of a table or a pattern of tables (`jaxfed.data.readers.tables`), of a
              folder that `pack` wrote, of arrays with a table of their labels (`jaxfed.data.readers.arrays`;
              also a list of these files), of Parquet files, or of images. A path has an ending or begins with
              a slash (./images); any existing folder is one. Others are looked for in `root`.
        root: folder of prepared TFDS sets and other data; None is $JAXFED_DATA, else TFDS's default.
        label_key: the label: a TFDS feature ("coarse_label" of cifar100) or a table's column;
            the other sources have one label only.
        client_key: a table's column, or the array of an .npz file, that names the client each row belongs to;
            the other sources have their own; "file": each file of a pattern is a client.
        image_size: for image files in folders or tables only, pixels a side.
        drop: for tables only, columns that are not features.
        options: keywords of a reader that was registered under this name.

    Returns:
        `Dataset`. TensorFlow is never imported.

    Raises:
        UsageError: one line that names the set, the folder searched, and how to get it.
    """
    arguments = {
        "label_key": label_key,
        "client_key": client_key,
        "image_size": image_size,
        "drop": tuple(drop or ()) or None,
    }
    if isinstance(name_or_path, list | tuple):
        files = [location(each, "name_or_path") for each in name_or_path]
        with guarded(f"data set of {len(files)} files"):
            return arrays.read_beside_table(files[0].parent, files, **arguments)
    name_or_path = path_text(name_or_path, "name_or_path")  # type: ignore[arg-type]
    if name_or_path in READERS:
        _only(name_or_path, arguments)
        return READERS[name_or_path](**(options or {}))
    with guarded(f"data set {name_or_path!r}"):
        return _load(name_or_path, root, arguments)


def _load(name: str, root: str | Path | None, arguments: dict[str, Any]) -> Dataset:
    """`load` for the sets of this package; `arguments` are its options, None where one is not given."""
    only = partial(_only, name, arguments)
    if name in EMBEDDED:
        only()
        return EMBEDDED[name]()
    base, path = _root(root), location(name, "name_or_path")
    location(base / path, "root")
    published, ending = NAMED.get(name), Path(name).name.lower()
    folder = path if path.is_dir() or not (base / path).is_dir() else base / path
    if ending.endswith((".npz", *tables.ENDINGS)) and not folder.is_dir():
        pattern = path if matching(path) else base / path
        if not (files := matching(pattern)):
            raise UsageError(f"data set {name!r}: no such file ({path.absolute()})")
        if ending.endswith(".npz"):
            return arrays.read(files[0], *only("client_key"))
        folder = Path(str(pattern).partition("*")[0] + "*").parent
        splits = splits_by_name(files, folder) if "*" in name else Splits(files, [])
        shown = path if "*" in name else files[0]
        return tables.read(shown, splits, *only(*_TABLE_OPTIONS))
    if published is not None and not folder.is_dir():
        beside = (base.parent / kind / name for kind in ("uci", "images"))
        folder = next(filter(Path.is_dir, beside), folder)
    if packing.recognizes(folder):
        only()
        return packing.read(folder)
    if published is None and arrays.recognizes(files := arrays.files_in(folder)):
        return arrays.read_beside_table(folder, files, **arguments)
    if files := matching(folder / "*.parquet") or matching(folder / "*/*.parquet"):
        return tables.read(folder, splits_by_name(files, folder), *only(*_TABLE_OPTIONS))
    if name and (prepared := tfds_source.version_directory(base, name)):
        return tfds_source.read(name, prepared, *only("label_key"))
    if not name or not folder.is_dir():
        only("label_key", "image_size")
        raise _not_found(name, path, base, root)
    if published is not None and published.read is not None:
        return published.read(folder, *only(*published.options))
    return images.read(folder, *only("image_size"))


def _not_found(name: str, path: Path, base: Path, root: str | Path | None) -> UsageError:
    if not name or path.is_file() or name.startswith((".", "/", "~")):
        return UsageError(
            f"data set {name!r}: no such folder ({path.absolute()}), and a file must end in .npz, "
            f"{', '.join(tables.ENDINGS)}; save a spreadsheet as .csv"
        )
    if name in NAMED:
        return UsageError(
            f"data set {name!r}: no such folder ({base / name}, nor in ../uci or ../images); put there "
            f"{NAMED[name].origin} (the folder is --config.dataset.root or $JAXFED_DATA)"
        )
    if not base.is_dir() and (key := _key_of_root(root)):
        wrong = f"no such folder; data set {name!r} is looked for there"
        return UsageError(wrong, key=key, value=str(base))
    return UsageError(
        f"data set {name!r} not found{did_you_mean(nearest(name, [*EMBEDDED, *NAMED]))}; looked for "
        f"{base / name}/VERSION/dataset_info.json (the folder is --config.dataset.root or $JAXFED_DATA). "
        "Prepare it where TensorFlow is installed, tfds.builder("
        f"{name!r}, data_dir={str(base)!r}, file_format='array_record').download_and_prepare(); without "
        f"any data use {', '.join(EMBEDDED)}"
    )


def _only(name: str, values: Mapping[str, Any], *options: str) -> list[Any]:
    """Values of the source's options; any other given option is refused."""
    for option, value in values.items():
        if option not in options and value is not None:
            wrong = f"does not apply to data set {name!r}"
            raise UsageError(wrong, key=option, value=value, allowed="leave it out")
    return [values[option] for option in options]


def _root(root: str | Path | None) -> Path:
    """Folder in which TFDS sets are searched."""
    key = _key_of_root(root)
    base = root or (os.environ[key[1:]] if key else "~/tensorflow_datasets")
    return location(base, key or "root")


def _key_of_root(root: str | Path | None) -> str:
    """Origin of that folder: the argument or a variable; empty for TFDS's default."""
    if root:
        return "root"
    return next((f"${key}" for key in ("JAXFED_DATA", "TFDS_DATA_DIR") if os.environ.get(key)), "")
