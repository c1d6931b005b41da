"""Kinds of damage to a file, and a check of what its reader says."""

import io
import os
import signal
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import jaxfed


def _rewritten(change):
    return lambda file, rng: file.write_bytes(change(file.read_bytes(), rng))


def _flipped(content, rng):
    changed = bytearray(content)
    for place in rng.integers(0, len(content), rng.integers(1, 9)).tolist():
        changed[place] ^= int(rng.integers(1, 256))
    return bytes(changed)


def _spliced(content, rng):
    start, end = sorted(rng.integers(0, len(content) + 1, 2).tolist())
    return content[:start] + rng.bytes(int(rng.integers(1, 40))) + content[end:]


def _zeroed(content, rng):
    start = int(rng.integers(0, len(content)))
    return content[:start] + bytes(len(content) - start)


def _lines(change):
    def rewrite(content, rng):
        lines = content.splitlines(keepends=True)
        return b"".join(change(lines, int(rng.integers(0, len(lines)))))

    return _rewritten(rewrite)


def _in_place(make):
    def replace(file, rng):
        del rng
        file.unlink()
        make(file)

    return replace


def _objects(file):
    with io.BytesIO() as stream:
        np.savez(stream, record=np.array([{"progress": 1}], object))
        file.write_bytes(stream.getvalue())


ANY = {
    "gone": lambda file, rng: file.unlink(),
    "empty": _rewritten(lambda content, rng: b""),
    "cut": _rewritten(lambda content, rng: content[: int(rng.integers(0, len(content)))]),
    "flipped": _rewritten(_flipped),
    "spliced": _rewritten(_spliced),
    "zeroed": _rewritten(_zeroed),
    "longer": _rewritten(lambda content, rng: content + content),
    "noise": _rewritten(lambda content, rng: rng.bytes(len(content))),
    "a line less": _lines(lambda lines, n: lines[:n] + lines[n + 1 :]),
    "a line twice": _lines(lambda lines, n: lines[:n] + lines[n : n + 1] + lines[n:]),
    "a line of zeros": _lines(lambda lines, n: [*lines[:n], bytes(9), b"\n", *lines[n + 1 :]]),
    "old line ends": _rewritten(lambda content, rng: content.replace(b"\n", b"\r") + b"\r"),
    "deep": _in_place(lambda file: file.write_bytes(b"[" * 10**5 + b"\n")),
    "a huge number": _in_place(lambda file: file.write_bytes(b'{"round": ' + b"9" * 5000 + b"}\n")),
    "null": _in_place(lambda file: file.write_bytes(b"null\n")),
    "another alphabet": _in_place(lambda file: file.write_text('{"ä": 1}\n', encoding="utf-16")),
    "objects": _in_place(_objects),
    "a FIFO": _in_place(os.mkfifo),
    "a device": _in_place(lambda file: file.symlink_to("/dev/zero")),
    "a folder": _in_place(Path.mkdir),
    "a link to nothing": _in_place(lambda file: file.symlink_to("nothing")),
}


@contextmanager
def in_time(seconds=20):
    """Fail where the enclosed code hangs."""

    def hangs(*_):
        raise AssertionError(f"no answer within {seconds} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def says(read, match="."):
    """The reader says one line, which a pattern is found in; its error is returned."""
    with in_time(), pytest.raises(jaxfed.UsageError, match=match) as caught:
        read()
    assert "\n" not in str(caught.value)
    return caught.value


def says_or_reads(read):
    """The reader returns something, or says one line."""
    found, error = None, ""
    try:
        with in_time():
            found = read()
    except jaxfed.UsageError as caught:
        error = str(caught)
    assert "\n" not in error
    return found
