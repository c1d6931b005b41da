"""ISIC 2018 and CINIC-10: small files in the publishers' layout, whole and broken."""

import numpy as np
import pytest
from absl import logging
from PIL import Image

from jaxfed.data import load
from jaxfed.data.readers.image_sets import CINIC_CLASSES
from jaxfed.data.readers.image_sets import LESIONS as CLASSES
from jaxfed.errors import UsageError


@pytest.fixture(autouse=True)
def said(tmp_path, monkeypatch):
    """An own cache, and what is logged."""
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))
    lines = []
    monkeypatch.setattr(logging, "warning", lambda text, *values: lines.append(text % values))
    return lines


def save(file, level, size, mode="RGB"):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, (level,) * 3 if mode == "RGB" else level).save(file)


def write_cinic(root):
    """Two images a class and split, levels 0, 1, ... in order; the second of each class is grey."""
    for first, split in ((0, "train"), (100, "valid"), (200, "test")):
        for c, name in enumerate(CINIC_CLASSES):
            for i, mode in enumerate(("RGB", "L")):
                file = root / "cinic10" / split / name / f"cifar10-{split}-{i}.png"
                save(file, first + 2 * c + i, (32, 32), mode)
    return root / "cinic10"


def test_cinic10_has_train_and_test(tmp_path, said):
    folder = write_cinic(tmp_path)
    data = load("cinic10", root=tmp_path)
    assert (data.x.shape, data.x.dtype, data.x_test.shape) == (
        (20, 32, 32, 3),
        np.uint8,
        (20, 32, 32, 3),
    )
    np.testing.assert_array_equal(data.x[:, 3, 4, :], np.repeat(np.arange(20)[:, None], 3, axis=1))
    np.testing.assert_array_equal(data.x_test[:, 0, 0, 0], 200 + np.arange(20))
    np.testing.assert_array_equal(data.y, np.arange(20) // 2)
    np.testing.assert_array_equal(data.y_test, data.y)
    assert (data.name, data.class_names) == ("cinic10", CINIC_CLASSES)
    assert [line.split(": ")[1] for line in said] == [
        "20 images, where the publishers have 90000"
    ] * 2
    np.testing.assert_array_equal(data.encoder([folder / "train/bird/cifar10-train-1.png"])[0], 5)
    by_path = load(folder)  # the layout of any folder of images
    np.testing.assert_array_equal(by_path.x, data.x)


def write_skin(folder, split, diagnoses, inside=False):
    """Images of 60 x 45 with levels 10, 20, ..., and their table."""
    rows = [",".join(["image", *CLASSES])]
    for i, diagnosis in enumerate(diagnoses):
        image = f"ISIC_{split}{i:04d}"
        save(folder / f"ISIC2018_Task3_{split}_Input" / f"{image}.jpg", 10 * (i + 1), (60, 45))
        rows.append(",".join([image, *(str(float(name == diagnosis)) for name in CLASSES)]))
    place = folder / f"ISIC2018_Task3_{split}_GroundTruth" if inside else folder
    place.mkdir(exist_ok=True)
    table = place / f"ISIC2018_Task3_{split}_GroundTruth.csv"
    table.write_text("\n".join(rows) + "\n")
    return table


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("split", ["Test", "Validation", None])
@pytest.mark.parametrize("image_size", [None, 12])
def test_isic2018(tmp_path, split, inside, image_size):
    folder = tmp_path / "isic2018"
    write_skin(folder, "Training", ["NV", "VASC", "MEL"], inside)
    if split:
        write_skin(folder, split, ["AKIEC"], inside)
    (folder / "ISIC2018_Task3_Training_Input" / "ATTRIBUTION.txt").write_text("no image")
    size = image_size or 224
    for place in ("isic2018", str(folder)):
        data = load(place, root=tmp_path, image_size=image_size)
        assert (data.x.shape, data.x.dtype) == ((3, size, size, 3), np.uint8)
        np.testing.assert_array_equal(data.y, [1, 6, 0])
        np.testing.assert_allclose(data.x[:, 5, 5, 1], [10, 20, 30], atol=2)
        np.testing.assert_array_equal(data.y_test, [3] if split else [])
        assert data.class_names == CLASSES
    file = folder / "ISIC2018_Task3_Training_Input" / "ISIC_Training0001.jpg"
    np.testing.assert_array_equal(data.encoder(file)[0], data.x[1])


def test_the_test_set_goes_before_the_validation_set(tmp_path):
    folder = tmp_path / "isic2018"
    for split, diagnosis in (("Training", "NV"), ("Validation", "DF"), ("Test", "BCC")):
        write_skin(folder, split, [diagnosis])
    np.testing.assert_array_equal(load(folder, image_size=8).y_test, [2])


def _edit(table, old, new):
    assert old in table.read_text()
    table.write_text(table.read_text().replace(old, new))


BAD_SKIN = {
    "no table": (lambda f, t: t.unlink(), r"no ISIC2018_Task3_Training_GroundTruth\.csv; needed"),
    "no images": (
        lambda f, t: (f / "ISIC2018_Task3_Training_Input").rename(f / "other"),
        r"no ISIC2018_Task3_Training_Input/; needed are .*isic-archive",
    ),
    "an image": (
        lambda f, t: (f / "ISIC2018_Task3_Training_Input" / "ISIC_Training0001.jpg").unlink(),
        r"GroundTruth.csv: 1 of its 2 images are missing, first .*Training0001.jpg",
    ),
    "a column": (lambda f, t: _edit(t, "AKIEC,", ""), "no column AKIEC; it has image, MEL"),
    "two diagnoses": (lambda f, t: _edit(t, ",1.0,0.0", ",1.0,1.0"), "line 2: 'ISIC_Training0000'"),
    "half of one": (lambda f, t: _edit(t, ",1.0,", ",0.5,"), "use 1.0 for one of MEL, NV"),
    "a word": (lambda f, t: _edit(t, ",1.0,", ",yes,"), "use 1.0 for one of MEL, NV"),
    "half a line": (lambda f, t: t.write_text(t.read_text()[:-9]), "line 3"),
    "no lines": (lambda f, t: t.write_text(t.read_text().split("\n")[0]), "lists no images"),
    "test images alone": (
        lambda f, t: save(f / "ISIC2018_Task3_Test_Input" / "1.jpg", 0, (4, 4)),
        r"no ISIC2018_Task3_Test_GroundTruth\.csv; needed are ISIC2018_Task3_Test_Input/ and",
    ),
}


@pytest.mark.parametrize(("damage", "message"), BAD_SKIN.values(), ids=BAD_SKIN)
def test_broken_isic2018_is_named_in_one_line(tmp_path, damage, message):
    folder = tmp_path / "isic2018"
    damage(folder, write_skin(folder, "Training", ["NV", "MEL"]))
    with pytest.raises(UsageError, match=message) as error:
        load("isic2018", root=tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "origin"), [("cinic10", "10.7488"), ("isic2018", "isic-archive")])
def test_what_is_missing_and_where_it_is_to_be_had(tmp_path, name, origin):
    """No folder, then an empty one."""
    for _ in range(2):
        with pytest.raises(UsageError, match=origin) as error:
            load(name, root=tmp_path)
        assert "\n" not in str(error.value)
        (tmp_path / name).mkdir(exist_ok=True)


def test_a_class_of_cinic10_is_missing(tmp_path):
    folder = write_cinic(tmp_path)
    for file in (folder / "test" / "frog").iterdir():
        file.unlink()
    with pytest.raises(UsageError, match=r"no images in test/frog; needed are train/ and test/"):
        load("cinic10", root=tmp_path)
    with pytest.raises(UsageError, match="image_size=8: does not apply"):
        load("cinic10", root=tmp_path, image_size=8)
