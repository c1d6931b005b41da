"""Mapped examples: read where they are needed, and not counted as memory afterwards."""

import os
from pathlib import Path

import numpy as np
import pytest

from jaxfed.data.mapped_rows import MappedRows, adjoined, gathered, is_mapped, mapped, parts


@pytest.fixture
def array(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(24, dtype=np.float32).reshape(12, 2))
    return mapped(tmp_path / "x.npy")


def test_parts_of_a_file_that_follow_each_other_are_joined_without_a_copy(array):
    joint = adjoined([array[:5], array[5:6], array[6:]])
    assert is_mapped(joint)
    assert joint.ctypes.data == array.ctypes.data
    assert not joint.flags.writeable
    np.testing.assert_array_equal(joint, array)


@pytest.mark.parametrize(
    "cut", [lambda x: [x[6:], x[:6]], lambda x: [x[:4], x[5:]], lambda x: [x[:4], np.array(x[4:])]]
)
def test_others_are_copied(array, cut):
    pieces = cut(array)
    joint = adjoined(pieces)
    assert not is_mapped(joint)
    np.testing.assert_array_equal(joint, np.concatenate(pieces))


@pytest.mark.parametrize("seed", range(10))
def test_rows_are_those_of_the_array(tmp_path, seed):
    rng = np.random.default_rng(seed)
    whole = rng.normal(size=(50, 3, 2)).astype([np.float32, np.float64, np.uint8][seed % 3])
    np.save(tmp_path / "x.npy", whole)
    first, last = np.sort(rng.choice(51, 2, replace=False))
    x, array = mapped(tmp_path / "x.npy")[first:last], whole[first:last]
    groups = [
        np.arange(len(x)),
        rng.permutation(len(x)),
        rng.integers(0, len(x), 30),
        np.arange(0),
        rng.integers(0, len(x), (2, 3)),
        np.int64(0),
    ]
    for rows in groups:
        copy = gathered(x, rows)
        np.testing.assert_array_equal(copy, array[rows])
        assert copy.dtype == array.dtype
    np.testing.assert_array_equal(np.concatenate(list(parts(x))), array)
    for outside in (-1, len(x)):
        with pytest.raises(IndexError):
            gathered(x, np.array([outside]))


def test_a_file_that_becomes_shorter_is_an_error(tmp_path):
    """A read of its mapping would end the process."""
    np.save(tmp_path / "x.npy", np.ones((9, 1000)))
    x = mapped(tmp_path / "x.npy")
    os.truncate(tmp_path / "x.npy", 40_000)
    assert (gathered(x, np.arange(3)) == 1).all()
    with pytest.raises(OSError, match="shorter"):
        gathered(x, np.array([8]))


@pytest.mark.parametrize("array", [np.ones((3, 2), order="F"), np.array([None])])
def test_other_files_are_refused(tmp_path, array):
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(ValueError, match=r"not in the order of rows|Python objects"):
        mapped(tmp_path / "x.npy")
    (tmp_path / "x.npy").write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match="magic string"):
        mapped(tmp_path / "x.npy")


def resident(file):
    """Kilobytes of a file's mapping that count as this process's memory."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    return sum(
        int(next(line for line in lines if line.startswith("Rss")).split()[1])
        for line in lines
        if line.endswith(str(file))
    )


def test_no_pass_over_the_rows_maps_them(tmp_path):
    """Else it would count as memory of their size."""
    file = tmp_path / "x.npy"
    np.save(file, np.ones((2**11, 2**10), np.float32))
    x = mapped(file)
    assert sum(float(part.sum()) for part in parts(x)) == 2**21
    assert all((gathered(x, rows) == 1).all() for rows in np.split(np.arange(2**11), 8))
    assert (MappedRows(x, np.arange(0, 2**11, 2))[:] == 1).all()
    assert resident(file) < 200
    assert float(x.sum()) == 2**21
    assert resident(file) > 7_000
