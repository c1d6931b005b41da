"""`location`: a path that a user gives, `~` expanded, that the system can at least look for."""

from __future__ import annotations

import os
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
