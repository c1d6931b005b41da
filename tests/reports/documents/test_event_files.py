"""`launch.report --tensorboard=DIR`: event files of runs that have finished."""

import json
import os

import pytest
from event_files import read, steps
from invoking import called
from small_workdirs import make_run, make_sweep

from jaxfed.experiment.tracking import tracker
from jaxfed.reports.documents.event_files import write_event_files
from launch import report

WITH_TENSORBOARD = pytest.mark.skipif(
    not tracker.find_spec("tensorboard"), reason="pip install -r requirements-trackers.txt"
)


def reported(*arguments):
    """Exit status and standard error of launch.report."""
    done = called(report.main, *arguments)
    return done.returncode, done.stderr


@pytest.mark.slow
@WITH_TENSORBOARD
def test_of_runs_and_sweeps(tmp_path):
    work, out = tmp_path / "work", tmp_path / "tb"
    accuracies = {"xclp": (0.2, 0.3), "fedavg": (0.1, 0.2)}
    make_run(work / "a" / "one", accuracies, rounds=3)
    make_run(work / "b" / "one", {"xclp": (0.5,)}, rounds=2)
    make_run(work / "half", {"xclp": (0.5,)}, finished=False)
    make_sweep(work / "bits", [("L64", {"xclp.num_bits": 64}, {"xclp": (0.5,)})], {})
    arguments = [str(work), f"--tensorboard={out}"]
    for _ in range(2):  # a second call replaces the files of the first
        assert reported(*arguments) == (0, "")
    found = read(out)
    assert set(found) == {
        *("one/xclp-0", "one/xclp-1", "one/fedavg-0", "one/fedavg-1", "one-2/xclp-0"),
        *("half/xclp-0", "bits/L64/xclp-0"),
    }
    assert all(len(list((out / name).iterdir())) == 1 for name in found)
    run = found["one/xclp-1"]
    assert steps(run, "test_accuracy") == [1, 2, 3]
    assert [event.value for event in run.Scalars("test_accuracy")] == pytest.approx([0.3, 0.6, 0.9])
    assert steps(run, "final/test_accuracy") == [3]
    assert "final/test_accuracy" not in found["half/xclp-0"].Tags()["scalars"]
    assert not (work / "report").exists()


@WITH_TENSORBOARD
def test_times_are_those_of_the_run(tmp_path):
    make_run(tmp_path / "one", {"xclp": (0.5,), "fedavg": (0.5,)}, rounds=2)
    file = tmp_path / "one" / "metrics.jsonl"
    records = [{**json.loads(line), "seconds": 10.0} for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    os.utime(file, (1000, 1000))
    assert write_event_files([tmp_path / "one"], tmp_path / "tb") == (2, tmp_path / "tb")
    found = read(tmp_path / "tb" / "one")
    times = {
        name: [event.wall_time for event in run.Scalars("test_accuracy")]
        for name, run in found.items()
    }
    assert times == {"xclp-0": [970, 980], "fedavg-0": [990, 1000]}


@WITH_TENSORBOARD
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out=r"], "--out: goes with a report, and --tensorboard writes none; give one of them"),
        ([], "give a workdir of launch.run or launch.sweep"),
    ],
)
def test_mistakes(arguments, message, tmp_path):
    given = [*arguments, f"--tensorboard={tmp_path / 'tb'}"]
    assert reported(*given) == (2, f"jaxfed: {message}\n")
    assert not (tmp_path / "tb").exists()
