"""Whole runs by Flower's own processes, with TLS and keys: the simulation's results, and bytes as predicted.

The command runs in a process of its own, so that nothing of the tests' JAX settings reaches it.
"""

import json
import os
import subprocess
import sys

import pytest
from invoking import ROOT

from jaxfed.flower.deployment import comparison, output
from jaxfed.flower.messages.timings import PARTS, TRANSPORT

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


# Every Python process runs this first; in that of client 1 its examples cannot be read.
FAILING = """
import os
from pathlib import Path

if Path(os.environ.get("FLWR_HOME", "")).name == "node-1":
    import numpy

    load = numpy.load

    def failing(path, *arguments, **keywords):
        if "train" in str(path):
            raise RuntimeError(f"the SECRET {path} has a row 0.123456789")
        return load(path, *arguments, **keywords)

    numpy.load = failing
"""


def tried(place, *settings, status=(0,), **variables):
    """Lines of `launch.flower try`."""
    env = {name: v for name, v in os.environ.items() if not name.startswith(("XLA_", "JAX_"))}
    env |= variables
    command = [sys.executable, "-m", "launch.flower", "try", f"--config={CONFIG}"]
    command += [f"--workdir={place}", *(f"--config.{each}" for each in settings)]
    done = subprocess.run(
        command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    print(done.stdout, done.stderr)
    assert done.returncode in status
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", RUNS)
def test_processes_compute_what_the_simulation_does(tmp_path, name, record_property):
    settings, allowed, on_top = RUNS[name]
    said = tried(tmp_path, *SMALL, f"algorithm={name}", *settings)
    found = comparison.compare(tmp_path / "run", tmp_path / "simulation", name)
    assert found.num_arrays > 0
    assert found.largest <= allowed
    assert found.labels == 0 < found.num_labels
    lines = list(map(json.loads, (tmp_path / "run" / "stages.jsonl").read_text().splitlines()))
    ended = [line for line in lines if line["stage"].endswith(" ended")]
    assert all(line["replies"] == 3 for line in ended)
    for part in (*PARTS, TRANSPORT):
        assert all(0 <= line[f"{part}_mean"] <= line[f"{part}_max"] for line in ended)
    assert sum("3 replies in" in line for line in said) == len(ended)
    assert not any("\x1b" in line or "INFO" in line for line in said)
    sent = output.traffic(tmp_path / "run", 3)
    record_property("bytes", sent)
    assert 0 <= sent.real[0] - sent.predicted[0] < on_top * len(ended)
    simulated = list(output._rounds(tmp_path / "simulation"))
    for way, predicted in zip(("upload_bytes", "download_bytes"), sent.predicted, strict=True):
        assert sum(each["communication"][way] for each in simulated) == 3 * predicted


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
    found = comparison.compare(tmp_path / "run", tmp_path / "simulation", name)
    assert found.num_arrays > 2
    assert found.largest <= allowed
    lines = list(map(json.loads, (tmp_path / "run" / "stages.jsonl").read_text().splitlines()))
    ended = {line["stage"]: line for line in lines if line["stage"].endswith(" ended")}
    assert {"join ended", "upload ended", "end ended"} <= ended.keys()
    assert all(line["replies"] == 3 for line in ended.values())


def test_of_an_error_of_a_client_only_the_class_leaves_it(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(FAILING)
    settings = (*SMALL, "deployment.wait_for_nodes=60.0", "deployment.retries=0")
    said = tried(tmp_path / "w", *settings, status=(1,), PYTHONPATH=str(tmp_path))
    assert any("its step failed: UsageError" in line for line in said)
    network = tmp_path / "w" / "network"
    files = [path for path in network.rglob("*") if path.is_file()]
    with_it = [path for path in files if b"SECRET" in path.read_bytes()]
    assert with_it == [network / "logs" / "node-1.log"]  # of the client itself
    assert "SECRET" not in "".join(said)
