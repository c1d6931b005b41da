"""Persistent cache of compiled programs on disk.

Compiled programs are native code. Whoever can write to their folder decides what this process runs. A new
folder is therefore accessible to its owner alone, a world-writable one is refused, and one of another user
causes a warning.
"""

from __future__ import annotations

import os
import stat
import warnings
from contextlib import suppress
from pathlib import Path

import jax
from absl import logging

from jaxfed.data import cache
from jaxfed.errors import UsageError
from jaxfed.host.location import folder_to_write


def enable(setting: str = "auto") -> None:
    """Switch on JAX's persistent compilation cache.

    Args:
        setting: a folder; "off" for none; "auto" for `xla` in the cache directory (`jaxfed.data.cache`).

    Raises:
        UsageError: as `folder`.

    Programs that cannot be written (on a full disk, for example) or read (a damaged file) are compiled. JAX
    warns of every one, and so of hundreds: these warnings are turned off.
    """
    place = folder(setting)
    if place is None:
        return
    with suppress(OSError):  # JAX says so itself
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(place))
    # Small programs too: there are many, and together they take a second or two.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")


def folder(setting: str) -> Path | None:
    """Return the cache folder for a setting of `enable`; None if programs are not cached.

    An unusable default folder is no error: a warning is logged and nothing is cached.

    Raises:
        UsageError: the requested folder cannot be written, or is world-writable.
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
    """Return the folder if nobody else can put programs into it.

    Raises:
        UsageError: the folder is world-writable, or a parent is (without the sticky bit), and anybody
            could replace the folder.
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
