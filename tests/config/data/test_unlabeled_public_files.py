"""federation.public_dataset: a file of the user's own without labels, clients and dropped columns."""

import numpy as np
import pandas
import pytest
from PIL import Image

import jaxfed
from jaxfed.config import file
from jaxfed.config.data import simulation
from jaxfed.config.data.simulation import clients_set, public_set
from jaxfed.data import load
from jaxfed.errors import UsageError

FEATURES = ["size", "color"]
COLUMNS = ("label_key=kind", "client_key=site", "drop=note")


def frame(first, number):
    """Rows whose kind is 'large' from size 0.5 on."""
    size = np.linspace(0, 1, number)
    return pandas.DataFrame(
        {
            "size": size + first,
            "color": np.resize(["red", "blue"], number),
            "site": np.resize(["north", "south"], number),
            "note": np.arange(number) % 7,
            "kind": np.where(size < 0.5, "small", "large"),
        }
    )


def written(tmp_path, ending):
    """The clients' file, and a public one of features alone."""
    own, public = frame(0, 40), frame(0.001, 30)
    if ending == "npz":
        arrays = {"x": own[["size"]].to_numpy(), "y": own.kind.to_numpy(str)}
        np.savez(tmp_path / "own.npz", **arrays, site=own.site.to_numpy(str))
        np.savez(tmp_path / "public.npz", x=public[["size"]].to_numpy())
        return tmp_path / "own.npz", tmp_path / "public.npz", COLUMNS[1:2]
    if ending == "parquet":
        own.to_parquet(tmp_path / "own.parquet")
        public[FEATURES].to_parquet(tmp_path / "public.parquet")
        return tmp_path / "own.parquet", tmp_path / "public.parquet", COLUMNS
    own.to_csv(tmp_path / "own.csv", index=False)
    if ending == "csv":
        public[FEATURES].to_csv(tmp_path / "public.csv", index=False)
        return tmp_path / "own.csv", tmp_path / "public.csv", COLUMNS
    (tmp_path / "public").mkdir()
    for place, part in (("a", public[:10]), ("b", public[10:])):
        part[FEATURES].to_csv(tmp_path / "public" / f"{place}.csv", index=False)
    return tmp_path / "own.csv", tmp_path / "public" / "*.csv", COLUMNS


def config_of(own, public, columns, *overrides, spec="fedct.py:smoke,logistic_regression"):
    keys = [f"dataset.{key}" for key in (f"name={own}", *columns)]
    clients = ("federation.partition=natural", "federation.num_clients=0", "num_repeats=1")
    return file.load(spec, [*keys, *clients, f"federation.public_dataset={public}", *overrides])


@pytest.mark.parametrize("ending", ["csv", "*.csv", "parquet", "npz"])
def test_fedct_on_a_public_file_without_labels(tmp_path, ending):
    config = config_of(*written(tmp_path, ending))
    public = public_set(config, clients_set(config))
    assert len(public.y) == 30
    assert not public.is_labeled.any()
    result = jaxfed.run(config, workdir=tmp_path / "run", progress=False, execution__plots=False)
    federation = result.federation()
    assert len(federation.public) == 30
    assert (federation.y[federation.public] == -1).all()
    assert result.summary["algorithms"]["fedct"]["test_accuracy"]["mean"] > 0.6


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
def test_labels_that_everybody_has_must_be_there(tmp_path, ending):
    config = config_of(*written(tmp_path, ending), "federation.public_labeled=true")
    told = (
        r"public_labeled=True: the examples of .*public\.\w+ have labels of 0 classes; set it to F"
    )
    with pytest.raises(UsageError, match=told):
        public_set(config, clients_set(config))


def test_rows_of_a_public_table_may_be_labeled_in_part_or_by_one_class(tmp_path):
    own, public, columns = written(tmp_path, "csv")
    table = frame(0, 30).assign(kind=["small"] * 10 + [""] * 20)
    table[[*FEATURES, "kind"]].to_csv(public, index=False)
    config = config_of(own, public, columns)
    found = public_set(config, clients_set(config))
    np.testing.assert_array_equal(found.is_labeled, np.arange(30) < 10)


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
def test_clients_own_files_still_need_labels(tmp_path, ending):
    public = written(tmp_path, ending)[1]
    with pytest.raises(UsageError, match=r"no column of .* is named label|use the names x and y"):
        load(public)
    assert not load(public, labels_optional=True).is_labeled.any()


