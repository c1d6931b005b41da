"""Trackers receive each round, and neither they nor their failures change a run."""

import importlib.util
import json
from importlib.machinery import ModuleSpec

import pytest
from invoking import invoke
from small_tracking import ROUNDS, Recorder, SmallExperiment, Stop, lines

from jaxfed.experiment import tracking as trackers

BOTH = {"drift-0": ROUNDS, "drift-1": ROUNDS}


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    return SmallExperiment(tmp_path, monkeypatch)


def test_each_round_and_the_summary(experiment):
    recorder = Recorder()
    workdir = experiment.run("w", recorder)
    assert recorder.rounds == BOTH
    run = recorder.starts[1]
    assert (run.name, run.repeat, run.last_round, run.workdir) == ("drift-1", 1, -1, workdir)
    assert run.config["federation.num_clients"] == 4
    assert (run.config["method"], run.config["repeat"]) == ("drift", 1)
    assert run.id == f"{run.experiment}-drift-1"
    assert len({run.id for run in recorder.starts}) == 2
    first, last = (json.loads(text) for text in _ends(workdir))
    seen = recorder.logged["drift-0"][0][1]
    assert seen == {
        "mean": first["mean"],
        "communication/upload_bytes": 12,
        "communication/download_bytes": 6,
        "seconds": first["seconds"],
    }
    summary = json.loads((workdir / "summary.json").read_text())["algorithms"]["drift"]
    found = recorder.summaries["drift-1"]
    assert found["test_accuracy"] == summary["test_accuracy"]["values"][1] == last["test_accuracy"]
    assert found["communication/upload_bytes"] == 72
    assert found["seconds"] == pytest.approx(summary["seconds"]["values"][1])


def _ends(workdir):
    text = (workdir / "metrics.jsonl").read_text().splitlines()
    return text[0], text[-1]


def test_config_and_numbers_are_those_without_trackers(experiment):
    """One tracker clears what it is given, another fails."""
    workdirs = experiment.run("a"), experiment.run("b", Recorder(), Recorder("log"))
    for name in ("config.json", "data.json", "partition.json"):
        assert len({(workdir / name).read_bytes() for workdir in workdirs}) == 1
    assert lines(workdirs[0]) == lines(workdirs[1])
    assert not (workdirs[0] / "tracking.jsonl").exists()


def test_a_resumed_run_continues_after_its_checkpoint(experiment):
    """Round 4 is saved; 5 is played, logged, lost and played again. Then the second repeat is interrupted."""
    recorder, late = Recorder(), Recorder()
    with pytest.raises(Stop):
        experiment.run("w", recorder, stop_at=6)
    assert recorder.rounds == {"drift-0": ROUNDS[:5]}
    assert recorder.summaries == {"drift-0": None}
    with pytest.raises(Stop):
        experiment.run("w", recorder, late, stop_at=3)
    workdir = experiment.run("w", recorder, late)
    assert recorder.rounds == {"drift-0": [*ROUNDS[:5], 5, 6], "drift-1": [1, 2, *ROUNDS]}
    assert late.rounds == {"drift-0": [5, 6], "drift-1": [1, 2, *ROUNDS]}
    lost = [numbers for number, numbers in recorder.logged["drift-0"] if number == 5]
    assert lost[0] | {"seconds": 0} == lost[1] | {"seconds": 0}
    starts = [(run.name, run.last_round) for run in recorder.starts]
    assert starts == [("drift-0", -1), ("drift-0", 4), ("drift-1", -1), ("drift-1", -1)]
    assert recorder.starts[0].id == recorder.starts[1].id
    assert recorder.summaries["drift-0"]["communication/upload_bytes"] == 72
    assert lines(workdir) == lines(experiment.run("whole"))


def test_a_finished_run_is_not_tracked_again(experiment):
    recorder = Recorder()
    experiment.run("w", recorder)
    experiment.run("w", recorder)
    assert len(recorder.starts) == 2
    experiment.run("w", recorder, overwrite=True)
    assert len({run.id for run in recorder.starts}) == 4  # new runs, with new names


@pytest.mark.parametrize("method", ["start", "log", "finish"])
def test_a_failing_tracker_is_left_out_after_one_line(method, experiment, capsys):
    bad, good = Recorder(method), Recorder()
    experiment.run("w", bad, good, progress=True)
    said = [line for line in capsys.readouterr().out.splitlines() if "Recorder" in line]
    assert said == [
        "Recorder failed and is left out from here on; the run goes on: "
        f"ConnectionError: no network, in {method}"
    ]
    assert good.rounds == BOTH
    assert len(bad.starts) == (method != "start")


@pytest.mark.parametrize("found", [None, ModuleSpec("wandb", None)], ids=["nothing", "a folder"])
def test_a_library_that_is_missing(found, experiment, monkeypatch):
    """./wandb, which offline runs leave, looks like a package without files."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        trackers, "find_spec", lambda name: found if name == "wandb" else find(name)
    )
    assert invoke([*experiment.flags("w"), "--tracker=wandb"]) == (
        2,
        "jaxfed: --tracker='wandb': is not installed; pip install wandb\n",
    )
    assert not (experiment.folder / "w").exists()
