"""Guarded readers of the files that jaxfed writes itself.

Workdirs, states, predictions, packed clients and caches are read here and nowhere else. A file
may be damaged, replaced, or made by a stranger. Each reader therefore

* opens regular files only: a FIFO or a device could block for ever;
* checks sizes before it allocates: of the file, of what is compressed in it, of each array by its header;
* unpickles nothing, and refuses JSON that is nested too deeply for later recursion;
* turns every other error into one line, `Damaged`.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
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

LARGEST = 2**30  # bytes of a file that is read as a whole
_RATIO = 100  # of a compressed table; deflate reaches 1,000, tables of predictions about 10
_DEPTH = 50  # of nested JSON
_MOST_NAMED = 3  # damaged lines


class Damaged(UsageError):
    """A file that cannot be read, has changed since it was written, or was not written by jaxfed."""


@contextmanager
def guarded(file: Path | str) -> Iterator[None]:
    """Turn every error of the enclosed reader into `Damaged`, one line with the file's name.

    Raises:
        UsageError: as the reader has raised it.
        Damaged: any other error.
    """
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
def opened(file: Path, most: int | None = None) -> Iterator[io.BufferedReader]:
    """Open a regular file of at most `most` bytes for reading; the enclosed code is guarded.

    Raises:
        Damaged: it is missing, no regular file, or larger; whatever else the enclosed code raises.
    """
    with guarded(file), open(file, "rb", opener=_without_waiting) as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise Damaged(f"cannot read {file}: it is not a regular file")
        if most is not None and status.st_size > most:
            raise Damaged(
                f"cannot read {file}: it has {status.st_size} bytes; at most {most} are allowed"
            )
        yield stream


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO's other end may never come


def content_of(file: Path, most: int | None = LARGEST) -> bytes:
    """Return the content of a regular file of at most `most` bytes; None: of any size.

    Raises:
        Damaged: as for `opened`.
    """
    with opened(file, most) as stream:
        return stream.read(most)


def json_object(content: bytes | str, file: Path | str) -> dict[str, Any]:
    """Parse the content of a file as one JSON object.

    Raises:
        Damaged: it is none, or nested too deeply.
    """
    with guarded(file):
        found = json.loads(content if isinstance(content, str) else content.decode())
        _check_depth(found)
    if not isinstance(found, dict):
        raise Damaged(f"cannot read {file}: it holds no JSON object")
    return found


def json_lines(content: bytes, file: Path) -> list[dict[str, Any]]:
    """Parse the content of a file as JSON objects, one a line.

    A last line without its end is left out: a process that was killed may have left it.

    Raises:
        Damaged: some other line holds no JSON object; names their numbers.
    """
    found, damaged = [], []
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        try:
            found.append(json_object(line, file))
        except Damaged:
            damaged.append(number)
    if damaged:
        more = len(damaged) - _MOST_NAMED
        lines = ", ".join(map(str, damaged[:_MOST_NAMED])) + f" and {more} more" * (more > 0)
        word = "line" if len(damaged) == 1 else "lines"
        raise Damaged(f"cannot read {file}: no JSON object in {word} {lines}")
    return found


def table_rows(content: bytes, columns: Sequence[str], file: Path) -> list[dict[str, str]]:
    """Decompress and parse the content of a `.csv.gz` file.

    Args:
        content: of the file.
        columns: its first line.
        file: for errors.

    Raises:
        Damaged: not a table of these columns, or a decompression bomb.
    """
    with guarded(file):
        most = min(LARGEST, _RATIO * len(content) + 1024)
        with gzip.open(io.BytesIO(content)) as stream:
            text = stream.read(most + 1)
        if len(text) > most:
            raise ValueError(f"it decompresses to more than {most} bytes")
        first, *rows = csv.reader(io.StringIO(text.decode(), newline=""), strict=True)
        if first != list(columns):
            raise ValueError(f"its columns are not {','.join(columns)}")
        return [dict(zip(columns, row, strict=True)) for row in rows]


def array(content: bytes | memoryview) -> np.ndarray:
    """Return the array of an `.npy` file's content; for guarded callers.

    Raises:
        ValueError: damaged, of Python objects, or of a shape that does not fit the number of bytes.
    """
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ValueError(f"version {version} of NumPy's format")
    shape, is_fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("an array of Python objects")
    count, left = math.prod(shape), memoryview(content)[stream.tell() :]
    if count * dtype.itemsize != len(left) or not dtype.itemsize:
        raise ValueError(f"{len(left)} bytes for {dtype} {list(shape)}")
    if not count:
        return np.empty(shape, dtype)
    found = np.frombuffer(left, dtype).reshape(shape, order="F" if is_fortran else "C")
    return found.copy("K")


@contextmanager
def archive(file: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive of uncompressed members, as checkpoints are; the enclosed code is guarded.

    Raises:
        Damaged: no such archive; compressed or overlapping members, which could be bombs.
    """
    with opened(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        with zipfile.ZipFile(stream) as found:
            members = found.infolist()
            if any(each.compress_type != zipfile.ZIP_STORED for each in members):
                raise ValueError("a compressed member")
            if sum(each.file_size for each in members) > size:
                raise ValueError("members of more bytes than the file")
            yield found


def arrays_of(file: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an `.npz` file that `numpy.savez` wrote; checksums are verified.

    Raises:
        Damaged: as for `archive`; a member that is no array.
    """
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
        value = np.array(value)
        if value.dtype.kind not in "iuf":
            raise ValueError(f"{name} is no array of numbers")
        value = value.astype(np.float64)
    if form is float and type(value) is int:
        value = float(value)
    if type(value) is not (get_origin(form) or form):
        raise ValueError(f"{name} is of type {type(value).__name__}")
    return value


def _check_depth(value: Any, depth: int = 0) -> None:
    if isinstance(value, dict | list):
        if depth == _DEPTH:
            raise ValueError(f"nested more than {_DEPTH} deep")
        for each in value.values() if isinstance(value, dict) else value:
            _check_depth(each, depth + 1)
