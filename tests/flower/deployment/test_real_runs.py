"""Whole runs by Flower's own processes, with TLS and keys: the simulation's results, and bytes as predicted.

Commands run in processes of their own, so that nothing of the tests' JAX settings reaches them.
"""

import json
import os
import subprocess
import sys

import pytest
from invoking import ROOT

from jaxfed.experiment.store.records import read_metrics
from jaxfed.flower.deployment import trial

pytest.importorskip("flwr", reason="pip install -r requirements-flower.txt")
pytestmark = pytest.mark.slow

CONFIG = "examples/flower/fedavg_digits.py"
SMALL = ("dataset.train_size=200", "rounds=2", "evaluate_every=0")
# Method -> its settings, the largest difference of an entry of the last state, and the most bytes of a
# client's reply beside those of the simulation: weights, statistics, seconds, rows of absent classes.
RUNS = {
    "fedavg": ((), 0.0, 200),
    "scaffold": ((), 0.0, 200),
    "protofssl": ((), 0.0, 1000),
}


def started(place, *settings, command=("launch.flower", "try")):
    """A process of a command, with its lines."""
    env = {name: v for name, v in os.environ.items() if not name.startswith(("XLA_", "JAX_"))}
    arguments = [f"--config={CONFIG}", f"--workdir={place}"]
    arguments += [f"--config.{each}" for each in settings]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, "-m", *command, *arguments], env=env, cwd=ROOT, **both)


def tried(place, *settings, status=(0,)):
    """Lines of `launch.flower try`."""
    with started(place, *settings) as process:
        said = process.communicate(timeout=300)[0]
    print(said)
    assert process.returncode in status
    return said.splitlines()


@pytest.mark.parametrize("name", RUNS)
def test_processes_compute_what_the_simulation_does(tmp_path, name, record_property):
    settings, allowed, on_top = RUNS[name]
    said = tried(tmp_path, *SMALL, f"algorithm={name}", *settings)
    found = trial.compare(tmp_path / "run", tmp_path / "simulation", name)
    assert found.num_arrays > 0
    assert found.largest <= allowed
    assert found.labels == 0 < found.num_labels
    lines = list(map(json.loads, (tmp_path / "run" / "stages.jsonl").read_text().splitlines()))
    ended = [line for line in lines if line["stage"].endswith(" ended")]
    assert all(line["replies"] == 3 for line in ended)
    assert sum("3 replies in" in line for line in said) == len(ended)
    assert not any("\x1b" in line or "INFO" in line for line in said)
    sent, simulated = (list(read_metrics(tmp_path / name)) for name in ("run", "simulation"))
    up = [sum(each[part]["upload_bytes"] for each in sent) for part in ("network", "communication")]
    record_property("bytes", up)
    assert 0 <= up[0] - up[1] < 3 * on_top * len(ended)
    for here, there in zip(sent, simulated, strict=True):
        for way in ("upload_bytes", "download_bytes"):
            assert here["communication"][way] == there["communication"][way]


MASKED = ("xclp.hamming=masked", "xclp.influence=columns", "xclp.row_sums=masked")
TREES = ("learner.name=decision_tree", "federation.public_size=60", "fedct.sums=masked")
IN_SESSIONS = {
    "fedct": (TREES, 0.0),
    "fedavg_xclp": ((*MASKED, "xclp.num_bits=64", "training.labeled_only_rounds=1"), 1e-6),
}


@pytest.mark.parametrize("name", IN_SESSIONS)
def test_processes_that_run_protocols_compute_what_the_simulation_does(tmp_path, name):
    settings, allowed = IN_SESSIONS[name]
    statuses = (0, 1) if allowed else (0,)  # 1: other bits, by rounding
    tried(tmp_path, *SMALL, f"algorithm={name}", *settings, "rounds=2", status=statuses)
    found = trial.compare(tmp_path / "run", tmp_path / "simulation", name)
    assert found.num_arrays > 2
    assert found.largest <= allowed
    lines = list(map(json.loads, (tmp_path / "run" / "stages.jsonl").read_text().splitlines()))
    ended = {line["stage"]: line for line in lines if line["stage"].endswith(" ended")}
    assert {"join ended", "upload ended", "end ended"} <= ended.keys()
    assert all(line["replies"] == 3 for line in ended.values())


def test_a_killed_client_is_a_departure(tmp_path):
    """Of masked sums, after all have shared their secrets: the bits of a simulation that it leaves."""
    settings = (*SMALL, "training.sums=masked_resilient", "federation.num_clients=4")
    with started(tmp_path, *settings) as process:
        for line in process.stdout:
            print(line, end="")
            if line.startswith("round 1, share_secrets: 4 replies"):
                named = f"--data={tmp_path / 'nodes' / '1'}"
                subprocess.run(["pkill", "-KILL", "-f", "--", named], check=True)
    assert process.returncode == 1  # its own simulation has all clients
    lines = list(map(json.loads, (tmp_path / "run" / "stages.jsonl").read_text().splitlines()))
    lost = {(line["round"], line["stage"]): line["why"] for line in lines if line.get("why")}
    assert lost.keys() == {(1, "upload ended"), (2, "update ended")}
    assert all(why.keys() == {"1"} for why in lost.values())
    leaving = (*settings, "training.presence=1@upload", "execution.plots=false")
    with started(tmp_path / "without", *leaving, command=("launch.run",)) as process:
        print(process.communicate(timeout=300)[0])
    assert process.returncode == 0
    found = trial.compare(tmp_path / "run", tmp_path / "without", "fedavg")
    assert found.num_arrays > 2
    assert (found.largest, found.labels) == (0, 0)
