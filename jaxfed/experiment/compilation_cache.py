"""Compiled programs kept on disk between processes."""

from __future__ import annotations

import os
from pathlib import Path

import jax


def enable(setting: str = "auto") -> None:
    """Switch on JAX's persistent compilation cache.

    Args:
        setting: a directory; "off" for none; "auto" for `$JAXFED_CACHE/xla`, else
        `~/.cache/jaxfed/xla`.
    """
    if setting == "off":
        return
    cache = os.environ.get("JAXFED_CACHE") or "~/.cache/jaxfed"
    directory = Path(cache) / "xla" if setting == "auto" else Path(setting)
    jax.config.update("jax_compilation_cache_dir", str(directory.expanduser()))
    # Small programs too: there are many, and together they take a second or two.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
