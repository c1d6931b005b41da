"""Files that are there whole or not at all, checksums of what they hold, locks, and full disks."""

from __future__ import annotations

import errno
import fcntl
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

_CHUNK = 2**20  # bytes


@contextmanager
def whole_file(file: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """A stream for a file that readers see whole or as it was before, whatever ends the writing."""
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    is_text = "b" not in mode
    try:
        with (
            naming(file),
            partial.open(
                mode,
                encoding="utf-8" if is_text else None,
                errors="backslashreplace"
                if is_text
                else None,  # half of a pair, in a name from data
                newline="" if is_text else None,
            ) as stream,
        ):
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def append(file: Path, text: str) -> None:
    """Add text to a file; part of it may be there where that fails.

    Raises:
        OSError: names the file.
    """
    with naming(file), file.open("a", encoding="utf-8", errors="backslashreplace") as stream:
        stream.write(text)


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Errors of writing name the file, which those of a full disk do not of themselves."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(file)
        raise


def remove_partial_files(directory: Path) -> None:
    """Remove what killed processes left in a directory; for the one that alone may write there."""
    for partial in directory.glob(".*.partial"):
        partial.unlink(missing_ok=True)


def file_checksum(file: Path, size: int | None = None) -> str:
    """`SIZE-CRC32` of a file's content, or of its first `size` bytes.

    Notices damage, not malice, at 2 GB/s. (SHA-256 has 0.2 GB/s on processors without instructions
    for it.)

    Raises:
        OSError: it cannot be read.
    """
    done, crc = 0, 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK if size is None else min(_CHUNK, size - done)):
            done, crc = done + len(chunk), zlib.crc32(chunk, crc)
    return f"{done}-{crc:08x}"


@contextmanager
def lock(path: Path, *, wait: bool = False) -> Iterator[int]:
    """Hold the lock of a file (made at need) or of a directory; however a process ends, it lets go.

    A process that inherits the descriptor, which is given, holds it, too.

    Raises:
        BlockingIOError: another process holds it, and we do not `wait`.
        OSError: the file cannot be made.
    """
    flags = os.O_RDONLY if path.is_dir() else os.O_WRONLY | os.O_CREAT
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield descriptor
    finally:
        os.close(descriptor)


def is_full(error: OSError) -> bool:
    """Whether it says that a disk, the user's share of it, or a limit on a file's size is full."""
    if error.errno is None:  # NumPy's own: "8000 requested and 4096 written"
        return "requested and" in str(error)
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
