"""Provenance of a result: device, versions, commit and command."""

from __future__ import annotations

import os
import platform
import resource
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

_ROOT = Path(__file__).parents[3]


def describe() -> dict[str, Any]:
    """Return the description of machine and code that a summary contains.

    `commit` and `dirty` (True if tracked files differ from the commit) are None outside a git checkout.
    """
    device = jax.devices()[0]
    commit = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return {
        "backend": device.platform,
        "device": processor(),
        "num_devices": jax.device_count(),
        "num_processes": jax.process_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        **{package: version(package) for package in ("jax", "jaxlib", "numpy")},
        "peak_memory_bytes": peak_memory_bytes(),
        "commit": commit,
        "dirty": None if changes is None else bool(changes),
        "command": shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
    }


def processor() -> str:
    """The accelerator's kind, or the CPU's model and number of cores."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        return device.device_kind
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else ()
    split = (line.partition(":") for line in lines)
    fields = {key.strip(): value.strip() for key, colon, value in split if colon}
    model = f"{fields.get('model name', 'unknown CPU')} (family {fields.get('cpu family')}, "
    return f"{model}model {fields.get('model')}), {os.cpu_count()} cores"


def peak_memory_bytes() -> int:
    """Return the peak host memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _git(*arguments: str) -> str | None:
    """Standard output of a git command on this checkout; None without git or a checkout.

    An installed package may lie in an unrelated checkout, so only the package's own root is read.
    """
    if not (_ROOT / ".git").exists():
        return None
    try:
        return subprocess.check_output(
            ["git", "-C", str(_ROOT), *arguments], stderr=subprocess.DEVNULL, text=True, timeout=10
        ).strip()
    except (OSError, subprocess.SubprocessError):
        return None
