"""Readers of a workdir's files that compare them with the manifest of a finished run.

    manifest.json    {"files": {name: [length, SHA-256]}}

Every reader of these files calls `read_file`, or `check_manifest` for files that another reader opens.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxfed.host import safe_files
from jaxfed.host.safe_files import Damaged

MANIFEST = "manifest.json"
STATES = ("states", "preprocessing")  # folders of large files, compared when they are read
PREDICTED = ("client", "index", "role", "label", "confidence", "truth")  # columns of predictions


def read_file(workdir: Path, name: str) -> bytes:
    """Return the content of a file of a workdir; all readers of its files call this.

    Raises:
        Damaged: it cannot be read, or differs from the run's manifest.
    """
    content = safe_files.content_of(workdir / name)
    found = len(content), hashlib.sha256(content).hexdigest()
    _check(workdir / name, read_manifest(workdir).get(name), found)
    return content


def read_json(workdir: Path, name: str) -> dict[str, Any]:
    """Return the JSON object in a file of a workdir."""
    return safe_files.json_object(read_file(workdir, name), workdir / name)


def read_predictions(workdir: Path, method: str, repeat: int) -> list[dict[str, str]] | None:
    """Return the rows of a method's predictions, as texts by `PREDICTED`; None if it has none."""
    name = f"predictions/{method}-{repeat}.csv.gz"
    if not (workdir / name).exists() and name not in read_manifest(workdir):
        return None
    return safe_files.table_rows(read_file(workdir, name), PREDICTED, workdir / name)


def read_manifest(workdir: Path) -> dict[str, tuple[int, str]]:
    """Return name -> length and SHA-256 of the files of a finished run; {} for one of an older version."""
    file = workdir / MANIFEST
    if not os.path.lexists(file):
        return {}
    with safe_files.guarded(file):
        found = safe_files.json_object(safe_files.content_of(file), file)["files"]
        return {str(name): (int(size), str(digest)) for name, (size, digest) in found.items()}


def manifest_of(workdir: Path, names: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Return name -> length and SHA-256 of those files that exist, and of all files in those folders."""
    files = (file for name in names for file in _files_in(workdir / name))
    return {str(file.relative_to(workdir)): _measured(file) for file in files}


def check_manifest(workdir: Path, folder: str = "") -> None:
    """Compare the files of a finished run with its manifest.

    Args:
        workdir: of the run.
        folder: the files of this folder of states only (`STATES`); by default all others, which are small.

    Raises:
        Damaged: names a file that is missing or has changed.
    """
    for name, expected in read_manifest(workdir).items():
        if name.startswith(folder) if folder else not name.startswith(STATES):
            _check(workdir / name, expected, _measured(workdir / name))


def _check(file: Path, expected: tuple[int, str] | None, found: tuple[int, str]) -> None:
    if expected is not None and expected != found:
        sizes = (
            f"{found[0]} bytes, {expected[0]} then" if found[0] != expected[0] else "other bytes"
        )
        raise Damaged(f"{file} has changed since the run wrote it ({sizes}); restore the file")


def _measured(file: Path) -> tuple[int, str]:
    with safe_files.opened(file) as stream:
        digest = hashlib.file_digest(stream, "sha256")
        return stream.tell(), digest.hexdigest()


def _files_in(place: Path) -> list[Path]:
    return sorted(file for file in (place, *place.rglob("*")) if file.is_file())
