"""Tables of several files: splits by name, one schema, a chunk of rows at a time."""

import tracemalloc

import numpy as np
import pandas
import pytest

from jaxfed.data import load


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, lines in files.items():
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder / "*.csv"


def test_files_are_one_table_in_sorted_order(tmp_path):
    north = ["age,color,label,client", "1,red,a,n", ",blue,b,n"]
    south = ["age,color,label,client", "3,green,a,s", "4,red,,s"]
    pattern = write(tmp_path / "sites", south=south, north=north)
    several = load(pattern)
    whole = write(tmp_path / "whole", all=[*north, *south[1:]])
    one = load(whole.with_name("all.csv"))
    np.testing.assert_array_equal(several.x, one.x)
    np.testing.assert_array_equal(several.y, [0, 1, 0, -1])
    np.testing.assert_array_equal(several.client_id, [0, 0, 1, 1])
    assert several.name == str(pattern)


def test_patterns_are_looked_for_in_the_root_too(tmp_path):
    write(tmp_path / "sites", a=["f,label", "1,a", "2,b"])
    assert len(load("sites/*.csv", root=tmp_path).y) == 2


def test_train_and_test_are_splits_by_their_names(tmp_path, caplog):
    pattern = write(
        tmp_path / "s",
        **{
            "train-0": ["id,f,kind,label,client", "0,1,red,b,x", "1,,red,a,x"],
            "train-1": ["id,f,kind,label,client", "2,3,blue,b,z"],
            "test": ["id,f,kind,label,client", "0,,green,a,y", "1,9,red,a,z"],
            "validation": ["id,f,kind,label,client", "0,1,red,a,x"],
            "trainers": ["name", "Ann"],
        },
    )
    with caplog.at_level("WARNING"):
        data = load(pattern)
    nan = np.nan
    np.testing.assert_array_equal(data.x, [[1, 0, 0, 1], [nan, 0, 0, 1], [3, 1, 0, 0]])
    np.testing.assert_array_equal(data.x_test, [[nan, 0, 1, 0], [9, 0, 0, 1]])
    np.testing.assert_array_equal(data.y, [1, 0, 1])
    np.testing.assert_array_equal(data.y_test, [0, 0])
    np.testing.assert_array_equal(data.client_id_test, [1, 2])
    assert "files of no split are not read" in caplog.text
    assert "trainers.csv" in caplog.text

    gaps = data.gaps(np.array([True, True, True]))
    np.testing.assert_array_equal(gaps.filled(data.x)[:, [0, -1]], [[1, 0], [2, 1], [3, 0]])
    np.testing.assert_array_equal(gaps.filled(data.x_test)[:, [0, -1]], [[2, 1], [9, 0]])


def test_training_and_testing_are_splits_too(tmp_path):
    rows = {"Training": ["f,label", "0,a", "1,b"], "Testing": ["f,label", "2,b"]}
    data = load(write(tmp_path / "s", **rows))
    np.testing.assert_array_equal(data.y, [0, 1])
    np.testing.assert_array_equal(data.y_test, [1])


def test_a_column_with_gaps_in_the_test_split_alone_gets_an_indicator(tmp_path):
    pattern = write(
        tmp_path / "s", train=["f,label", "1,a", "2,b", "6,b"], test=["f,label", ",a", "7,b"]
    )
    data = load(pattern)
    gaps = data.gaps(np.ones(3, bool))
    np.testing.assert_array_equal(gaps.filled(data.x), [[1, 0], [2, 0], [6, 0]])
    np.testing.assert_array_equal(gaps.filled(data.x_test), [[2, 1], [7, 0]])


@pytest.mark.parametrize("name", ["test", "val", "valid", "validation"])
def test_validation_files_are_the_test_split_where_there_is_no_other(tmp_path, name):
    pattern = write(
        tmp_path / "s", **{"train": ["f,label", "1,a", "2,b"], name: ["f,label", "3,a"]}
    )
    assert len(load(pattern).y_test) == 1


def test_a_table_takes_little_more_memory_than_twice_its_array(tmp_path):
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


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet"])
def test_each_file_can_be_a_client(tmp_path, ending):
    for name, number in (("south", 3), ("north.east", 2), ("empty", 0)):
        table = pandas.DataFrame({"f": np.arange(number) * 1.5, "label": list("aba")[:number]})
        path = tmp_path / f"{name}.{ending}"
        if ending == "parquet":
            table.astype({"label": "string"}).to_parquet(path, index=False)
        else:
            table.to_csv(path, index=False)
    data = load(tmp_path / f"*.{ending}", client_key="file")
    assert data.client_names == ("north.east", "south")
    np.testing.assert_array_equal(data.client_id, [0, 0, 1, 1, 1])
    np.testing.assert_array_equal(data.x[:, 0], [0, 1.5, 0, 1.5, 3])


def test_test_files_are_of_all_clients(tmp_path):
    lines = ["f,label", "1,a", "2,b"]
    pattern = write(tmp_path / "s", **dict.fromkeys(["train-n", "train-s", "test-n"], lines))
    data = load(pattern, client_key="file")
    assert data.client_names == ("train-n", "train-s")
    assert len(data.y_test) == 2
    assert data.client_id_test is None


def test_a_column_named_file_comes_before_the_files(tmp_path):
    lines = ["file,f,label", "x,1,a", "y,2,b"]
    data = load(write(tmp_path / "s", a=lines, b=lines), client_key="file")
    assert data.client_names == ("x", "y")
