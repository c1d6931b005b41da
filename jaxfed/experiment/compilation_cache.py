"""Compiled programs kept on disk between processes.

They are native code: whoever can write in their folder decides what this process runs. So the folder is made
for its owner alone, one that everybody can write in is refused, and one of another user comes with a warning.
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
from absl import logging

from jaxfed.data import cache
from jaxfed.errors import UsageError
from jaxfed.host.location import folder_to_write

# What JAX's warnings of single programs begin with -> what is said of the folder, once.
_WARNINGS = {
    "Error writing persistent compilation cache entry": "programs that do not fit are not kept",
    "Error reading persistent compilation cache entry": (
        "such programs are compiled anew in every run, until this folder is deleted"
    ),
}


def enable(setting: str = "auto") -> None:
    """Switch on JAX's persistent compilation cache.

    Args:
        setting: a folder; "off" for none; "auto" for `xla` where caches are (`jaxfed.data.cache`).

    Raises:
        UsageError: as `folder`.

    A folder that cannot be written any more, of a full disk, say, or that holds damaged programs is a line
    once: JAX warns of every program.
    """
    place = folder(setting)
    if place is None:
        return
    with suppress(OSError):  # JAX says so itself
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(place))
    # Small programs too: there are many, and together they take a second or two.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if not isinstance(warnings.showwarning, _FirstOnly):
        warnings.showwarning = _FirstOnly(place, warnings.showwarning)


class _FirstOnly:
    """Shows warnings as `show` does, but of each kind about kept programs a line of the first."""

    def __init__(self, place: Path, show: Callable[..., None]) -> None:
        self._place, self._show = place, show
        self._told: set[str] = set()

    def __call__(self, message: Warning | str, *where: Any, **more: Any) -> None:
        text = str(message)
        kind = next((kind for kind in _WARNINGS if text.startswith(kind)), "")
        if not kind:
            self._show(message, *where, **more)
        elif kind not in self._told:
            self._told.add(kind)
            why = " ".join(text.partition("': ")[2].split())[:200]
            logging.warning("%s: %s; %s", self._place, why, _WARNINGS[kind])


def folder(setting: str) -> Path | None:
    """Where programs are kept by a setting, as `enable` takes it; None for nowhere.

    A home folder that cannot be used, where nothing else was asked for, is said in a line and no obstacle.

    Raises:
        UsageError: what was asked for is no folder that can be written, or one that everybody can write in.
    """
    if setting == "off":
        return None
    if setting != "auto":
        key = "config.execution.compilation_cache"
        return _trusted(folder_to_write(setting, key), key)
    key = cache.named_by()
    try:
        return _trusted(folder_to_write(cache.directory() / "xla", key), key)
    except UsageError as error:
        if os.environ.get("JAXFED_CACHE"):
            raise
        logging.warning("%s; compiled programs are not kept", error)
        return None


def _trusted(place: Path, key: str) -> Path:
    """The folder, if nobody else can put programs into it.

    Raises:
        UsageError: everybody can, in it or by another one in its place.
    """
    for part in (place, *place.absolute().parents):
        if not part.exists():
            continue
        status = part.stat()
        is_sticky = part != place and status.st_mode & stat.S_ISVTX
        if status.st_mode & stat.S_IWOTH and not is_sticky:
            raise UsageError(
                f"{key}={place}: everybody can write in {part}, and so run code in this process; "
                f"chmod o-w {part}, or choose another folder"
            )
        if part == place and status.st_uid not in (0, os.getuid()):
            logging.warning(
                "%s=%s belongs to another user (%d), whose compiled programs this process runs",
                key,
                place,
                status.st_uid,
            )
    return place
