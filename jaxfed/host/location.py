"""Paths from the user, with `~` expanded: `location`, and for writable paths `file_to_write` and
`folder_to_write`; `path_text` checks that they are paths.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxfed.errors import UsageError


def location(given: str | os.PathLike[str], key: str) -> Path:
    """Expand and check a path; the caller checks that it exists.

    Args:
        given: as the user wrote it; `~` and `~name` are home folders.
        key: origin of the path: a flag, a config's key, an environment variable. Errors begin with it.

    Raises:
        UsageError: no path, an invalid name, such as one of 300 characters, or a path in an unreadable
            folder.
    """
    text = path_text(given, key)
    try:
        text.encode()
    except UnicodeEncodeError:
        escaped = text.encode(errors="backslashreplace").decode()
        raise UsageError("is not UTF-8", key=key, value=escaped) from None
    try:
        path = Path(text).expanduser()
        os.stat(path)  # Path.exists is False for some of these, depending on Python's version
    except (FileNotFoundError, NotADirectoryError):
        return path
    except (OSError, RuntimeError, ValueError) as error:  # the last two: ~nobody, a NUL
        wrong = getattr(error, "strerror", None) or str(error)
        raise UsageError(wrong, key=key, value=text) from error
    return path


def path_text(given: str | os.PathLike[str], key: str) -> str:
    """Return the text of a path; arguments as for `location`.

    Raises:
        UsageError: neither a text nor a path.
    """
    if not isinstance(given, str | os.PathLike):
        raise UsageError(
            f"is of type {type(given).__name__}", key=key, allowed="give a path, as text"
        )
    return os.fspath(given)


def file_to_write(given: str | os.PathLike[str], key: str) -> Path:
    """Check that a file can be written, before the work for its contents begins.

    Nothing is left behind: an existing file is opened and closed; otherwise a nameless file is created in the
    nearest existing folder. Arguments as for `location`.

    Raises:
        UsageError: as `location`; a folder, or a place where no file can be created.
    """
    path = location(given, key)
    place = _nearest(path)
    with _refusing(given, key, place):
        if place == path:
            path.open("ab").close()
        else:
            tempfile.TemporaryFile(dir=place).close()
    return path


def folder_to_write(given: str | os.PathLike[str], key: str) -> Path:
    """Check that a folder exists or can be created, and that files can be written in it.

    Nothing is left behind, as with `file_to_write`. Arguments as for `location`.

    Raises:
        UsageError: as `location`; a file, or a place where no folder can be created.
    """
    path = location(given, key)
    place = _nearest(path)
    with _refusing(given, key, place):
        tempfile.TemporaryFile(dir=place).close()
    return path


def _nearest(path: Path) -> Path:
    """The path, or its nearest existing parent folder."""
    return next(place for place in (path, *path.parents) if place.exists())


@contextmanager
def _refusing(given: str | os.PathLike[str], key: str, place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        wrong = f"cannot write in {place}: {error.strerror}"
        raise UsageError(wrong, key=key, value=os.fspath(given)) from error
