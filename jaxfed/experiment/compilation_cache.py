"""Compiled programs kept on disk between processes."""

from __future__ import annotations

import os
from pathlib import Path

import jax
from absl import logging

from jaxfed.data import cache
from jaxfed.errors import UsageError
from jaxfed.host.location import folder_to_write


def enable(setting: str = "auto") -> None:
    """Switch on JAX's persistent compilation cache.

    Args:
        setting: a folder; "off" for none; "auto" for `xla` where caches are (`jaxfed.data.cache`).

    Raises:
        UsageError: as `folder`.
    """
    place = folder(setting)
    if place is None:
        return
    jax.config.update("jax_compilation_cache_dir", str(place))
    # Small programs too: there are many, and together they take a second or two.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


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
