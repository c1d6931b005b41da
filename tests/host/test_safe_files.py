"""Readers of our own files: each limit by its words, so that none is another's doing."""

import gzip
import io
import os
import zipfile

import numpy as np
import pytest
from damaged_files import says

from jaxfed.host import safe_files

COLUMNS = ("a", "b")


def npy(array, **changes):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, **changes)
    return stream.getvalue()


def written(content):
    return lambda file: file.write_bytes(content)


def table(text):
    return written(gzip.compress(text.encode()))


def rows(file):
    return safe_files.table_rows(safe_files.content_of(file), COLUMNS, file)


def an_object(file):
    return safe_files.json_object(safe_files.content_of(file), file)


def an_array(file):
    with safe_files.guarded(file):
        return safe_files.array(safe_files.content_of(file))


CASES = {
    "no file": (lambda file: None, an_object, "No such file or directory"),
    "FIFO": (os.mkfifo, an_object, "it is not a regular file"),
    "device": (lambda file: file.symlink_to("/dev/zero"), an_object, "it is not a regular file"),
    "list": (written(b"[]"), an_object, "it holds no JSON object"),
    "deeper": (written(b'{"a":' * 10**5), an_object, "RecursionError"),
    "no text": (written(b'{"a": "\xff"}'), an_object, "UnicodeDecodeError"),
    "columns": (table("a,c\n"), rows, "its columns are not a,b"),
    "short row": (table("a,b\n1\n"), rows, "ValueError"),
    "cut table": (written(gzip.compress(b"a,b\n")[:-4]), rows, "EOFError"),
    "objects": (written(npy(np.array([print], object))), an_array, "ValueError: Object arrays"),
    "fewer bytes": (written(npy(np.zeros(9))[:-1]), an_array, "ValueError: EOF"),
    "more bytes": (written(npy(np.zeros(9)) + b"0"), an_array, "1 bytes more than"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_said(tmp_path, case):
    write, read, words = CASES[case]
    file = tmp_path / "file"
    write(file)
    error = says(lambda: read(file), words)
    assert isinstance(error, safe_files.Damaged)
    assert str(error).startswith(f"cannot read {file}: ")


def test_what_is_whole_is_read(tmp_path):
    file = tmp_path / "file"
    file.write_text('{"a": 1}')
    assert an_object(file) == {"a": 1}
    table("a,b\n1,\n")(file)
    assert rows(file) == [{"a": "1", "b": ""}]
    for array in (np.zeros((0, 3)), np.float32(2), np.asfortranarray(np.eye(3)[:2]), np.array("x")):
        file.write_bytes(npy(np.asanyarray(array)))
        found = an_array(file)
        np.testing.assert_array_equal(found, array)
        assert found.dtype == array.dtype
        assert found.flags.writeable
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.npy", npy(np.zeros(9)))
    assert safe_files.arrays_of(file)["a"].tolist() == [0] * 9
