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
from pathlib import Path

import numpy as np

from jaxfed.data.cache import cached_arrays, files_key
from jaxfed.data.dataset import Dataset, dataset_of
from jaxfed.data.readers.guard import guarded
from jaxfed.errors import UsageError

_SPLITS = ("train", "test")
_FORMAT = 1


def recognizes(folder: Path) -> bool:
    """True if there are JSON files in LEAF's layout."""
    return any(_files(folder, split) for split in (*_SPLITS, "all_data"))


def read(folder: Path) -> Dataset:
    """Read both splits, file by file; they are decoded once and cached as arrays.

    If all entries are multiples of 1/255, and the examples' length is the square of an integer from 8 on,
    examples are images: uint8 [n, side, side, 1]. Otherwise they are float32 [n, ...]. Clients are the users
    of both splits.

    Cost: memory of one file, besides the arrays: LEAF writes 100 users to a file, for FEMNIST about 1 GB as
    Python's lists. FEMNIST (817,851 images) takes some minutes the first time.
    """
    files = {split: _files(folder, split) for split in _SPLITS}
    lacking = [f"{split}/*.json" for split in _SPLITS if not files[split]]
    if lacking:
        wrong = f"no {' and no '.join(lacking)}; LEAF's ./preprocess.sh makes both"
        raise UsageError(f"{folder}: {wrong} with -t sample or -t user")

    def make(target: Path) -> None:
        if not _convert(files, target, as_images=True):
            _convert(files, target, as_images=False)

    joint = [file for split in files.values() for file in split]
    key = files_key(joint, _FORMAT, str(folder.resolve()))
    arrays = cached_arrays(f"leaf-{folder.name}", key, make)
    return dataset_of(
        folder,
        [(arrays[f"x-{split}"], arrays[f"y-{split}"]) for split in _SPLITS],
        where=f"{folder}: y",
        clients=(arrays["user-train"], arrays["user-test"]),
    )


def _files(folder: Path, split: str) -> list[Path]:
    return sorted(file for file in (folder / split).glob("[!.]*.json") if file.is_file())


def _convert(files: dict[str, list[Path]], target: Path, *, as_images: bool) -> bool:
    """Write x, y and user of each split to `target`, as they are read; False if some are no images."""
    shape: tuple[int, ...] | None = None
    for split, paths in files.items():
        labels, names = [], []
        raw = target / f"x-{split}.raw"
        with raw.open("wb") as stream:
            for path in paths:
                for name, values, y in _users(path):
                    with np.errstate(over="ignore"):  # to inf, which Dataset refuses
                        x = _as_images(values) if as_images else values.astype(np.float32)
                    if x is None:
                        return False
                    shape = shape or x.shape[1:]
                    if x.shape[1:] != shape:
                        wrong = f"examples of user {name!r} have shape {list(x.shape[1:])}"
                        raise UsageError(f"{path}: {wrong}, others {list(shape)}")
                    stream.write(np.ascontiguousarray(x).data)
                    labels.append(y)
                    names.append(np.full(len(y), name))
        if shape is None or not labels:
            raise UsageError(f"{paths[0].parent}: its {len(paths)} files hold no examples")
        dtype = np.uint8 if as_images else np.float32
        np.save(target / f"x-{split}.npy", np.memmap(raw, dtype, "r").reshape(-1, *shape))
        raw.unlink()
        np.save(target / f"y-{split}.npy", np.concatenate(labels))
        np.save(target / f"user-{split}.npy", np.concatenate(names))
    return True


def _users(file: Path) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Each user with examples: the name, x float64 [n, ...] and labels [n], integers or names."""
    with guarded(file):
        users = json.loads(file.read_text(encoding="utf-8"))["user_data"]
        return [_user(file, name, **of) for name, of in users.items() if len(of["y"])]


def _user(
    file: Path, name: str, x: list[object], y: list[object]
) -> tuple[str, np.ndarray, np.ndarray]:
    try:
        examples = np.array(x, np.float64)
        labels = np.array(["" if label is None else label for label in y])  # null: unlabeled
    except (TypeError, ValueError, OverflowError):
        examples, labels = np.zeros(0), np.zeros(0)
    if labels.ndim != 1 or labels.dtype.kind not in "iU" or examples.ndim < 2 or len(x) != len(y):
        raise UsageError(
            f"{file}: user {name!r}: x must be lists of equally many numbers, y as many integers of 64 bits "
            "or names (LEAF's sets of text and of image files are not read)"
        )
    return name, examples, labels


def _as_images(x: np.ndarray) -> np.ndarray | None:
    """uint8 [n, side, side, 1] of vectors [n, side ** 2] of 255ths; None of others."""
    side = math.isqrt(x.shape[1])
    if x.ndim > 2 or side < 8 or side * side != x.shape[1]:
        return None
    levels = np.rint(255 * x)
    if not (np.abs(255 * x - levels) < 1e-3).all() or levels.min() < 0 or levels.max() > 255:
        return None
    return levels.astype(np.uint8).reshape(len(x), side, side, 1)
