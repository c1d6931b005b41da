"""Encoders: raw rows become what the reader made of them, also after a way through JSON."""

import io
import json

import numpy as np
import pandas
import pyarrow as pa
import pytest
from hf_files import image_table, png, write_parquet
from PIL import Image

from jaxfed.data import load
from jaxfed.data.dataset import Dataset
from jaxfed.data.encoding import RowEncoding, encoder_from, encoder_of

TABLE = """size;color;id;note;client;label
1.5;red;7;a;x;no
NA; green ;8;b;x;yes
-2e3;?;9;c;y;no
0.1;red;10;a;y;yes
"""


def encoder(dataset):
    """The data set's encoder, written and read."""
    return encoder_from(
        json.loads(json.dumps(RowEncoding(encoder_of(dataset)).described()["encoder"]))
    )


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(TABLE)
    return load(path, drop=("note",))


def test_rows_of_a_table_in_every_form(table):
    encode = encoder(table)
    frame = pandas.read_csv(io.StringIO(TABLE), sep=";", skipinitialspace=True)
    as_dicts = pandas.read_csv(io.StringIO(TABLE), sep=";", dtype=str, na_filter=False)
    forms = [
        frame,
        frame[["color", "size"]],
        as_dicts.to_dict("records"),
    ]
    for form in forms:
        np.testing.assert_array_equal(encode(form), table.x)
    np.testing.assert_array_equal(encode(frame.iloc[3]), table.x[3:])
    np.testing.assert_array_equal(encode({"size": 0.1, "color": "red"}), table.x[3:])
    np.testing.assert_array_equal(encode({"size": None, "color": "green"}), table.x[1:2])
    np.testing.assert_array_equal(encode({"size": "-2000", "color": None}), table.x[2:3])
    assert encode.names == ("size", "color=?", "color=green", "color=red")
    assert encode([]).shape == (0, 4)


def arrays(shape, dtype=np.float32):
    x = np.arange(2 * np.prod(shape)).reshape(2, *shape).astype(dtype)
    y = np.array([0, 1], np.int32)
    return Dataset("a", x, y, x[:0], y[:0], 2, ("0", "1"))


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
@pytest.mark.parametrize("shape", [(3,), (1,), (4, 4, 1), (4, 4, 3)])
def test_arrays_with_and_without_their_last_axis(shape, dtype):
    data = arrays(shape, dtype)
    encode = encoder(data)
    forms = [data.x, data.x.astype(np.int64), data.x.tolist()]
    forms += [data.x[..., 0]] * (shape[-1] == 1)
    for form in forms if dtype == np.uint8 else [*forms, data.x.astype(np.float64)]:
        found = encode(form)
        np.testing.assert_array_equal(found, data.x)
        assert found.dtype == dtype
    np.testing.assert_array_equal(encode(data.x[1]), data.x[1:])


@pytest.fixture
def images(tmp_path, monkeypatch):
    """A folder of images of two sizes, its data set and its files in the data set's order."""
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for number, name in enumerate(["cat", "cat", "dog", "dog"]):
        (tmp_path / "f" / name).mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(256, size=(9 + number, 8, 3), dtype=np.uint8)
        picture = Image.fromarray(pixels)
        exif = picture.getexif()
        exif[0x0112] = 6 if number == 1 else 1  # taken on its side
        picture.save(tmp_path / "f" / name / f"{number}.png", exif=exif)
    return load(tmp_path / "f"), sorted((tmp_path / "f").rglob("*.png"))


def test_image_files_bytes_and_images(images):
    data, files = images
    encode = encoder(data)
    opened = [Image.open(file) for file in files]
    for form in (
        files,
        [str(file) for file in files],
        [file.read_bytes() for file in files],
        opened,
        data.x,
        list(data.x),
    ):
        np.testing.assert_array_equal(encode(form), data.x)
    np.testing.assert_array_equal(encode(files[1]), data.x[1:2])
    assert encode([]).shape == (0, 8, 8, 3)


def test_gaps_of_both_splits_have_the_medians_of_training_rows(tmp_path):
    def split(name, *values, only=(1.0, 2.0)):
        columns = {"f": pa.array(values, pa.float64()), "g": only[: len(values)]}
        columns["label"] = ["a", "b", "a", "b"][: len(values)]
        write_parquet(tmp_path / "set" / f"{name}.parquet", columns)

    split("train", 1, None, 5, 9, only=[1.0, 2.0, 3.0, 4.0])
    split("test", None, 2, only=[None, 8.0])
    data = load(tmp_path / "set")
    gaps = data.gaps(np.array([True, True, True, False]))
    expected = [[1, 1, 0, 0], [3, 2, 1, 0], [5, 3, 0, 0], [9, 4, 0, 0]]
    np.testing.assert_array_equal(gaps.filled(data.x), expected)
    x_test = gaps.filled(data.x_test)
    np.testing.assert_array_equal(x_test, [[3, 2, 1, 1], [2, 8, 0, 0]])
    assert gaps == ((0, 1), (3.0, 2.0))
    encoding = RowEncoding(encoder(data), gaps)
    rows = pandas.read_parquet(tmp_path / "set" / "test.parquet")
    np.testing.assert_array_equal(encoding(rows), x_test)


def test_images_of_a_parquet_table(tmp_path):
    file = write_parquet(tmp_path / "a.parquet", image_table([3, 5], [1, 0], size=(5, 4)))
    data = load(file, image_size=3)
    encode = encoder(data)
    cells = pandas.read_parquet(file)["image"]
    for form in (cells, cells.tolist(), [cell["bytes"] for cell in cells], data.x):
        np.testing.assert_array_equal(encode(form), data.x)
    for one in (png(5, size=(5, 4)), cells[1]):
        np.testing.assert_array_equal(encode(one), data.x[1:])
