"""Encoders of Parquet tables: rows as pandas and `datasets` give them become what the reader made of them."""

import json

import numpy as np
import pandas
import pyarrow as pa
import pytest
from hf_files import class_label, described, image_table, png, write_parquet

from jaxfed.data import load
from jaxfed.data.encoding import RowEncoding, encoder_from, encoder_of


def encoder(dataset):
    """The data set's encoder, written and read."""
    return encoder_from(
        json.loads(json.dumps(RowEncoding(encoder_of(dataset)).described()["encoder"]))
    )


COLUMNS = {
    "id": [3, 1, 2, 0],
    "price": pa.array([0.1, None, 2.5, -3], pa.float16()),
    "ill": [True, False, None, True],
    "shape": [1, 0, None, 1],
    "note": ["a", "b", "c", None],
    "label": ["x", "y", "x", None],
}
FEATURES = {"shape": class_label("round", "flat")}
NAMES = ("price", "ill=", "ill=False", "ill=True")
NAMES += ("shape=", "shape=flat", "shape=round")
ROW = {"price": np.float16(0.1), "ill": True, "shape": 1}


@pytest.fixture
def file(tmp_path):
    return write_parquet(tmp_path / "a.parquet", described(pa.table(COLUMNS), FEATURES))


@pytest.fixture
def table(file):
    return load(file, drop=["note"])


def test_rows_of_a_parquet_table_in_every_form(file, table):
    encode = encoder(table)
    frame = pandas.read_parquet(file)
    dicts = pa.table(COLUMNS).to_pylist()
    named = [{**row, "shape": {1: "flat", 0: "round", None: None}[row["shape"]]} for row in dicts]
    for form in (frame, frame[["ill", "price", "shape"]], dicts, named):
        np.testing.assert_array_equal(encode(form), table.x)
    np.testing.assert_array_equal(encode(frame.iloc[2]), table.x[2:3])
    np.testing.assert_array_equal(encode(ROW), table.x[:1])
    assert encode.names == NAMES
    assert encode([]).shape == (0, 7)


def test_classes_whose_names_are_other_numbers(tmp_path):
    columns = {"digit": [1, 0, 1], "label": [0, 1, 0]}
    features = {"digit": class_label("5", "7")}
    file = write_parquet(tmp_path / "a.parquet", described(pa.table(columns), features))
    encode = encoder(load(file))
    np.testing.assert_array_equal(encode([{"digit": 1}, {"digit": "5"}]), [[7], [5]])


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
