"""Paths from the user, with `~` expanded: `location`, and `folder_to_write`, `file_to_write` for outputs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from jaxfed.errors import UsageError


def location(value: str | os.PathLike[str], key: str) -> Path:
    """Expand and check a path; the caller checks that it exists.

    Args:
        value: as the user wrote it; `~` and `~name` are home folders.
        key: origin of the path: a flag, a config's key, an environment variable. Errors begin with it.

    Raises:
        UsageError: no path, an invalid name, such as one of 300 characters, or a path in an unreadable
            folder.
    """
    text = path_text(value, key)
    try:
        text.encode()
        path = Path(text).expanduser()
        os.stat(path)  # Path.exists is False for some of these, depending on Python's version
    except (FileNotFoundError, NotADirectoryError):
        return path
    except (OSError, RuntimeError, ValueError) as error:  # ~nobody, a NUL, half of a surrogate pair
        wrong = getattr(error, "strerror", None) or str(error)
        shown = text.encode(errors="backslashreplace").decode()
        raise UsageError(wrong, key=key, value=shown) from error
    return path


def path_text(value: str | os.PathLike[str], key: str) -> str:
    """Return the text of a path; arguments as for `location`. `UsageError` if it is neither."""
    if not isinstance(value, str | os.PathLike):
        wrong = f"is of type {type(value).__name__}"
        raise UsageError(wrong, key=key, allowed="give a path, as text")
    return os.fspath(value)


def folder_to_write(folder: str | os.PathLike[str], key: str) -> Path:
    """Check that files can be written in a folder, or in the nearest existing one, where it is missing.

    Checked before the work for the contents begins; nothing is left behind. Arguments as for `location`.
    """
    path = location(folder, key)
    _check(path, folder, key)
    return path


def file_to_write(file: str | os.PathLike[str], key: str) -> Path:
    """Check that a file can be written; as `folder_to_write` for its folder, and that it is none itself."""
    path = location(file, key)
    if path.is_dir():
        raise UsageError("is a folder", key=key, value=os.fspath(file))
    _check(path.parent, file, key)
    return path


def _check(folder: Path, value: str | os.PathLike[str], key: str) -> None:
    existing = next(existing for existing in (folder, *folder.parents) if existing.exists())
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        wrong = f"cannot write in {existing}: {error.strerror}"
        raise UsageError(wrong, key=key, value=os.fspath(value)) from error
