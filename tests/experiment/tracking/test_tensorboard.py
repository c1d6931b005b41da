"""Event files, read back by TensorBoard's own reader."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from invoking import ROOT
from small_tracking import ROUNDS, SmallExperiment, Stop, lines

from jaxfed.experiment.tracking import TensorBoard, TrackedRun


def read(folder):
    """Folder's name below `folder` -> TensorBoard's accumulator, for each folder with event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for place in sorted({file.parent for file in Path(folder).rglob("*tfevents*")}):
        accumulator = EventAccumulator(str(place), size_guidance={"scalars": 0, "tensors": 0})
        accumulator.Reload()
        found[str(place.relative_to(folder))] = accumulator
    return found


def steps(accumulator, tag):
    return [event.step for event in accumulator.Scalars(tag)]


pytest.importorskip("tensorboard", reason="pip install -r requirements-trackers.txt")


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    return SmallExperiment(tmp_path, monkeypatch)


def test_what_readers_find(experiment):
    before = time.time()
    workdir = experiment.run("w", "tensorboard")
    found = read(workdir / "tensorboard")
    assert set(found) == {"drift-0", "drift-1"}
    records = [line for line in lines(workdir) if line["repeat"] == 1]
    run = found["drift-1"]
    assert steps(run, "mean") == steps(run, "communication/upload_bytes") == ROUNDS
    values = [event.value for event in run.Scalars("mean")]
    assert values == pytest.approx([record["mean"] for record in records], rel=1e-6)
    (last,) = run.Scalars("test_accuracy")
    (final,) = run.Scalars("final/test_accuracy")
    assert (last.step, final.step) == (6, 6)
    assert last.value == final.value == pytest.approx(records[-1]["test_accuracy"], rel=1e-6)
    assert [event.value for event in run.Scalars("final/communication/upload_bytes")] == [72]
    times = [event.wall_time for event in run.Scalars("mean")]
    assert before - 1 < times[0] < times[-1] < time.time() + 1
    assert times == sorted(times)


def test_a_resumed_run_has_each_round_once(experiment):
    """Lost rounds too: 5 is logged, not saved, and played again."""
    with pytest.raises(Stop):
        experiment.run("w", "tensorboard", stop_at=6)
    experiment.run("w", "tensorboard")
    workdir = experiment.folder / "w"
    assert len(list((workdir / "tensorboard" / "drift-0").iterdir())) == 2
    for run in read(workdir / "tensorboard").values():
        assert steps(run, "mean") == ROUNDS
        times = [event.wall_time for event in run.Scalars("mean")]
        assert times == sorted(times)
        assert steps(run, "final/mean") == [6]


@pytest.mark.parametrize("cut", [0, 7], ids=["whole", "torn"])
def test_a_round_that_was_logged_but_not_noted(cut, tmp_path):
    """A process killed between the event and tracking.jsonl; perhaps within the event."""
    run = TrackedRun("m", 0, "e", tmp_path, {"method": "m"})
    tracker = TensorBoard()
    tracker.start(run)
    for number in (1, 2, 3):
        tracker.log(number, {"loss": float(number), "seconds": 1.0})
    (file,) = (tmp_path / "tensorboard" / "m-0").iterdir()
    os.truncate(file, file.stat().st_size - cut)
    again = TensorBoard()
    again.start(TrackedRun("m", 0, "e", tmp_path, {}, last_round=2))
    for number in (3, 4):
        again.log(number, {"loss": float(number), "seconds": 1.0})
    again.finish({"loss": 4.0})
    tracker.finish(None)  # writes nothing, closes the file
    (found,) = read(tmp_path).values()
    assert steps(found, "loss") == [1, 2, 3, 4]


def test_neither_tensorflow_nor_torch_is_imported(tmp_path):
    """Both are on the path here, as modules that fail."""
    for name in ("tensorflow", "torch"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')")
    code = (
        "from pathlib import Path; from jaxfed.experiment.tracking import TensorBoard, TrackedRun; "
        f"tracker = TensorBoard(); place = Path({str(tmp_path)!r}); "
        "tracker.start(TrackedRun('m', 0, 'e', place, {'a': 1})); "
        "tracker.log(1, {'loss': 1.0}); tracker.finish({'loss': 1.0}); "
        "import sys; print(*{name.partition('.')[0] for name in sys.modules})"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert {"tensorflow", "torch"}.isdisjoint(done.stdout.split())
    assert list(read(tmp_path)) == ["tensorboard/m-0"]
