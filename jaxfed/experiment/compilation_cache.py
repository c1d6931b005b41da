"""Compiled programs kept on disk between processes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from absl import logging

from jaxfed.data import cache
from jaxfed.errors import UsageError
from jaxfed.host.location import folder_to_write

_NOT_WRITTEN = "Error writing persistent compilation cache entry"


def enable(setting: str = "auto") -> None:
    """Switch on JAX's persistent compilation cache.

    Args:
        setting: a folder; "off" for none; "auto" for `xla` where caches are (`jaxfed.data.cache`).

    Raises:
        UsageError: as `folder`.

    A folder that cannot be written any more, of a full disk, say, is a line once: JAX warns of every program.
    """
    place = folder(setting)
    if place is None:
        return
    jax.config.update("jax_compilation_cache_dir", str(place))
    # Small programs too: there are many, and together they take a second or two.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if not isinstance(warnings.showwarning, _FirstOnly):
        warnings.showwarning = _FirstOnly(place, warnings.showwarning)


class _FirstOnly:
    """Shows warnings as `show` does, but of those that a program was not kept a line of the first."""

    def __init__(self, place: Path, show: Callable[..., None]) -> None:
        self._place, self._show, self._has_told = place, show, False

    def __call__(self, message: Warning | str, *where: Any, **more: Any) -> None:
        text = str(message)
        if not text.startswith(_NOT_WRITTEN):
            self._show(message, *where, **more)
        elif not self._has_told:
            self._has_told = True
            why = " ".join(text.partition("': ")[2].split())
            logging.warning("%s: %s; programs that do not fit are not kept", self._place, why)


def folder(setting: str) -> Path | None:
    """Where programs are kept by a setting, as `enable` takes it; None for nowhere.

    A home folder that cannot be written, where nothing else was asked for, is said in a line and no obstacle.

    Raises:
        UsageError: what was asked for is no folder that can be written.
    """
    if setting == "off":
        return None
    if setting != "auto":
        return folder_to_write(setting, "config.execution.compilation_cache")
    try:
        return folder_to_write(cache.directory() / "xla", cache.named_by())
    except UsageError as error:
        if os.environ.get("JAXFED_CACHE"):
            raise
        logging.warning("%s; compiled programs are not kept", error)
        return None
