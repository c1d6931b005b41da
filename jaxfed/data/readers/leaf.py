"""Read LEAF's JSON: examples by user, such as FEMNIST's by writer.

    ROOT/train/*.json  ROOT/test/*.json     {"users": [...], "num_samples": [...],
                                             "user_data": {USER: {"x": [[...], ...], "y": [...]}, ...}}

`./preprocess.sh ... -t sample` splits every user's examples between train and test, `-t user` the users.
(S. Caldas et al. "LEAF: A Benchmark for Federated Settings". arXiv:1812.01097. FEMNIST: 62 classes,
images of 28 x 28 as 784 shares of white, 0 is ink.)
"""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxfed.data.cache import cached_arrays, files_key
from jaxfed.data.dataset import Dataset, dataset_of
from jaxfed.data.readers.array_encoder import ArrayEncoder
from jaxfed.data.readers.guard import guarded
from jaxfed.data.readers.image_files import images_in
from jaxfed.errors import UsageError

_SPLITS = ("train", "test")
_FORMAT = 1


class _NotImages(Exception):
    """Raised for an example that is not a square image of bytes."""


class _User(NamedTuple):
    """One user's examples: float64 [n, ...] and labels [n], integers or names."""

    name: str
    x: np.ndarray
    y: np.ndarray


def recognizes(folder: Path) -> bool:
    """True if there are JSON files in LEAF's layout."""
    return any(_files(folder, split) for split in (*_SPLITS, "all_data"))


def read(folder: Path) -> Dataset:
    """Read both splits, file by file; they are decoded once and cached as arrays.

    If all entries are multiples of 1/255, and the examples' length is the square of an integer from 8 on,
    examples are images: uint8 [n, side, side, 1]. Otherwise they are float32 [n, ...].

    Args:
        folder: a folder in the layout above, such as LEAF's `data/femnist/data`.

    Returns:
        `client_id` and `client_id_test` number the users over both splits.

    Raises:
        UsageError: a split is missing; a file is not such JSON; a user's x and y do not fit together or
            are not numbers (LEAF's text sets).

    Cost: memory of one file, besides the arrays: LEAF writes 100 users to a file, for FEMNIST about 1 GB as
    Python's lists. FEMNIST (817,851 images) takes some minutes the first time.
    """
    files = {split: _files(folder, split) for split in _SPLITS}
    lacking = [split for split in _SPLITS if not files[split]]
    if lacking:
        raise UsageError(
            f"{folder}: no {' and no '.join(f'{split}/*.json' for split in lacking)}; LEAF's "
            "./preprocess.sh makes both with -t sample or -t user"
        )
    if any(images_in(part) for part in (folder / "train").iterdir()):
        raise UsageError(
            f"{folder}: train holds both *.json and folders of images; use a folder with one of them"
        )

    def make(target: Path) -> None:
        try:
            _convert(files, target, as_images=True)
        except _NotImages:
            _convert(files, target, as_images=False)

    joint = [file for split in files.values() for file in split]
    arrays = cached_arrays(
        f"leaf-{folder.name}", files_key(joint, _FORMAT, str(folder.resolve())), make
    )
    x, x_test = arrays["x-train"], arrays["x-test"]
    return dataset_of(
        folder,
        [(x, arrays["y-train"]), (x_test, arrays["y-test"])],
        where=f"{folder}: y",
        clients=(arrays["user-train"], arrays["user-test"]),
        encoder=ArrayEncoder.of(x, of_shares=True),
    )


def _files(folder: Path, split: str) -> list[Path]:
    return sorted(file for file in (folder / split).glob("[!.]*.json") if file.is_file())


def _convert(files: dict[str, list[Path]], target: Path, *, as_images: bool) -> None:
    """Write x, y and user of each split to `target`; examples go to disk as they are read."""
    shape: tuple[int, ...] | None = None
    for split, paths in files.items():
        labels, names = [], []
        raw = target / f"x-{split}.raw"
        with raw.open("wb") as stream:
            for path in paths:
                for user in filter(lambda user: len(user.y), _users(path)):
                    with np.errstate(over="ignore"):  # to inf, which Dataset refuses
                        x = _as_images(user.x) if as_images else user.x.astype(np.float32)
                    shape = shape or x.shape[1:]
                    if x.shape[1:] != shape:
                        raise UsageError(
                            f"{path}: examples of user {user.name!r} have shape "
                            f"{list(x.shape[1:])}, others {list(shape)}"
                        )
                    stream.write(np.ascontiguousarray(x).data)
                    labels.append(user.y)
                    names.append(np.full(len(user.y), user.name))
        if shape is None or not labels:
            raise UsageError(f"{paths[0].parent}: its {len(paths)} files hold no examples")
        dtype = np.uint8 if as_images else np.float32
        np.save(target / f"x-{split}.npy", np.memmap(raw, dtype, "r").reshape(-1, *shape))
        raw.unlink()
        np.save(target / f"y-{split}.npy", np.concatenate(labels))
        np.save(target / f"user-{split}.npy", np.concatenate(names))


def _users(file: Path) -> list[_User]:
    with guarded(file):
        content = json.loads(
            file.read_text(encoding="utf-8"), object_pairs_hook=partial(_distinct, file)
        )
        given = list(zip(content["users"], content["num_samples"], strict=True))
        users = [
            _user(file, name, value["x"], value["y"])
            for name, value in content["user_data"].items()
        ]
        listed, held = dict(given), {user.name: len(user.y) for user in users}
    wrong = [name for name in (*listed, *held) if listed.get(name) != held.get(name)]
    names = [name for name, _ in given]
    if len(listed) < len(names):
        wrong.append(next(name for name in listed if names.count(name) > 1))
    for name in wrong[:1]:
        raise UsageError(
            f"{file}: users and num_samples list {listed.get(name, 'no')} examples of user {name!r}, "
            f"user_data has {held.get(name, 'no')}; list each user once"
        )
    return users


def _distinct(file: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys are distinct; `json` alone would keep the last of equal ones."""
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise UsageError(f"{file}: {twice!r} occurs twice in an object; use each name once")
    return content


def _user(file: Path, name: str, examples: list[Any], labels: list[Any]) -> _User:
    try:
        x = np.asarray(examples, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(
            f"{file}: x of user {name!r}: examples must be lists of equally many numbers (LEAF's sets "
            "of text and of image files are not read)"
        ) from None
    given = ["" if label is None else label for label in labels]  # null: unlabeled
    y = np.array(given, None if given else np.int64)
    if y.ndim != 1 or y.dtype.kind not in "iU" or (x.ndim < 2 and x.size) or len(x) != len(y):
        raise UsageError(
            f"{file}: user {name!r}: x must be a list of lists of numbers, y of as many integers of 64 bits "
            "or names"
        )
    return _User(name, x, y)


def _as_images(x: np.ndarray) -> np.ndarray:
    """uint8 [n, side, side, 1] of vectors [n, side ** 2] of 255ths."""
    side = math.isqrt(x.shape[1])
    if x.ndim > 2 or side < 8 or side * side != x.shape[1]:
        raise _NotImages
    levels = np.rint(255 * x)
    if not (np.abs(255 * x - levels) < 1e-3).all() or levels.min() < 0 or levels.max() > 255:
        raise _NotImages
    return levels.astype(np.uint8).reshape(len(x), side, side, 1)
