"""`jaxfed.run`: the launcher's own path, from scripts, threads and notebooks."""

import gc
import json
import sys

import numpy as np
import pandas
import pytest
from invoking import invoke

import jaxfed
from jaxfed.config import file

TRAINED = "fedavg_xclp:smoke"
FEW = {"algorithm": "fedavg", "baselines": ("again",), "again__algorithm": "fedavg"}
FEW |= {"rounds": 2, "dataset__train_size": 400, "model__hidden": (16,)}
SMALL = {"dataset__train_size": 100, "xclp__num_bits": 64, "execution__plots": False}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return jaxfed.run(TRAINED, workdir=tmp_path_factory.mktemp("run") / "w", progress=False, **FEW)


def test_it_is_the_launchers_path(trained, tmp_path):
    """Same config, same lines but for times, same files."""
    told = {key.replace("__", "."): value for key, value in {**FEW, "baselines": "again"}.items()}
    arguments = [
        "--config=ml_collections_configs/fedavg_xclp.py:smoke",
        f"--workdir={tmp_path / 'w'}",
        *(f"--config.{key}={value}" for key, value in told.items()),
    ]
    status, errors = invoke(arguments)
    assert (status, errors) == (0, "")
    for name in ("config.json", "partition.json", "data.json"):
        assert (trained.workdir / name).read_bytes() == (tmp_path / "w" / name).read_bytes()
    lines = [
        [
            {**json.loads(line), "seconds": 0}
            for line in (folder / "metrics.jsonl").read_text().splitlines()
        ]
        for folder in (trained.workdir, tmp_path / "w")
    ]
    assert lines[0] == lines[1]
    for folder in ("plots", "predictions", "states"):
        names = [
            sorted(p.name for p in (w / folder).iterdir())
            for w in (trained.workdir, tmp_path / "w")
        ]
        assert names[0] == names[1] != []
    assert (tmp_path / "w" / "plots" / "partition.png").stat().st_size > 1000
    for file_name in ("fedavg-0", "again-0"):
        tables = [
            w / "predictions" / f"{file_name}.csv.gz" for w in (trained.workdir, tmp_path / "w")
        ]
        assert tables[0].read_bytes() == tables[1].read_bytes()


def test_tables(trained, monkeypatch):
    accuracy = trained.summary["algorithms"]["fedavg"]["test_accuracy"]["mean"]
    rows = trained.results
    found = rows[(rows.algorithm == "fedavg") & (rows.metric == "test_accuracy")]
    assert found["mean"].item() == accuracy
    assert set(trained.metrics.algorithm) == {"fedavg", "again"}
    assert "communication.upload_bytes" in trained.metrics
    told = trained.predictions("fedavg")
    assert (told.role == "test").all()
    assert (told.client == -1).all()
    assert (told.label == told.truth).mean() == pytest.approx(accuracy)
    read = pandas.read_csv(trained.workdir / "predictions" / "fedavg-0.csv.gz")
    assert read.label.tolist() == told.label.tolist()
    assert f"fedavg {accuracy:.4f}" in repr(trained)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(jaxfed.UsageError, match=r"pip install pandas, or jaxfed\[lab\]"):
        trained.results  # noqa: B018


@pytest.mark.parametrize("last", [False, True])
def test_the_model_is_ready_to_call(trained, last):
    federation = trained.federation()
    probability = trained.model("fedavg", last=last)(federation.x[federation.test])
    np.testing.assert_allclose(probability.sum(axis=1), 1, rtol=1e-5)
    with pytest.raises(jaxfed.UsageError, match=r"^predict: examples are an array \[5, 8\]"):
        trained.model("fedavg", last=last)(np.zeros((5, 8)))
    if not last:
        told = trained.predictions("fedavg")
        assert probability.argmax(axis=1).tolist() == told.label.tolist()


def test_a_finished_workdir_is_read_and_another_config_refused(trained):
    before = (trained.workdir / "summary.json").stat().st_mtime_ns
    again = jaxfed.run(TRAINED, workdir=trained.workdir, progress=False, **FEW)
    assert (trained.workdir / "summary.json").stat().st_mtime_ns == before
    assert again.summary == trained.summary
    with pytest.raises(jaxfed.UsageError, match=r"made by another config: config\.seed"):
        jaxfed.run(TRAINED, workdir=trained.workdir, progress=False, **FEW, seed=1)


@pytest.mark.parametrize("config", ["xclp_digits:smoke", file.load("xclp_digits:smoke")])
def test_a_key_that_nothing_reads_is_refused(config):
    with pytest.raises(
        jaxfed.UsageError, match=r"^config\.fedprox\.mu=0\.5: no method of this run reads it"
    ):
        jaxfed.run(config, progress=False, fedprox__mu=0.5)


@pytest.mark.slow
def test_a_folder_of_its_own_goes_with_the_result():
    result = jaxfed.run("xclp_digits:smoke", progress=False, num_repeats=1, baselines=(), **SMALL)
    place = result.workdir
    assert place.is_dir()
    del result
    gc.collect()
    assert not place.exists()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: r.model("fedprox"), "'fedprox': no method of this experiment"),
        (lambda r: r.predictions("fedavg", 7), "repeat=7: use 0 to 0"),
        (lambda r: jaxfed.run("no_such_config"), "no such file"),
        (lambda r: jaxfed.run(3), r"^config: is of type int; give a path"),
        (lambda r: jaxfed.run(TRAINED, xclp__alfa=1), r"config\.xclp\.alfa: unknown key"),
        (
            lambda r: jaxfed.run(TRAINED, dataset__name=np.eye(2)),
            r"config\.dataset\.name: is of type ndarray; give a path",
        ),
        (
            lambda r: jaxfed.run(TRAINED, dataset_name="a.csv"),
            r"config\.dataset_name: unknown key, did you mean 'dataset\.name'",
        ),
        (lambda r: jaxfed.run(TRAINED, num_repeats=0), r"^config\.num_repeats=0: use "),
    ],
)
def test_mistakes_are_one_line(trained, call, message):
    with pytest.raises(jaxfed.UsageError, match=message) as caught:
        call(trained)
    assert "\n" not in str(caught.value)


def test_one_shot_methods_have_no_model():
    result = jaxfed.run("xclp_digits:smoke", progress=False, num_repeats=1, baselines=(), **SMALL)
    with pytest.raises(jaxfed.UsageError, match="trains no model"):
        result.model()
