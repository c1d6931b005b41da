"""The cache of decoded sets when files are damaged, processes are killed and disks are full."""

import errno
import logging
import os
import subprocess
import sys

import numpy as np
import pytest

from jaxfed.data.cache import cached_arrays
from jaxfed.data.readers import images
from jaxfed.host import storage


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def made():
    """How often `make` ran."""
    return []


@pytest.fixture
def load(home, made):
    def make(target):
        made.append(target)
        np.save(target / "x.npy", np.arange(1000))
        np.save(target / "y.npy", np.arange(3, dtype=np.int8))

    return lambda: {
        name: np.array(array) for name, array in cached_arrays("set", "0", make).items()
    }


def flip(file):
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)


DAMAGE = {
    "flipped": flip,
    **{
        f"index {text[:20]}": lambda file, text=text: (file.parent / "index.json").write_text(text)
        for text in ("{}", "", '{"x.npy')
    },
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_what_is_damaged_is_said_and_made_again(damage, load, home, made, caplog):
    before = load()
    damage(home / "set-0" / "x.npy")
    with caplog.at_level(logging.WARNING):
        after = load()
    assert (len(made), len(caplog.records)) == (2, 1)
    assert "made again" in caplog.text
    np.testing.assert_array_equal(after["x"], before["x"])
    load()
    assert len(made) == 2
    assert [entry.name for entry in home.iterdir()] == ["set-0"]


KILLED = """
import os, signal, sys
from pathlib import Path
from jaxfed.data.cache import cached_arrays

def make(target):
    Path(target, "x.npy").write_bytes(bytes(10**6))
    os.kill(os.getpid(), signal.SIGKILL)

cached_arrays("set", "0", make)
"""


def test_what_a_killed_process_had_begun_goes_at_the_next_start(load, home, made):
    for _ in range(2):
        subprocess.run([sys.executable, "-c", KILLED], check=False)
        assert len(list(home.iterdir())) == 1  # the second start has removed what the first left
    load()
    assert [entry.name for entry in home.iterdir()] == ["set-0"]


def test_images_on_a_full_disk_are_an_error_and_no_crash(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    file = tmp_path / "0.png"
    file.touch()
    with pytest.raises(OSError) as caught:
        images.decode(tmp_path / "x.npy", [file], images.Shape(4, 4, 1))
    assert storage.is_full(caught.value)
