"""Mapped examples: read where they are needed, and not counted as memory afterwards."""

from pathlib import Path

import numpy as np
import pytest

from jaxfed.data.mapped_rows import MappedRows, adjoined, gathered, is_mapped, parts, release


@pytest.fixture
def mapped(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(24, dtype=np.float32).reshape(12, 2))
    return np.load(tmp_path / "x.npy", mmap_mode="r")


def test_parts_of_a_file_that_follow_each_other_are_joined_without_a_copy(mapped):
    joint = adjoined([mapped[:5], mapped[5:6], mapped[6:]])
    assert is_mapped(joint)
    assert joint.ctypes.data == mapped.ctypes.data
    assert not joint.flags.writeable
    np.testing.assert_array_equal(joint, mapped)


@pytest.mark.parametrize(
    "cut",
    [
        lambda x: [x[6:], x[:6]],
        lambda x: [x[:4], x[5:]],
        lambda x: [x[:4], np.array(x[4:])],
        lambda x: [np.array(x[:4]), x[4:]],
        lambda x: [x[::2], x[1:]],
    ],
)
def test_others_are_copied(mapped, cut):
    pieces = cut(mapped)
    joint = adjoined(pieces)
    assert not is_mapped(joint)
    np.testing.assert_array_equal(joint, np.concatenate(pieces))


def test_single_arrays_are_returned(mapped):
    x = np.zeros((3, 2))
    assert adjoined([x]) is x
    assert is_mapped(adjoined([mapped[2:]]))
    np.testing.assert_array_equal(adjoined([mapped[2:]]), mapped[2:])


def test_rows_are_read_as_they_are_asked_for(mapped):
    rows = MappedRows(mapped, np.array([7, 1, 3]))
    assert (len(rows), rows.shape, rows.dtype) == (3, (3, 2), np.float32)
    np.testing.assert_array_equal(rows[np.array([2, 0])], [[6, 7], [14, 15]])
    np.testing.assert_array_equal(np.asarray(rows), mapped[[7, 1, 3]])
    assert not is_mapped(rows[:2])


def resident(file):
    """Kilobytes of a file's mapping that count as this process's memory."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    return sum(
        int(next(line for line in lines if line.startswith("Rss")).split()[1])
        for line in lines
        if line.endswith(str(file))
    )


def test_what_was_copied_is_released(tmp_path):
    """Else a pass over the data would count as memory of their size."""
    file = tmp_path / "x.npy"
    np.save(file, np.ones((2**13, 2**10), np.float32))
    x = np.load(file, mmap_mode="r")
    assert float(x.sum()) == 2**23
    assert resident(file) > 30_000
    release(x)
    assert resident(file) < 200
    assert sum(float(part.sum()) for part in parts(x)) == 2**23
    assert resident(file) < 200
    groups = np.split(np.arange(2**13), 8)
    most = 0
    for copy in gathered(x[:], groups):
        assert (copy == 1).all()
        most = max(most, resident(file))
    assert most < 20_000
    assert resident(file) < 200
