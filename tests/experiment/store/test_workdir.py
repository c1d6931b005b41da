"""A workdir whose files are cut off, changed, or half deleted; resuming on data that has changed."""

import json
import logging
import os
import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from absl.testing import flagsaver

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import base
from jaxfed.errors import UsageError
from jaxfed.experiment.store.workdir import (
    is_finished,
    open_for_all,
    open_workdir,
)
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import method
from jaxfed.host import checkpoint
from jaxfed.host.parallel import processes
from launch import entry, run

CONFIG = {"algorithm": "xclp", "num_repeats": 2, "dataset": {"name": "digits"}, "alpha": 0.5}
ROOT = Path(__file__).parents[3]


class Stop(Exception):
    pass


@pytest.fixture
def launch(tmp_path, monkeypatch, capsys):
    """launch.run of a method of 2 x 6 quick rounds, in this process -> status, its standard error."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "set.npz", x=rng.random((40, 3), np.float32), y=np.arange(40) % 2)
    events = {}  # step -> what happens before that round

    @method(takes=("num_classes",))
    def drift(*, num_classes):
        def init(key, federation):
            return {"w": jax.random.normal(key, (3,)), "rounds": 0}

        def round(state, cohort, key):
            event = events.pop(state["rounds"] + 1, None)
            if event is not None:
                event()
            w = state["w"] + jax.random.normal(key, (3,))
            return {"w": w, "rounds": state["rounds"] + 1}, {"mean": float(w.mean())}

        def evaluate(state, federation):
            return {"test_accuracy": float(jax.nn.sigmoid(state["w"][0]))}

        return FederatedAlgorithm(init, round, evaluate)

    monkeypatch.setitem(ALGORITHMS, "drift", drift)
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))

    def start(workdir, *arguments, **at_round):
        events.update({int(name[1:]): event for name, event in at_round.items()})
        settings = {
            "dataset.name": tmp_path / "set.npz",
            "algorithm": "drift",
            "baselines": "",
            "rounds": 6,
            "num_repeats": 2,
            "cohort_size": 3,
            "federation.num_clients": 4,
            "federation.labeled_fraction": 0.5,
            "checkpoint_every": 1,
            "execution.compilation_cache": "off",
            "execution.plots": "false",
        }
        command = ["run", f"--config={base.__file__}", f"--workdir={workdir}"]
        command += [f"--config.{key}={value}" for key, value in settings.items()]
        monkeypatch.setattr(sys, "argv", [*command, *arguments])
        with flagsaver.flagsaver(), pytest.raises(SystemExit) as caught:
            entry.start(run.main)
        return caught.value.code or 0, capsys.readouterr().err

    return start


def stop():
    raise Stop


def interrupted(launch, workdir, *arguments):
    """A run that ended before its 4th round, as a killed one does."""
    with pytest.raises(Stop):
        launch(workdir, *arguments, r4=stop)


def results(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
    summary = json.loads((workdir / "summary.json").read_text())
    return lines, summary["test_accuracy"]


@pytest.fixture
def whole(launch, tmp_path):
    """The results of a run that nothing disturbed."""
    assert launch(tmp_path / "whole") == (0, "")
    return results(tmp_path / "whole")


def flip(file, place=200):
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def test_what_is_damaged_does_not_change_results(launch, whole, tmp_path, caplog):
    def cut_summary(workdir):
        launch(workdir)
        summary = workdir / "summary.json"
        summary.write_text(summary.read_text()[:-30])

    def cut_metrics(workdir):
        interrupted(launch, workdir)
        metrics = workdir / "metrics.jsonl"
        metrics.write_bytes(metrics.read_bytes()[:-20])

    def flip_checkpoint(workdir):
        interrupted(launch, workdir)
        flip(workdir / "checkpoints" / "3.npz")

    def other_metrics(workdir):
        interrupted(launch, workdir)
        flip(workdir / "metrics.jsonl", -5)

    for number, (damage, word) in enumerate(
        {
            cut_summary: "",
            cut_metrics: "metrics.jsonl is not what it was saved with",
            other_metrics: "metrics.jsonl is not what it was saved with",
            flip_checkpoint: "damaged checkpoint",
        }.items()
    ):
        workdir = tmp_path / f"run[{number}] ü"
        damage(workdir)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert launch(workdir) == (0, ""), damage.__name__
        assert word in caplog.text
        assert ("going on from 2.npz" in caplog.text) == bool(word)
        assert results(workdir) == whole


def test_metrics_that_fit_no_checkpoint_are_refused_at_once(launch, tmp_path):
    interrupted(launch, tmp_path / "w")
    (tmp_path / "w" / "metrics.jsonl").write_bytes(b"")
    status, complaint = launch(tmp_path / "w")
    assert (status, complaint.count("\n")) == (2, 1)
    assert "metrics.jsonl is not what it was saved with" in complaint
    assert "; give another workdir, or delete this one" in complaint


def test_a_run_goes_on_with_more_workers(launch, whole, tmp_path):
    """And with whatever else results do not depend on; not with another precision, nor when it has ended."""
    more, place = "--config.execution.workers=1", tmp_path / "w"
    interrupted(launch, place)
    status, complaint = launch(place, more, "--config.execution.precision=bfloat16")
    assert (status, complaint.count("\n")) == (2, 1)
    assert 'another config: config.execution.precision is "float32" there' in complaint
    assert "workers" not in complaint
    assert launch(place, more) == (0, "")
    assert results(place) == whole
    assert json.loads((place / "config.json").read_text())["execution"]["workers"] == 1
    status, complaint = launch(place)
    assert (status, complaint.count("\n")) == (2, 1)
    assert "config.execution.workers is 1 there, 0 now" in complaint


def test_a_run_goes_on_where_its_data_lie_elsewhere(tmp_path):
    """As on another machine; data.json tells other data of the same name."""

    def opened(name, root="/a"):
        config = {"algorithm": "xclp", "num_repeats": 1, "dataset": {"root": root, "name": name}}
        with open_workdir(tmp_path / "w", config) as workdir:
            return json.loads((workdir.path / "config.json").read_text())["dataset"]

    opened("/a/x.csv")
    assert opened("/b/x.csv", root="/b") == {"root": "/b", "name": "/b/x.csv"}
    for other in ("/b/y.csv", "digits"):
        with pytest.raises(UsageError, match=r"another config: config\.dataset\.name is"):
            opened(other)


def test_data_json_of_an_earlier_version_names_weights_by_a_key_that_is_gone(tmp_path):
    dataset = {"root": "", "name": "digits"}
    config = {"algorithm": "xclp", "num_repeats": 1, "dataset": dataset}
    with open_workdir(tmp_path / "w", config) as workdir:
        (workdir.path / "data.json").write_text('{"preprocessing.weights": "a"}')
        workdir.check_data({"preprocessing.network": "a"})
        with pytest.raises(UsageError, match=r"preprocessing\.network is a there, b now"):
            workdir.check_data({"preprocessing.network": "b"})


def test_a_run_of_an_earlier_version_goes_on(launch, whole, tmp_path):
    """Which had no key of sums under masks, and others that are gone."""
    place = tmp_path / "w"
    interrupted(launch, place)
    config = json.loads((place / "config.json").read_text())
    del config["training"]["sums"], config["training"]["presence"]
    config["execution"]["memory_limit"] = None
    (place / "config.json").write_text(json.dumps(config))
    assert launch(place) == (0, "")


def test_data_that_changes_under_an_unfinished_run_is_refused(launch, whole, tmp_path):
    interrupted(launch, tmp_path / "w")
    data = tmp_path / "set.npz"
    times = data.stat()
    before = data.read_bytes()
    with np.load(data) as arrays:
        x, y = arrays["x"], arrays["y"].copy()
    y[7] = 1 - y[7]
    np.savez(data, x=x, y=y)
    os.utime(data, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert data.stat().st_size == times.st_size
    status, complaint = launch(tmp_path / "w")
    assert (status, complaint.count("\n")) == (2, 1)
    assert "its rounds were computed on other data: y is int32[40] " in complaint
    data.write_bytes(before)
    assert launch(tmp_path / "w") == (0, "")
    assert results(tmp_path / "w") == whole


@pytest.mark.sample(1)
@pytest.mark.parametrize("every", [0, 1])
def test_a_full_disk_is_one_line_and_the_same_command_continues(
    launch, whole, tmp_path, full_disk, monkeypatch, every
):
    """Full while metrics, checkpoints or plots are written; by the clock a thread writes them."""
    monkeypatch.setattr(checkpoint, "_MOST_LOST", 0.0)
    monkeypatch.setattr(checkpoint, "LARGEST_SHARE", 1e9)
    for limit, plots in ((150, "false"), (1000, "false"), (3000, "true")):
        saving = (f"--config.checkpoint_every={every}", f"--config.execution.plots={plots}")
        workdir = tmp_path / str(limit)
        with full_disk(after=limit):
            status, complaint = launch(workdir, *saving)
        assert (status, complaint.count("\n")) == (1, 1), complaint
        assert "File too large" in complaint
        assert "with more room the same command continues" in complaint
        assert not list(workdir.rglob("*.partial"))
        assert not (workdir / "summary.json").exists()
        assert launch(workdir, *saving) == (0, "")
        assert results(workdir) == whole


@pytest.mark.parametrize(
    ("key", "value"),
    [("fedct.ties", "smallest"), ("scaffold.option", "II"), ("labeled_share", "ceiling")],
)
def test_a_key_that_went_with_its_only_value_left_is_no_other_config(tmp_path, key, value):
    """Nor is its section, which has no other key."""
    config = {**CONFIG, "fedct": {"steps": 2}}
    section, _, leaf = key.rpartition(".")
    own = {**config.get(section, {}), leaf: value}
    old = {**config, **({section: own} if section else own)}
    (tmp_path / "config.json").write_text(json.dumps(old))
    with open_workdir(tmp_path, config):
        pass


def test_a_key_that_came_has_the_value_of_the_runs_before_it(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    config = {**CONFIG, "dataset": {**CONFIG["dataset"], "test_rows": "shared"}}
    with open_workdir(tmp_path, config):
        assert json.loads((tmp_path / "config.json").read_text()) == CONFIG


def test_deleting_that_is_cut_short_leaves_no_finished_run(tmp_path, monkeypatch):
    """Killed once summary.json is gone: the old config begins anew, and overwriting goes on."""
    with open_workdir(tmp_path, CONFIG) as workdir:
        workdir.append_metrics({"round": 1})
        (tmp_path / "checkpoints").mkdir()
        workdir.finish({"algorithms": {}})
    (tmp_path / "notes.txt").write_text("mine")
    assert is_finished(tmp_path, CONFIG)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda path: stop())
        with pytest.raises(Stop), open_workdir(tmp_path, CONFIG, overwrite=True):
            pass
    assert not is_finished(tmp_path, CONFIG)
    changed = {**CONFIG, "alpha": 0.9}
    with open_workdir(tmp_path, changed, overwrite=True) as workdir:
        assert workdir.read_metrics() == []
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "notes.txt", ".lock"}


def test_processes_compare_the_newest_checkpoint_that_each_sees(tmp_path, monkeypatch):
    compared = []
    monkeypatch.setattr(processes, "check_same", compared.append)
    with open_for_all(tmp_path / "w", CONFIG) as workdir:
        checkpoint.Checkpoints(workdir.checkpoints).save(3, (), {})
    with open_for_all(tmp_path / "w", CONFIG):
        pass
    assert compared == [{"the newest checkpoint in --workdir": step} for step in ("None", "3")]
