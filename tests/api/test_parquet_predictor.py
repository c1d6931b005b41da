"""Predictors of runs on Parquet files: those of a CSV file with the same values, of images in a column."""

import numpy as np
import pandas
import pyarrow as pa
import pytest
from hf_files import image_table, write_parquet
from predicted_rows import FEW, as_in_the_run, write_table

import jaxfed


def run_on(file, workdir, **settings):
    jaxfed.run(
        "fedavg_xclp:smoke",
        workdir=workdir,
        dataset__name=str(file),
        federation__labeled_fraction=0.5,
        model__name="mlp",
        model__hidden=(8,),
        **{**FEW, "rounds": 1, **settings},
    )
    return jaxfed.open(workdir)


@pytest.mark.slow
def test_a_predictor_of_a_parquet_file_is_that_of_the_same_csv_file(tmp_path):
    write_table(tmp_path / "t.csv")
    frame = pandas.read_csv(tmp_path / "t.csv", keep_default_na=False, na_values=["NA"])
    frame.to_parquet(tmp_path / "t.parquet")
    scaled = {"preprocessing__kind": "standardized"}
    of_csv, of_parquet = (
        run_on(tmp_path / name, tmp_path / f"w-{name}", **scaled) for name in ("t.csv", "t.parquet")
    )
    expected = of_csv.predictor()(frame)
    predict = of_parquet.predictor()
    stored = pandas.read_parquet(tmp_path / "t.parquet")
    for rows in (frame, stored, stored.drop(columns="label").to_dict("records")):
        np.testing.assert_array_equal(predict(rows), expected)
    assert predict.classes == ("no", "yes")
    places, in_run = as_in_the_run(of_parquet, np.arange(len(frame)))
    np.testing.assert_array_equal(predict(frame.iloc[places]), in_run)


@pytest.mark.slow
def test_a_predictor_takes_bytes_of_images_from_a_parquet_file(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))
    images = image_table(range(0, 240, 6), [0, 1] * 20, size=(6, 5))
    result = run_on(
        write_parquet(tmp_path / "a.parquet", images),
        tmp_path / "w",
        preprocessing__kind="images",
        dataset__image_size=4,
    )
    cells = np.array(images["image"].to_pylist(), object)
    raw, expected = as_in_the_run(result, cells)
    predict = result.predictor()
    assert predict.classes == ("cat", "dog")
    np.testing.assert_array_equal(predict([cell["bytes"] for cell in raw]), expected)
    np.testing.assert_array_equal(predict(raw.tolist()), expected)
    np.testing.assert_array_equal(predict(raw[3]["bytes"]), expected[3:4])


@pytest.mark.slow
def test_a_predictor_takes_lists_beside_numbers(tmp_path):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(60, 3)).astype(np.float32)
    columns = {
        "v": pa.array([None, *vectors[1:].tolist()], pa.list_(pa.float32())),
        "age": rng.integers(90, size=60),
        "label": np.where(vectors[:, 0] > 0, "a", "b"),
    }
    result = run_on(write_parquet(tmp_path / "a.parquet", columns), tmp_path / "w")
    rows, expected = as_in_the_run(result, np.array(pa.table(columns).to_pylist()))
    np.testing.assert_array_equal(result.predictor()(rows.tolist()), expected)
