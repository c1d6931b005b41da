"""Guarded readers of the files that jaxfed writes itself.

Workdirs, states, predictions, packed clients and caches are read here and nowhere else. A file may be
damaged, or made by a stranger. The readers therefore open regular files only (a FIFO or a device could block
for ever), unpickle nothing, and turn every other error into one line, `Damaged`.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import stat
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from jaxfed.errors import UsageError


class Damaged(UsageError):
    """A file that cannot be read, has changed since it was written, or was not written by jaxfed."""


@contextmanager
def guarded(file: Path | str) -> Iterator[None]:
    """Turn every error of the enclosed reader but a `UsageError` into `Damaged`, with the file's name."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # zipfile, NumPy, gzip and JSON raise a dozen kinds
        text = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        is_plain = isinstance(error, OSError | json.JSONDecodeError) and text
        why = text if is_plain else f"{type(error).__name__}: {text}"
        raise Damaged(f"cannot read {file}: {why}") from error


@contextmanager
def opened(file: Path) -> Iterator[io.BufferedReader]:
    """Open a regular file for reading; the enclosed code is guarded."""
    with guarded(file), open(file, "rb", opener=_without_waiting) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise Damaged(f"cannot read {file}: it is not a regular file")
        yield stream


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO's other end may never come


def content_of(file: Path) -> bytes:
    """Return the content of a regular file; `Damaged` if it cannot be read."""
    with opened(file) as stream:
        return stream.read()


def json_object(content: bytes | str, file: Path | str) -> dict[str, Any]:
    """Parse the content of a file as one JSON object; `Damaged` if it is none."""
    with guarded(file):
        value = json.loads(content if isinstance(content, str) else content.decode())
    if not isinstance(value, dict):
        raise Damaged(f"cannot read {file}: it holds no JSON object")
    return value


def json_lines(content: bytes, file: Path) -> list[dict[str, Any]]:
    """Parse the content of a file as JSON objects, one a line; half a last line, of a kill, is left out."""
    lines = enumerate(content.split(b"\n")[:-1], 1)
    return [json_object(line, f"line {number} of {file}") for number, line in lines]


def table_rows(content: bytes, columns: Sequence[str], file: Path) -> list[dict[str, str]]:
    """Decompress and parse the content of a `.csv.gz` file; `Damaged` if it is no table of these columns."""
    with guarded(file):
        text = gzip.decompress(content).decode()
        first, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
        if first != list(columns):
            raise ValueError(f"its columns are not {','.join(columns)}")
        return [dict(zip(columns, row, strict=True)) for row in rows]


def array(content: bytes | memoryview) -> np.ndarray:
    """Return the array of an `.npy` file's content; for guarded callers.

    Raises:
        ValueError: damaged, of Python objects, or of a shape that does not fit the number of bytes.
    """
    stream = io.BytesIO(content)
    result: np.ndarray = np.lib.format.read_array(stream, allow_pickle=False)
    if left := len(stream.read()):
        raise ValueError(f"{left} bytes more than {result.dtype} {list(result.shape)} has")
    return result


@contextmanager
def archive(file: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive, as checkpoints are; the enclosed code is guarded."""
    with opened(file) as stream, zipfile.ZipFile(stream) as members:
        yield members


def arrays_of(file: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an `.npz` file that `numpy.savez` wrote; checksums are verified."""
    with archive(file) as members:
        return {name.removesuffix(".npy"): array(members.read(name)) for name in members.namelist()}


def typed(form: Any, value: Any, name: str) -> Any:
    """Convert parsed JSON to a type: its schema is the annotations of dataclasses and named tuples.

    Args:
        form: a JSON type, `tuple[...]`, `np.ndarray` (float64), a dataclass, a named tuple, or one `| None`.
        value: of JSON; a list for a tuple or an array, an object for a class.
        name: of the value, for errors.

    Raises:
        ValueError: another type; a key that is missing or unknown; what the class itself refuses.
    """
    parts = get_args(form)
    if isinstance(form, UnionType):
        form = next(part for part in parts if part is not type(None))
        return None if value is None else typed(form, value, name)
    if get_origin(form) is tuple and isinstance(value, list):
        forms = parts[:1] * len(value) if Ellipsis in parts else parts
        pairs = enumerate(zip(forms, value, strict=True))
        return tuple(typed(part, each, f"{name}[{i}]") for i, (part, each) in pairs)
    if isinstance(value, dict) and hasattr(form, "__annotations__"):
        hints = get_type_hints(form)
        if unknown := value.keys() - hints.keys():
            raise ValueError(f"{name} has {min(unknown)}, which nothing reads")
        return form(
            **{key: typed(hints[key], each, f"{name}.{key}") for key, each in value.items()}
        )
    if form is np.ndarray and isinstance(value, list):
        return np.array(value, np.float64)
    if form is float and type(value) is int:
        value = float(value)
    if type(value) is not (get_origin(form) or form):
        raise ValueError(f"{name} is of type {type(value).__name__}")
    return value
