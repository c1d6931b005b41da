"""Readers of data sets in files, and the guard around them: damaged or hostile files become one line."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxfed.errors import UsageError
from jaxfed.host import storage

_ROOT = Path(__file__).parents[2]


@contextmanager
def guarded(name: object) -> Iterator[None]:
    """Turn whatever a built-in reader raises into a `UsageError` that names its file or data set.

    A full disk stays an `OSError`, which entries handle. The error names the place in this package, to
    distinguish a bug from a damaged file. Readers registered by a user are not guarded.
    """
    try:
        yield
    except (UsageError, ModuleNotFoundError):
        raise
    except MemoryError as error:
        raise UsageError(
            f"{name}: reading it takes more memory than is available ({_words(error)})"
        ) from error
    except Exception as error:
        if isinstance(error, OSError) and storage.is_full(error):
            raise
        if isinstance(error, FileNotFoundError) and error.filename == str(name):
            raise UsageError(f"{name}: there is no such file") from error
        found = _words(error)
        is_text = isinstance(error, UnicodeDecodeError) or "utf8" in found.lower()
        advice = "; save text in UTF-8, for example by iconv -f windows-1252 -t utf-8" * is_text
        raise UsageError(
            f"{name}: cannot be read, it is damaged or has another format ({found}){advice}"
        ) from error


def _words(error: BaseException) -> str:
    """The error's kind and message in one line, and where in this package it came from."""
    text = " ".join(str(error).split())[:200]
    ours = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if _ROOT in Path(frame.filename).parents
    ]
    place = f", {Path(ours[-1].filename).name} line {ours[-1].lineno}" if ours else ""
    return f"{type(error).__name__}: {text}{place}"
