"""Medical images: small files in the publishers' layout, and the real ones where they are."""

import numpy as np
import pytest
from absl import logging
from data_roots import needs_data, root_of
from PIL import Image

from jaxfed.data import load
from jaxfed.errors import UsageError


@pytest.fixture(autouse=True)
def said(tmp_path, monkeypatch):
    """An own cache, and what is logged."""
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))
    lines = []
    monkeypatch.setattr(logging, "warning", lambda text, *values: lines.append(text % values))
    return lines


def save(path, value, size=(8, 6), mode="L"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value,) * 3).save(path)


def write_brains(root):
    """Two copies among the healthy, one of them in colors; a sick one that is as a healthy one."""
    for name, value, mode in (("1", 10, "L"), ("2", 20, "L"), ("3", 10, "RGB")):
        save(root / "brain_mri" / "no" / f"{name}.png", value, mode=mode)
    for name, value in (("Y1", 20), ("Y2", 30), ("Y3", 30), ("Y4", 40)):
        save(root / "brain_mri" / "yes" / f"{name}.png", value)


@pytest.mark.parametrize("image_size", [None, 12])
def test_brains_are_grey_and_copies_go(tmp_path, said, image_size):
    write_brains(tmp_path)
    data = load("brain_mri", root=tmp_path, image_size=image_size)
    size = image_size or 150
    assert (data.x.shape, data.x.dtype) == ((5, size, size, 1), np.uint8)
    np.testing.assert_array_equal(data.x[:, 0, 0, 0], [10, 20, 20, 30, 40])
    np.testing.assert_array_equal(data.y, [0, 0, 1, 1, 1])
    assert data.class_names == ("no", "yes")
    (line,) = said
    assert "2 of 7 images are copies and are left out" in line


def write_chests(root, inner=""):
    values = iter(range(10, 200, 10))
    for split, count in (("train", 2), ("val", 1), ("test", 1)):
        for name in ("NORMAL", "PNEUMONIA"):
            for number in range(count):
                path = root / "pneumonia" / inner / split / name / f"{number}.png"
                save(path, next(values), mode="RGB" if name == "PNEUMONIA" else "L")


@pytest.mark.parametrize("inner", ["", "chest_xray"])
@pytest.mark.parametrize("image_size", [None, 12])
def test_chests_of_val_are_trained_on(tmp_path, inner, image_size):
    write_chests(tmp_path, inner)
    data = load("pneumonia", root=tmp_path, image_size=image_size)
    size = image_size or 224
    assert data.x.shape == (6, size, size, 1)
    np.testing.assert_array_equal(data.x[:, 0, 0, 0], [10, 20, 30, 40, 50, 60])
    np.testing.assert_array_equal(data.y, [0, 0, 1, 1, 0, 1])
    np.testing.assert_array_equal(data.x_test[:, 0, 0, 0], [70, 80])
    np.testing.assert_array_equal(data.y_test, [0, 1])


def write_mnist(root, *, without=()):
    (root / "pneumonia_mnist").mkdir(parents=True, exist_ok=True)
    arrays, first = {}, 0
    for split, count in (("train", 3), ("val", 2), ("test", 2)):
        numbers = np.arange(first, first + count, dtype=np.uint8)
        arrays[f"{split}_images"] = np.broadcast_to(numbers[:, None, None], (count, 28, 28))
        arrays[f"{split}_labels"] = numbers[:, None] % 2
        first += count
    kept = {name: array for name, array in arrays.items() if name not in without}
    np.savez(root / "pneumonia_mnist" / "pneumoniamnist.npz", **kept)


def test_small_chests_of_val_are_trained_on(tmp_path):
    write_mnist(tmp_path)
    data = load("pneumonia_mnist", root=tmp_path)
    assert data.x.shape == (5, 28, 28, 1)
    np.testing.assert_array_equal(data.x[:, 0, 0, 0], range(5))
    np.testing.assert_array_equal(data.y, [0, 1, 0, 1, 0])
    np.testing.assert_array_equal(data.x_test[:, 5, 5, 0], [5, 6])
    np.testing.assert_array_equal(data.y_test, [1, 0])


@pytest.mark.parametrize(
    ("name", "origin"),
    [("brain_mri", "kaggle"), ("pneumonia", "kaggle"), ("pneumonia_mnist", "medmnist")],
)
def test_what_is_missing_and_where_it_is_to_be_had(tmp_path, name, origin):
    """No folder, then one without images."""
    for _ in range(2):
        with pytest.raises(UsageError, match=origin) as error:
            load(name, root=tmp_path)
        assert "\n" not in str(error.value)
        (tmp_path / name).mkdir(exist_ok=True)


def test_half_of_a_set_is_named(tmp_path):
    save(tmp_path / "brain_mri" / "yes" / "1.png", 1)
    with pytest.raises(UsageError, match=r"no images in no/"):
        load("brain_mri", root=tmp_path)
    save(tmp_path / "pneumonia" / "train" / "NORMAL" / "1.png", 1)
    with pytest.raises(UsageError, match=r"train: no images in PNEUMONIA/"):
        load("pneumonia", root=tmp_path)
    write_mnist(tmp_path, without=["val_images"])
    with pytest.raises(UsageError, match=r"pneumoniamnist\.npz: cannot be read.*val_images"):
        load("pneumonia_mnist", root=tmp_path)


@needs_data("brain_mri", "pneumonia_mnist")
def test_the_real_files(said):
    brains = load("brain_mri", root=root_of("brain_mri"))
    np.testing.assert_array_equal(np.bincount(brains.y), [87, 141])
    assert "25 of 253 images are copies" in said[0]
    chests = load("pneumonia_mnist", root=root_of("pneumonia_mnist"))
    np.testing.assert_array_equal(np.bincount(chests.y), [1349, 3883])
    np.testing.assert_array_equal(np.bincount(chests.y_test), [234, 390])
