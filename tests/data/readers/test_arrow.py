"""Parquet files: the arrays of a CSV file, and what only they can hold."""

import csv
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hf_files import (
    write_parquet,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxfed.data import load
from jaxfed.errors import UsageError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


NUMBERS = st.floats(-1e30, 1e30) | st.sampled_from([0.1, 1e-40, float("nan")])
COLUMNS = {
    "whole": st.integers(-(2**63), 2**63 - 1),
    "small": st.integers(-5, 5),
    "real": NUMBERS,
    "switch": st.booleans(),
    "kind": st.sampled_from(["red", " red", "blue", "cafe\u0301", "caf\u00e9", "", "NA", "?"]),
    "mixed": st.sampled_from(["1", "2.5", "", "x", "2024-01-31"]),
    "id": st.integers(0, 20),
}


@st.composite
def tables(draw):
    """Columns of values, None where missing."""
    rows = draw(st.integers(2, 8))

    def cells(values):
        return draw(st.lists(values, min_size=rows, max_size=rows))

    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=4, unique=True))
    found = {name: cells(COLUMNS[name] | st.none()) for name in names}
    found["label"] = cells(draw(st.sampled_from([st.integers(-1, 3), st.sampled_from("ab?")])))
    if draw(st.booleans()):
        found["client"] = cells(st.sampled_from(["x", "y", "NA"] if rows == 3 else [7, 9, 10]))
    return found


def write_csv(path, columns):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def loaded(path):
    """The data set, or its error without the names of files."""
    try:
        return load(path)
    except UsageError as error:
        text = str(error).replace(str(path), "FILE")
        return text.replace(", line ", ", row ").partition(", row ")


def compare(tmp_path, columns, cut):
    """One table as a CSV file, a Parquet file and a folder of two files."""
    expected = loaded(write_csv(tmp_path / "a.csv", columns))
    whole = pa.table(columns)
    write_parquet(tmp_path / "a.parquet", whole, row_group_size=3)
    for row, part in enumerate([whole.slice(0, cut), whole.slice(cut)]):
        write_parquet(tmp_path / "parts" / f"{row}.parquet", part)
    for place in (tmp_path / "a.parquet", tmp_path / "parts"):
        found = loaded(place)
        if isinstance(expected, tuple):
            if place.is_file():
                assert found[0] == expected[0]
            assert isinstance(found, tuple)
            continue
        np.testing.assert_array_equal(found.x, expected.x)
        np.testing.assert_array_equal(found.y, expected.y)
        assert found.class_names == expected.class_names
        np.testing.assert_array_equal(found.client_id, expected.client_id)
        assert found.has_gaps == expected.has_gaps
        assert found.encoder == expected.encoder
        assert found.client_names == expected.client_names
        np.testing.assert_array_equal(found.encoder(whole.to_pylist()), found.x)


SETTINGS = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


@given(columns=tables(), cut=st.integers(0, 8))
@settings(max_examples=50, **SETTINGS)
def test_a_parquet_table_gives_the_arrays_of_a_csv_file(tmp_path, columns, cut):
    compare(tmp_path, columns, cut)


def test_what_the_library_itself_writes(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "grid": datasets.Array2D((2, 3), "uint8"),
            "label": datasets.ClassLabel(names=["none", "dog"]),
        }
    )
    grids = np.arange(18, dtype=np.uint8).reshape(3, 2, 3)
    columns = {
        "image": [np.full((4, 4, 3), value, np.uint8) for value in (1, 2, 3)],
        "grid": grids,
        "label": [0, 1, -1],
    }
    made = datasets.Dataset.from_dict(columns, features=features)
    made.to_parquet(tmp_path / "hub" / "train-00000-of-00001.parquet")
    made.select([1]).to_parquet(tmp_path / "hub" / "test-00000-of-00001.parquet")
    for folder in (tmp_path / "hub",):
        images = load(folder, drop=["grid"])
        np.testing.assert_array_equal(images.x[:, 3, 2, 1], [1, 2, 3])
        np.testing.assert_array_equal(images.x_test[:, 0, 0, 0], [2])
        np.testing.assert_array_equal(images.y, [0, 1, -1])
        np.testing.assert_array_equal(images.y_test, [1])
        assert images.class_names == ("none", "dog")


def test_a_csv_table_takes_little_more_memory_than_twice_its_array(tmp_path):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(20_000, 20))
    header = ",".join(["label", *(f"f{column}" for column in range(20))])
    body = np.column_stack([rng.integers(2, size=len(values)), values])
    np.savetxt(tmp_path / "a.csv", body, "%.9g", ",", header=header, comments="")
    load(tmp_path / "a.csv")  # imports
    tracemalloc.start()
    x = load(tmp_path / "a.csv").x
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # 2.0 for the columns and x, and the texts of one column: of all columns they would be 25 times x.
    assert peak < 2.5 * x.nbytes + 130 * len(x)
    np.testing.assert_allclose(x, values, rtol=1e-6)
