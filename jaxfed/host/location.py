"""Paths that a user gives, `~` expanded: `location`, which the system can look for, and where it can write,
`file_to_write` and `folder_to_write`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxfed.errors import UsageError


def location(given: str | os.PathLike[str], key: str) -> Path:
    """The path; whether anything is there is the caller's to ask.

    Args:
        given: as the user wrote it; `~` and `~name` are home folders.
        key: where: a flag, a config's key, an environment variable. The error's line begins with it.

    Raises:
        UsageError: a name that the system cannot look for, such as one of 300 characters, or one in a
            folder that may not be looked into.
    """
    text = os.fspath(given)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{key}={text!a}: is not UTF-8") from None
    try:
        path = Path(text).expanduser()
        os.stat(path)  # Path.exists says False of some of these, depending on Python's version
    except (FileNotFoundError, NotADirectoryError):
        return path
    except OSError as error:
        raise UsageError(f"{key}={text}: {error.strerror}") from error
    except RuntimeError as error:  # ~nobody
        raise UsageError(f"{key}={text}: {error}") from error
    except ValueError as error:  # a NUL
        raise UsageError(f"{key}={text!a}: {error}") from error
    return path


def file_to_write(given: str | os.PathLike[str], key: str) -> Path:
    """The path of a file that can be written, asked before the work whose results it is for.

    Nothing is left behind: a file that is there is opened and closed, and where there is none a nameless one
    is made in the nearest folder that is there.

    Args:
        given: as the user wrote it.
        key: where, as in `location`.

    Raises:
        UsageError: as `location`; a folder, or a place where no file can be made.
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
    """The path of a folder that is there or can be made, and that files can be written in.

    Nothing is left behind, as by `file_to_write`.

    Args:
        given: as the user wrote it.
        key: where, as in `location`.

    Raises:
        UsageError: as `location`; a file, or a place where no folder can be made.
    """
    path = location(given, key)
    place = _nearest(path)
    with _refusing(given, key, place):
        tempfile.TemporaryFile(dir=place).close()
    return path


def _nearest(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return next(place for place in (path, *path.parents) if place.exists())


@contextmanager
def _refusing(given: str | os.PathLike[str], key: str, place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"{key}={given}: cannot write in {place}: {error.strerror}") from error
