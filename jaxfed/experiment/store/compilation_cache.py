"""Persistent cache of compiled programs on disk.

Compiled programs are native code. Whoever can write to their folder decides what this process runs. A new
folder is therefore accessible to its owner alone, and a world-writable one is refused.
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
    """Switch on JAX's compilation cache; `setting` and errors as for `folder`.

    Programs that cannot be written or read are compiled; JAX's warnings of each, hundreds, are turned off.
    """
    path = folder(setting)
    if path is None:
        return
    with suppress(OSError):  # JAX says so itself
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(path))
    # Small programs too: there are many, and together they take a second or two.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")


def folder(setting: str) -> Path | None:
    """Return the cache folder, also `xla` in the cache directory for "auto"; None for "off".

    If that of "auto" cannot be used, a warning is logged and nothing is cached.

    Raises:
        UsageError: the requested folder cannot be written, or everybody can write in it or in a parent
            without the sticky bit, and so replace the folder.
    """
    if setting == "off":
        return None
    is_default = setting == "auto"
    key = "$JAXFED_CACHE" if is_default else "config.execution.compilation_cache"
    try:
        path = folder_to_write(cache.directory() / "xla" if is_default else setting, key)
        for part in (path, *path.absolute().parents):
            mode = part.stat().st_mode if part.exists() else 0
            if mode & stat.S_IWOTH and not (part != path and mode & stat.S_ISVTX):
                raise UsageError(
                    f"{key}={path}: everybody can write in {part}, and so run code in this process; "
                    f"chmod o-w {part}, or choose another folder"
                )
    except UsageError as error:
        if not is_default or os.environ.get("JAXFED_CACHE"):
            raise
        logging.warning("%s; compiled programs are not kept", error)
        return None
    return path