def test_features_of_a_file_without_labels_are_checked(tmp_path):
    own, public, columns = written(tmp_path, "csv")
    frame(0, 30)[["color", "size"]].to_csv(public, index=False)
    config = config_of(own, public, columns)
    with pytest.raises(UsageError, match="its features are others: number 0 is 'color=blue'"):
        public_set(config, clients_set(config))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_gaps_of_both_tables_get_the_clients_median_and_an_indicator(tmp_path, ending):
    own, public, columns = written(tmp_path, ending)
    for path, missing in ((own, [3, 4]), (public, [5])):
        table = pandas.read_csv(path) if ending == "csv" else pandas.read_parquet(path)
        table.loc[missing, "size"] = np.nan
        table.to_csv(path, index=False) if ending == "csv" else table.to_parquet(path)
    config = config_of(own, public, columns, "preprocessing.kind=identity")
    ours = simulation.Simulation(config)
    ours.warn()
    federation = ours.federation(0)
    assert federation.x.shape == (70, 4)
    median = np.unique(federation.x[[3, 4], 0])
    np.testing.assert_array_equal(federation.x[45, [0, 3]], [*median, 1])
    np.testing.assert_array_equal(np.flatnonzero(federation.x[:, 3]), [3, 4, 45])


def test_a_gap_where_the_clients_have_none_is_refused(tmp_path):
    own, public, columns = written(tmp_path, "csv")
    table = frame(0, 30)[FEATURES]
    table.loc[5, "size"] = np.nan
    table.to_csv(public, index=False)
    config = config_of(own, public, columns)
    with pytest.raises(UsageError, match=r"public_dataset='.*': row 5: column 'size' has no value"):
        simulation.Simulation(config)


@pytest.mark.parametrize("has_labels", [False, True])
def test_the_label_of_files_without_a_header_is_the_clients_last_column(tmp_path, has_labels):
    own, public = frame(0, 40), frame(0.001, 30)
    names = {"header": False, "index": False}
    own[["size", "note", "kind"]].to_csv(tmp_path / "own.csv", **names)
    public[["size", "note", "kind"][: 2 + has_labels]].to_csv(tmp_path / "public.csv", **names)
    keys = (f"dataset.name={tmp_path}/own.csv", f"federation.public_dataset={tmp_path}/public.csv")
    config = file.load("fedct.py:smoke,logistic_regression", keys)
    found = public_set(config, clients_set(config))
    np.testing.assert_array_equal(found.x, public[["size", "note"]].astype(np.float32))
    assert found.is_labeled.all() == found.is_labeled.any() == has_labels


def test_a_public_file_that_lacks_the_clients_header(tmp_path):
    table = frame(0, 30).assign(age=frame(0.5, 30)["size"])
    table[["age", "size", "kind"]].rename(columns={"kind": "label"}).to_csv(
        tmp_path / "own.csv", index=False
    )
    table[["age", "size"]].to_csv(tmp_path / "public.csv", index=False, header=False)
    config = config_of(tmp_path / "own.csv", tmp_path / "public.csv", ())
    words = r"column '1', the last of a file without a header, is the label: labels are a quantity"
    with pytest.raises(UsageError, match=rf"public_dataset='.*public.csv: {words}"):
        public_set(config, clients_set(config))


@pytest.mark.parametrize("kind", ["folder", "npz"])
def test_public_images_get_the_size_of_the_clients(tmp_path, monkeypatch, kind):
    """Files of other sizes are resized as the clients' are; arrays have the clients' size already."""
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))
    for folder, size in (("own/a", 12), ("own/b", 12), ("public/all", 10)):
        (tmp_path / folder).mkdir(parents=True)
        for i in range(3):
            image = np.full((size, size, 3), 40 * i, np.uint8)
            Image.fromarray(image).save(tmp_path / folder / f"{i}.png")
    np.savez(tmp_path / "public.npz", x=np.zeros((3, 8, 8, 3), np.uint8))
    public = tmp_path / {"folder": "public", "npz": "public.npz"}[kind]
    config = config_of(tmp_path / "own", public, ["image_size=8"])
    found = public_set(config, clients_set(config))
    assert found.x.shape == (3, 8, 8, 3)
