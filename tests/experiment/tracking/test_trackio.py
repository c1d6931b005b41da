"""Trackio: a stand-in for its public functions, and the library itself on this machine."""

from types import SimpleNamespace

import pytest
from small_tracking import ROUNDS, SmallExperiment, Stop, stand_in

from jaxfed.experiment.tracking import Trackio


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    return SmallExperiment(tmp_path, monkeypatch)


@pytest.fixture
def runs(monkeypatch):
    """What `trackio.init` has made."""
    runs = []

    def init(**given):
        runs.append(SimpleNamespace(given=given, steps=[], final={}, is_finished=False))

    def log(metrics, step):
        if "mean" in metrics:
            runs[-1].steps.append(step)
        else:
            runs[-1].final = metrics

    def finish():
        runs[-1].is_finished = True

    stand_in(monkeypatch, "trackio", init=init, log=log, finish=finish)
    return runs


def test_runs_of_methods_and_repeats(experiment, runs):
    with pytest.raises(Stop):
        experiment.run("w", "trackio", stop_at=6)
    experiment.run("w", "trackio")
    first, again, second = runs
    assert first.given["name"] == again.given["name"] != second.given["name"]
    assert (first.given["project"], first.given["resume"]) == ("jaxfed", "allow")
    assert (first.steps, again.steps, second.steps) == (ROUNDS[:5], [6], ROUNDS)
    assert (first.final, again.final["final/communication/upload_bytes"]) == ({}, 72)
    assert all(run.is_finished for run in runs)
    assert not first.given["auto_log_cpu"]
    experiment.run("v", Trackio(project="mine"))
    assert runs[-1].given["project"] == "mine"


@pytest.mark.slow
def test_the_library_itself(experiment, monkeypatch, capsys):
    monkeypatch.setenv("TRACKIO_DIR", str(experiment.folder / "trackio"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    trackio = pytest.importorskip("trackio", reason="pip install -r requirements-trackers.txt")
    with pytest.raises(Stop):
        experiment.run("w", "trackio", stop_at=6)
    experiment.run("w", "trackio", progress=True)
    assert "failed" not in capsys.readouterr().out
    found = {run.name.rpartition("-drift-")[2]: run for run in trackio.Api().runs("jaxfed")}
    assert set(found) == {"0", "1"}
    for run in found.values():
        logs = trackio.SQLiteStorage.get_logs("jaxfed", run.name)
        assert [line["step"] for line in logs if "mean" in line] == ROUNDS
        assert [line["step"] for line in logs if "final/test_accuracy" in line] == [6]
        assert run.config["federation.num_clients"] == 4
