"""Atomic files, tables as CSV, checksums, locks, and full disks."""

from __future__ import annotations

import csv
import errno
import fcntl
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from jaxfed.errors import UsageError
from jaxfed.host import safe_files

LOCK = ".lock"  # file in a claimed folder

_BEGUN = ".jaxfed-begun-"  # begins the names of folders that are not complete yet
_CHUNK = 2**20  # bytes
_FORMULA = re.compile(r"[=+\-@\t\r\n]")
_NUMBERS = re.compile(r"([-+]?([0-9.]+([eE][-+]?[0-9]+)?|nan|inf)( |$))+")
_TEXT: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace", "newline": ""}


@contextmanager
def whole_file(file: Path, mode: str = "w", permissions: int = 0o666) -> Iterator[IO[Any]]:
    """A stream for an atomic write: readers see the new file whole, or the old one."""
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")

    def opener(path: str, flags: int) -> int:
        return os.open(path, flags, permissions)

    try:
        with (
            naming(file),
            # A name from data may have half of a surrogate pair.
            open(partial, mode, opener=opener, **_TEXT if "b" not in mode else {}) as stream,
        ):
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_csv(path: Path, columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows of numbers and names as a CSV file in UTF-8; missing values and None are empty.

    A text that a spreadsheet would run as a formula (it begins with =, +, -, @, a tab or a line break) gets a
    leading apostrophe, unless it is a number or a row of numbers.

    Raises:
        ValueError: a row with a key that is not a column.
        OSError: for example, the disk is full; an existing file is unchanged.
    """
    with whole_file(path) as stream:
        writer = csv.DictWriter(stream, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: inert(value) for key, value in row.items()} for row in rows)


def inert(value: Any) -> Any:
    """Return the value; a text as `write_csv` writes it."""
    if not isinstance(value, str):
        return value
    text = value.replace("\r", "\n")  # which csv quotes, and not \r before Python 3.13
    return f"'{text}" if _FORMULA.match(text) and not _NUMBERS.fullmatch(text) else text


def append(file: Path, text: str) -> None:
    """Append text to a file; on failure, part of it may be written."""
    with naming(file), file.open("a", encoding="utf-8", errors="backslashreplace") as stream:
        stream.write(text)


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Add the file's name to errors of writing; a full disk's error has none."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(file)
        raise


def remove_partial_files(directory: Path) -> None:
    """Remove partial files of killed processes; only for the directory's single writer."""
    for partial in directory.glob(".*.partial"):
        partial.unlink(missing_ok=True)


def file_checksum(file: Path, size: int | None = None) -> str:
    """`SIZE-CRC32` of a file's content, or of its first `size` bytes; `Damaged` if it cannot be read.

    Detects damage, not malice, at 2 GB/s. (SHA-256 has 0.2 GB/s on processors without instructions for it.)
    """
    done, crc = 0, 0
    with safe_files.opened(file) as stream:
        while chunk := stream.read(_CHUNK if size is None else min(_CHUNK, size - done)):
            done, crc = done + len(chunk), zlib.crc32(chunk, crc)
    return f"{done}-{crc:08x}"


@contextmanager
def lock(path: Path, *, wait: bool = False) -> Iterator[int]:
    """Hold the lock of a file (created if missing) or of a directory; any end of the process releases it.

    A process that inherits the yielded descriptor holds the lock too.

    Raises:
        BlockingIOError: another process holds it, and `wait` is false.
        OSError: the file cannot be created.
    """
    flags = os.O_RDONLY if path.is_dir() else os.O_WRONLY | os.O_CREAT
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def begun_folder(target: Path) -> Iterator[Path]:
    """A new folder beside the target, locked while this process works on it and removed afterwards.

    Rename it to the target once it is complete. Folders that killed processes left unfinished are removed.

    Raises:
        OSError: the target's parent cannot be written.
    """
    home = target.parent
    with ExitStack() as stack:
        home.mkdir(parents=True, exist_ok=True)
        with lock(home, wait=True):  # else others may take it for abandoned
            for begun in home.glob(f"{_BEGUN}*"):
                with suppress(BlockingIOError, FileNotFoundError), lock(begun):
                    shutil.rmtree(begun, ignore_errors=True)
            made = Path(tempfile.mkdtemp(prefix=f"{_BEGUN}{target.name}.", dir=home))
            stack.callback(shutil.rmtree, made, ignore_errors=True)
            stack.enter_context(lock(made))
        yield made


@contextmanager
def claimed(folder: Path, busy: str) -> Iterator[int]:
    """Create a folder if it is missing, hold its lock, and remove partial files of killed processes.

    Yields the lock's descriptor, as `lock` does. `busy` is the error if another process holds the lock.

    Raises:
        UsageError: another process holds it, or the folder cannot be written.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = stack.enter_context(lock(folder / LOCK))
        except BlockingIOError:
            raise UsageError(f"--workdir={folder}: {busy}") from None
        except OSError as error:
            raise UsageError(f"--workdir={folder}: {error.filename}: {error.strerror}") from error
        remove_partial_files(folder)
        yield descriptor


def is_full(error: OSError) -> bool:
    """True if the error means a full disk, an exceeded quota or an exceeded limit on file size."""
    if error.errno is None:  # NumPy's own: "8000 requested and 4096 written"
        return "requested and" in str(error)
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
