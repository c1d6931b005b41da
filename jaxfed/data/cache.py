"""Decoded data sets kept on disk as arrays, so that a set is decoded once.

A cached set is a directory of `.npy` files, `DIR/NAME-KEY/`. KEY is a digest of whatever the arrays were
made from. The directory is written under another name and renamed when complete: it is there whole or
not at all. Its index records each file's size, so that a damaged one is noticed and made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from jaxfed.errors import UsageError

_INDEX = "index.json"


def directory() -> Path:
    """Where caches are kept: $JAXFED_CACHE, else ~/.cache/jaxfed."""
    return Path(os.environ.get("JAXFED_CACHE") or Path.home() / ".cache" / "jaxfed").expanduser()


def files_key(files: list[Path], *settings: object) -> str:
    """Digest of the files' names, sizes and times of change, and of the settings."""
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr((sorted(stats), settings)).encode()).hexdigest()[:20]


def cached_arrays(name: str, key: str, make: Callable[[Path], None]) -> dict[str, np.ndarray]:
    """The arrays of `NAME-KEY`, memory-mapped and read-only; made first if they are not there.

    Args:
        name: for the reader of the directory.
        key: digest of everything the arrays depend on.
        make: writes `.npy` files into the directory it is given; called if there is no whole set.

    Returns:
        file name without ending -> array.

    Raises:
        UsageError: the cache's place cannot be written.
    """
    target = directory() / f"{name}-{key}"
    arrays = _read(target)
    if arrays is not None:
        return arrays
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise UsageError(
            f"{target.parent}: decoded data cannot be kept there ({error.strerror}); set $JAXFED_CACHE "
            "to a folder that can be written"
        ) from error
    try:
        make(made)
        sizes = {file.name: file.stat().st_size for file in made.glob("*.npy")}
        (made / _INDEX).write_text(json.dumps(sizes))
        shutil.rmtree(target, ignore_errors=True)  # damaged, or not there
        try:
            made.rename(target)
        except OSError:
            if _read(target) is None:  # else another process was faster, with the same arrays
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    arrays = _read(target)
    if arrays is None:
        raise OSError(f"{target}: what was just written cannot be read")
    return arrays


def _read(target: Path) -> dict[str, np.ndarray] | None:
    """The arrays, or None if any is missing or damaged."""
    try:
        sizes = json.loads((target / _INDEX).read_text())
        if any((target / file).stat().st_size != size for file, size in sizes.items()):
            return None
        return {Path(file).stem: np.load(target / file, mmap_mode="r") for file in sizes}
    except (OSError, ValueError):
        return None
