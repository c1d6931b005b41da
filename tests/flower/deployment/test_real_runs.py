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
