"""Reader of TensorFlow Datasets in array_record format, of images or features, without TensorFlow.

`tfds.data_source` reads array_record files with Python and protobuf alone. Examples are decoded once, about
3,000 a second, and cached as arrays (`jaxfed.data.cache`).

The splits "train" and "test" are read; STL-10's "unlabelled" becomes training examples without a label,
behind those of "train". Other splits (SVHN's "extra", say) stay out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jaxfed.data.cache import cached_arrays, files_key
from jaxfed.data.dataset import UNLABELED, Dataset, dataset_of
from jaxfed.data.given_examples import integer_images
from jaxfed.data.readers import guarded
from jaxfed.errors import UsageError
from jaxfed.host.safe_files import content_of

_UNLABELED_SPLITS = ("unlabelled", "unlabeled")  # splits without labels
_EXAMPLES = ("image", "features", "x")  # features that hold the example, in order of preference
_LABELS = ("label", "quality", "class", "y")
# Keys of features.json with classes that TFDS imports; the last is from older versions.
_CLASS_KEYS = {"pythonClassName", "python_class_name", "type"}
_JPEG = b"\xff\xd8\xff"  # first bytes of a JPEG file
_FORMAT = 2  # raise it whenever the same files give other arrays


def version_directory(root: Path, name: str) -> Path | None:
    """The newest version of the set `name` (NAME or NAME/CONFIG) under `root`, or None."""
    infos = (root / name).glob("*/dataset_info.json")
    versions = [info.parent for info in infos if info.is_file()]
    return max(versions, key=_version) if versions else None


def read(name: str, folder: Path, label_key: str | None = None) -> Dataset:
    """Read the prepared set in `folder` (ROOT/NAME[/CONFIG]/VERSION).

    `label_key` is the feature to take as label, such as CIFAR-100's "coarse_label"; None is "label". With
    another key, the default label becomes the subclass, if each of its classes lies in one class.
    """
    inside = sorted(folder.iterdir())
    files = [file for file in inside if file.is_file()]
    if odd := [file for file in inside if not (file.is_file() or file.is_dir())]:
        raise UsageError(f"{odd[0]}: not a regular file")  # TFDS would wait for a FIFO
    # The set's metadata are cached with its arrays: importing TFDS takes a fifth of a second.
    arrays = cached_arrays(
        f"tfds-{name.replace('/', '-')}",
        files_key(files, _FORMAT, label_key),
        partial(_make, name, folder, label_key),
    )
    x, y = arrays["x-train"], arrays["y-train"]
    x_test = arrays.get("x-test", np.zeros((0, *x.shape[1:]), x.dtype))
    fields = {"subclass-train": "subclass", "subclass-test": "subclass_test"}
    finer: dict[str, Any] = {
        field: arrays[name].astype(np.int32) for name, field in fields.items() if name in arrays
    }
    return dataset_of(
        name,
        [(x, y), (x_test, arrays.get("y-test", y[:0]))],
        class_names=arrays["class_names"],
        origin=str(arrays["origin"]),
        **finer,
    )


def _make(name: str, folder: Path, label_key: str | None, target: Path) -> None:
    """Decode the whole set, and write the classes' names and the note on its origin."""
    builder = _builder(folder)
    available, features = builder.info.splits, builder.info.features
    if "train" not in available:
        raise UsageError(
            f"data set {name!r} in {folder}: no split 'train'; it has {', '.join(available)}"
        )
    usual = next((key for key in _LABELS if key in features), None)
    keys = {
        "x": _choose(name, "example", features, _EXAMPLES),
        "y": _choose(name, "label", features, _LABELS if label_key is None else (label_key,)),
    }
    if usual not in (None, keys["y"]):
        keys["subclass"] = usual
    parts = {"train": ("train", *(split for split in _UNLABELED_SPLITS if split in available))}
    if "test" in available:
        parts["test"] = ("test",)
    for part, splits in parts.items():
        decoded = [_decoded(builder, split, keys) for split in splits]
        for kind in keys:
            joint = np.concatenate([each[kind] for each in decoded])
            np.save(target / f"{kind}-{part}.npy", joint)
    classes = features[keys["y"]]
    y = np.load(target / "y-train.npy")
    num_classes = getattr(classes, "num_classes", None) or int(y.max()) + 1
    names = getattr(classes, "names", None) or [str(c) for c in range(num_classes)]
    np.save(target / "class_names.npy", np.array(names))
    np.save(target / "origin.npy", np.array(_origin(name, builder, keys["x"])))


