"""The comparison of two commits notices a changed bit, a missing value and a new one, and nothing else."""

import json

import compare_commits
import numpy as np
from compare_commits import EXIT, MESSAGE, Case, report
from flat_results import compared, flat_workdir

LOSS = 0.1 + 0.2


def workdir(path, *, seconds=1.0, bits=0, field="weights", **more):
    """A finished run as the launcher leaves it."""
    line = {"algorithm": "fedavg", "repeat": 0, "round": 1, "loss": LOSS, "seconds": seconds}
    path.mkdir()
    (path / "metrics.jsonl").write_text(json.dumps({**line, **more}) + "\n")
    summary = {"algorithms": {"fedavg": {"loss": {"values": [LOSS]}}}, "environment": str(path)}
    (path / "summary.json").write_text(json.dumps(summary))
    (path / "config.json").write_text(json.dumps({"key": seconds}))
    folder = path / "states" / "fedavg-0"
    folder.mkdir(parents=True)
    weights = np.array([1.0, 2.0], np.float32)
    weights.view(np.uint32)[1] += bits
    record = np.frombuffer(str(path).encode(), np.uint8)
    for step in (9, 10):
        arrays = {f"state/{field}.kernel": weights * (step == 10), "record": record}
        np.savez(folder / f"{step}.npz", **arrays)
    return flat_workdir(path)


def noticed(old, new, **options):
    return {kind: entries for kind, entries in compared(old, new, **options).items() if entries}


def test_one_bit_is_noticed_and_times_and_machines_are_not(tmp_path):
    old = workdir(tmp_path / "a")
    assert not noticed(old, workdir(tmp_path / "d", seconds=2.0))
    found = noticed(old, workdir(tmp_path / "b", bits=1, loss=0.3))
    assert [entry.partition(":")[0] for entry in found.pop("changed")] == [
        "metrics/fedavg/0/1/loss",
        "state/states/fedavg-0/10/weights.kernel",
    ]
    assert not found
    found = noticed(old, workdir(tmp_path / "c", bits=1, loss=0.3), state_only=True)
    assert len(found["changed"]) == 1


def test_a_renamed_field_is_no_difference_but_another_content_is(tmp_path):
    old, new = workdir(tmp_path / "a"), workdir(tmp_path / "b", field="params")
    place = "state/states/fedavg-0/10"
    assert noticed(old, new) == {"renamed": [f"{place}/weights.kernel -> {place}/params.kernel"]}
    assert noticed(old, workdir(tmp_path / "c", field="params", bits=1)).keys() == {
        "missing",
        "new",
    }


def test_the_exit_status(capsys):
    case = Case("run a", (), "")
    failed = {EXIT: "2", MESSAGE: "no data"}
    assert report([case], {"run a": {"x": "1"}}, {"run a": {"x": "1"}}) == 0
    assert report([case], {"run a": failed}, {"run a": {**failed, MESSAGE: "no set"}}) == 0
    assert "skipped, as it fails in both: no data" in capsys.readouterr().out
    for new in ({"x": "2"}, {}, {"x": "1", "y": "1"}, failed):
        assert report([case], {"run a": {"x": "1"}}, {"run a": new}) == 1
    assert report([case], {"run a": failed}, {"run a": {"x": "1"}}) == 1


def test_every_config_is_compared():
    folder = compare_commits.HERE.parent / compare_commits.CONFIGS
    texts = {path.name: path.read_text() for path in folder.glob("*.py")}
    configs = {name for name, text in texts.items() if "def get_config(variant" in text}
    compared = compare_commits.RUNS + compare_commits.AUDITS
    assert configs == {spec.partition(":")[0] for spec in compared}
