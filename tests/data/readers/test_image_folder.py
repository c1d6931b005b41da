"""Folders of images as people have them: other names of splits, folders of clients, tables instead."""

import numpy as np
import pytest
from PIL import Image

from jaxfed.data import load
from jaxfed.errors import UsageError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))


def images_in(folder, *places):
    """One image in each of these places below the folder."""
    for place in places:
        (folder / place).mkdir(parents=True)
        Image.new("L", (4, 4)).save(folder / place / "0.png")
    return folder


@pytest.mark.parametrize(
    ("train", "test"),
    [("Train", "Test"), ("TRAIN", "VALID"), ("Training", "Testing"), ("training", "test")],
)
def test_splits_have_names_in_any_case(tmp_path, train, test):
    """Otherwise Train and Test would be two classes."""
    data = load(images_in(tmp_path, f"{train}/a", f"{train}/b", f"{test}/b"))
    assert data.class_names == ("a", "b")
    np.testing.assert_array_equal(data.y, [0, 1])
    np.testing.assert_array_equal(data.y_test, [1])


@pytest.mark.parametrize("name", ["Train", "Training", "test"])
def test_one_such_folder_is_a_class(tmp_path, name):
    assert load(images_in(tmp_path, "Bus", name)).class_names == ("Bus", name)


def test_validation_folders_beside_a_test_folder_are_named(tmp_path, caplog):
    data = load(images_in(tmp_path, "train/a", "train/b", "val/a", "valid/b", "test/b"))
    np.testing.assert_array_equal(data.y_test, [1])
    assert caplog.messages == [f"{tmp_path}: not read: val, valid"]


def test_a_folder_of_csv_files_is_a_pattern(tmp_path):
    (tmp_path / "north.csv").write_text("a,label\n1,x\n2,y\n")
    with pytest.raises(UsageError, match=r"no images; .* by a pattern, '.*'") as error:
        load(tmp_path)
    pattern = str(error.value).split("'")[-2]
    assert load(pattern).class_names == ("x", "y")
