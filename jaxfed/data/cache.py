"""Decoded data sets kept on disk as arrays, so that a set is decoded once.

A cached set is a directory of `.npy` files, `DIR/NAME-KEY/`. KEY is a digest of whatever the arrays were
made from. The directory is written under another name and renamed when complete: it is there whole or
not at all. Its index has the checksum of each file; all are read and compared at every load, so a
damaged set, or one from a version without checksums, is rebuilt.

Unfinished directories of killed processes are removed when the next set is made.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from absl import logging

from jaxfed.errors import UsageError
from jaxfed.host import storage
from jaxfed.host.location import location
from jaxfed.host.safe_files import Damaged, content_of, guarded, json_object

_INDEX = "index.json"


def directory() -> Path:
    """Return the root of all caches: $JAXFED_CACHE, else ~/.cache/jaxfed."""
    return location(os.environ.get("JAXFED_CACHE") or "~/.cache/jaxfed", "$JAXFED_CACHE")


def files_key(files: list[Path], *settings: object) -> str:
    """Digest of the files' names, sizes and times of change, and of the settings."""
    try:
        stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    except OSError as error:  # a link to nothing, say
        raise UsageError(f"{error.filename}: cannot be read ({error.strerror})") from error
    return hashlib.sha256(repr((sorted(stats), settings)).encode()).hexdigest()[:20]


def cached_arrays(name: str, key: str, make: Callable[[Path], None]) -> dict[str, np.ndarray]:
    """Return the arrays of `NAME-KEY` by their files' names, memory-mapped; make them if they are missing.

    `key` is a digest of everything the arrays depend on. `make` writes `.npy` files into the directory it is
    given. Cost: one pass over the files, 0.1 s for 200 MB in the page cache.
    """
    target = directory() / f"{name}-{key}"
    if (arrays := _read(target)) is not None:
        return arrays
    if target.exists():
        logging.warning("%s is damaged or has no checksums; it is made again", target)
    with ExitStack() as stack:
        try:
            made = stack.enter_context(storage.begun_folder(target))
        except OSError as error:
            if storage.is_full(error):
                raise
            raise UsageError(
                f"{target.parent}: cannot be written ({error.strerror}), where decoded data and features are "
                "kept; set $JAXFED_CACHE to a folder that can be"
            ) from error
        make(made)
        sums = {file.name: storage.file_checksum(file) for file in made.glob("*.npy")}
        with storage.whole_file(made / _INDEX) as index:
            json.dump(sums, index)
        shutil.rmtree(target, ignore_errors=True)  # damaged, or not there
        try:
            made.rename(target)
        except OSError:
            if _read(target) is None:  # else another process was faster, with the same arrays
                raise
    if (arrays := _read(target)) is None:
        raise OSError(f"{target}: what was just written cannot be read")
    return arrays


def _read(target: Path) -> dict[str, np.ndarray] | None:
    """The arrays, or None if any is missing or damaged."""
    try:
        with guarded(target):
            sums = json_object(content_of(target / _INDEX), target / _INDEX)
            if any(storage.file_checksum(target / file) != kept for file, kept in sums.items()):
                return None
            return {Path(file).stem: np.load(target / file, mmap_mode="r") for file in sums} or None
    except Damaged:
        return None
