"""Prepared TFDS sets that are damaged, read without TensorFlow, and cached."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tfds_files import prepared_tfds

from jaxfed.data import load
from jaxfed.data.cache import cached_arrays
from jaxfed.errors import UsageError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_tfds(root, name="tiny", version="1.0.0", sizes=(5, 2), size=4):
    """A prepared TFDS set: image i is filled with i and has label i % 2."""
    import tensorflow_datasets as tfds

    features = {
        "image": tfds.features.Image(shape=(size, size, 3)),
        "label": tfds.features.ClassLabel(names=["cat", "dog"]),
    }
    examples = [
        {"image": np.full((size, size, 3), i, np.uint8), "label": i % 2} for i in range(max(sizes))
    ]
    splits = {"train": examples[: sizes[0]], "test": examples[: sizes[1]]}
    return prepared_tfds(root, name, version, features, splits)


def test_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    digits, theirs = load("digits"), load_digits()
    np.testing.assert_array_equal(16 * digits.x[..., 0], theirs.images)
    np.testing.assert_array_equal(digits.y, theirs.target)
    assert digits.class_names == tuple(map(str, theirs.target_names))


def _truncate(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _zero_a_record(file):
    content = file.read_bytes()
    place = content.rindex(b"PNG")
    file.write_bytes(content[:place] + bytes(40) + content[place + 40 :])


@pytest.mark.parametrize("damage", [_truncate, _zero_a_record, Path.unlink])
def test_a_damaged_tfds_set_is_named_in_one_line(tmp_path, cache, damage):
    folder = write_tfds(tmp_path, sizes=(9, 3))
    (file,) = folder.glob("*train.array_record*")
    damage(file)
    with pytest.raises(UsageError, match="split 'train': cannot be read") as error:
        load("tiny", root=str(tmp_path))
    assert "\n" not in str(error.value)
    assert not any(cache.iterdir())  # nothing half made stays


def test_tensorflow_is_never_imported(tmp_path):
    """Not even where it is installed: this one raises when it is touched."""
    write_tfds(tmp_path / "root")
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("raise RuntimeError('touched')")
    script = (
        "import sys; from jaxfed.data import load; "
        f"load('tiny', root={str(tmp_path / 'root')!r}); "
        "assert 'tensorflow' not in sys.modules"
    )
    path = os.pathsep.join([str(tmp_path), os.getcwd()])
    subprocess.run(
        [sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONPATH": path}
    )


def test_an_interrupted_decoding_leaves_nothing(cache):
    def make(target):
        np.save(target / "x.npy", np.arange(3))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_arrays("name", "key", make)
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    write_tfds(tmp_path)
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "file"))
    with pytest.raises(UsageError, match=r"file: cannot be written .*; set \$JAXFED_CACHE"):
        load("tiny", root=tmp_path)
    monkeypatch.setenv("JAXFED_CACHE", "n" * 300)
    with pytest.raises(UsageError, match=r"^\$JAXFED_CACHE='n*': File name too long"):
        load("tiny", root=tmp_path)


@pytest.mark.skipif(not os.environ.get("JAXFED_DATA"), reason="JAXFED_DATA names no data root")
@pytest.mark.slow
def test_real_sets():
    data = load("fashion_mnist")
    assert data.x.shape == (60_000, 28, 28, 1)
    assert data.x_test.shape == (10_000, 28, 28, 1)
    np.testing.assert_array_equal(np.bincount(data.y), np.full(10, 6000))
