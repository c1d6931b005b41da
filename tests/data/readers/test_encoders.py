"""Encoders: raw rows become what the reader made of them, also after a way through JSON."""

import io
import json

import numpy as np
import pandas
import pytest
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


def test_truth_that_pandas_has_read_is_the_files(tmp_path):
    text = "a,size,y\ntrue,1,0\nfalse,2,1\ntrue,3,1\n"
    (tmp_path / "t.csv").write_text(text)
    data = load(tmp_path / "t.csv")
    np.testing.assert_array_equal(encoder(data)(pandas.read_csv(io.StringIO(text))), data.x)


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


@pytest.mark.parametrize(
    "row",
    [{"Unnamed: 0": 7, "size": 1, "color": "red"}, {"": 7, "size": 1, "color": "red"}],
)
def test_an_index_as_pandas_and_csv_read_one_is_no_column(table, row):
    assert encoder(table)(row).shape == (1, 4)


def test_gaps_have_the_medians_of_training_rows(table):
    gaps = table.gaps(np.array([True, True, True, False]))
    encoding = RowEncoding(encoder(table), gaps)
    frame = pandas.read_csv(io.StringIO(TABLE), sep=";", skipinitialspace=True)
    np.testing.assert_array_equal(encoding(frame), gaps.filled(table.x))
    assert gaps.medians == (-999.25,)
    assert encoding({"size": None, "color": "red"}).tolist() == [[-999.25, 0, 0, 1, 1]]


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