def _origin(name: str, builder: Any, example_key: str) -> str:
    """Return a note that pixels may differ from the original's, if the first image is a JPEG; else ""."""
    import tensorflow_datasets as tfds

    is_image = isinstance(builder.info.features[example_key], tfds.features.Image)
    if not is_image or not builder.info.splits["train"].num_examples:
        return ""
    as_stored = {example_key: tfds.decode.SkipDecoding()}
    with guarded(f"{builder.data_path}: split 'train'"):
        first = builder.as_data_source("train", decoders=as_stored)[0][example_key]
    if not first.startswith(_JPEG):
        return ""
    return f"{name} is a copy in JPEG, its pixels the original's only if that is JPEG, too"


def _builder(folder: Path) -> Any:
    import tensorflow_datasets as tfds

    with guarded(folder / "features.json"):
        described = json.loads(content_of(folder / "features.json"))
        if not described:
            raise UsageError(f"{folder}: features.json is empty; prepare the set again")
        _check_names(folder / "features.json", described)
    builder = tfds.builder_from_directory(folder)
    if not any(folder.glob("*.array_record*")):
        raise UsageError(
            f"{folder}: no array_record files; prepare the set with "
            "tfds.builder(NAME, file_format='array_record').download_and_prepare()"
        )
    return builder


def _check_names(file: Path, described: Any) -> None:
    """Refuse a description that names classes outside TFDS, because TFDS would import them."""
    if isinstance(described, dict):
        for key in _CLASS_KEYS & described.keys():
            if not str(described[key]).startswith("tensorflow_datasets."):
                raise UsageError(
                    f"{file}: {key}={described[key]!r} is outside tensorflow_datasets, and would be imported "
                    "and run; prepare the set with features of TFDS"
                )
        described = list(described.values())
    for value in described if isinstance(described, list) else ():
        _check_names(file, value)


def _choose(name: str, role: str, features: Any, candidates: tuple[str, ...]) -> str:
    for key in candidates:
        if key in features:
            return key
    raise UsageError(
        f"data set {name!r}: none of the features {', '.join(sorted(features))} is the {role} "
        f"({', '.join(candidates)})"
    )


def _decoded(builder: Any, split: str, keys: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Decode a split: "x" `[n, ...]`, "y" int32 `[n]` and others `[n]`, of the features `keys`."""
    with guarded(f"{builder.data_path}: split {split!r}"):
        source = builder.as_data_source(split)
        # Several hundred records per read: a read per record would cost as much as decoding it.
        rows = [
            tuple(record[key] for key in keys.values())
            for first in range(0, len(source), 512)
            for record in source.__getitems__(range(first, min(first + 512, len(source))))
        ]
    if not rows:
        shape = tuple(size or 0 for size in source.dataset_info.features[keys["x"]].shape)
        empty = dict.fromkeys(keys, np.zeros(0, np.int32))
        return {**empty, "x": np.zeros((0, *shape), np.uint8)}
    arrays = dict(zip(keys, map(np.asarray, zip(*rows, strict=True)), strict=True))
    if wrong := integer_images(arrays["x"]):
        raise UsageError(f"{keys['x']}: {wrong}")
    if arrays["x"].dtype != np.uint8:
        arrays["x"] = arrays["x"].astype(np.float32)
    arrays["y"] = arrays["y"].astype(np.int32)
    if split in _UNLABELED_SPLITS:
        arrays["y"] = np.full_like(arrays["y"], UNLABELED)
    return arrays


def _version(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else -1 for part in folder.name.split("."))
