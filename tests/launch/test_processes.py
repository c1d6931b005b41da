"""Several processes of one run, on this machine."""

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest
from invoking import DIGITS, ROOT, invoke

from jaxfed.experiment.store.records import read_run

TALK = """
import sys
import numpy as np
from jaxfed.errors import UsageError
from jaxfed.experiment.store.workdir import open_workdir
from jaxfed.experiment.run.loop import agree
from jaxfed.experiment.store.workdir import open_for_all
from jaxfed.federation.execution import client_map, jitted
from jaxfed.federation.execution import HERE
from jaxfed.host.parallel import processes
from jaxfed.host.interruption import Interrupted, Interruption
from jaxfed.kernels import knn
from jaxfed.kernels.devices import everywhere

address, number, place = sys.argv[1], int(sys.argv[2]), sys.argv[3]
processes.connect(address, 2, number)
assert processes.are_several() and processes.is_first() == (number == 0)
assert processes.gather_texts("x" * number + "é") == ["é", "xé"]

def problem(check, *arguments):
    try:
        check(*arguments)
    except UsageError as error:
        return str(error)

def block(fails):
    with processes.together():
        if fails:
            raise UsageError("no such thing")

assert problem(processes.check_same, {"seed": "1"}) is None
other = problem(processes.check_same, {"same": "0", "seed": str(number)})
assert other == "process 1 has seed=1, process 0 0"
other = problem(processes.check_same, {} if number else {"seed": "1"})
assert other == "process 1 has seed=absent, process 0 1"
assert problem(block, False) is None
assert problem(block, number == 1) == ("no such thing" if number == 1 else "process 1: no such thing")

def without_words():
    try:
        with processes.together():
            if number == 1:
                raise KeyError
    except KeyError:
        raise UsageError("its own")

assert problem(without_words) == ("its own" if number == 1 else "process 1: KeyError")

# All have the results of common work.
bits = np.random.default_rng(0).integers(0, 16, (21, 1), dtype=np.uint32)
valid = np.ones(21, bool)
found = everywhere(knn.hamming_knn(HERE.spread(bits), 4, valid=HERE.spread(valid, fill=False)))
distances = np.bitwise_count(bits ^ bits[:, 0]).astype(int) + 99 * np.eye(21, dtype=int)
nearest = np.argsort(distances, axis=1, kind="stable")[:, :4]
for one, other in zip(found, (nearest, np.take_along_axis(distances, nearest, 1)), strict=True):
    np.testing.assert_array_equal(one[:21], other)
double = client_map(lambda factor, x: factor * x, strategy="shard_map")
four = np.arange(4, dtype=np.float32)
np.testing.assert_array_equal(jitted(double)(np.float32(2), four), [0, 2, 4, 6])
# Of what is made of clients' outputs inside, no more is sent than that.
total = jitted(lambda factor, x: double(factor, x).sum())
assert float(total(np.float32(2), four)) == 12
sent = total.lower(np.float32(2), four).compile().as_text()
assert "all-reduce" in sent and "all-gather" not in sent

# The first one's workdir is where all go on from; the other writes elsewhere.
config = {"algorithm": "one", "dataset": {}, "num_repeats": 1}
with open_for_all(place, config) as workdir:
    assert (str(workdir.path) == place) == (number == 0)
    assert workdir.read_metrics() == [{"round": 1}]
    workdir.append_metrics({"round": 2})
refused = problem(lambda: open_for_all(place, {**config, "num_repeats": 2}).__enter__())
assert "made by another config" in refused and refused.startswith("process 0: ") == (number == 1)

# A signal for one is a signal for all, after the round; other numbers are told.
with Interruption() as interruption:
    agree(interruption, {"round": 1, "seconds": float(number), "loss": 0.5, "gap": float("nan")})
    interruption.pending = 15 if number == 1 else None
    assert not interruption.is_pending
    with interruption.deferred():
        pass
    try:
        with interruption.deferred():
            agree(interruption, {"round": 2})
    except Interrupted as error:
        assert error.exit_status == 143
    else:
        raise AssertionError("nobody heard")
text = problem(agree, interruption, {"round": 3, "loss": float(number)})
assert text == "process 1 has round 3: loss=1.0, process 0 0.0"
print("done", number)
"""


TOO_LONG = 240.0  # seconds: processes wait for each other for ever


def free_address():
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return f"localhost:{listening.getsockname()[1]}"


def started(stack, *commands):
    """Processes of one device each, which end with the stack."""
    running = []
    for command in commands:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env={**os.environ, "XLA_FLAGS": "", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        running.append(process)
    return running


def outputs(running):
    return [(*process.communicate(timeout=TOO_LONG), process.returncode) for process in running]


def runs(workdirs, *arguments, config=f"--config={DIGITS}:smoke"):
    """Commands of two processes of one run."""
    address = free_address()
    return [
        [
            *("-m", "launch.run", config, f"--workdir={workdir}"),
            *(f"--coordinator={address}", "--num_processes=2", f"--process_id={number}"),
            *arguments,
        ]
        for number, workdir in enumerate(workdirs)
    ]


def test_what_processes_tell_each_other(tmp_path):
    workdir = tmp_path / "workdir"
    workdir.mkdir()
    config = {"algorithm": "one", "dataset": {}, "num_repeats": 1}
    (workdir / "config.json").write_text(json.dumps(config))
    (workdir / "metrics.jsonl").write_text('{"round": 1}\n')
    address = free_address()
    commands = [["-c", TALK, address, str(number), str(workdir)] for number in range(2)]
    with ExitStack() as stack:
        for number, (out, error, status) in enumerate(outputs(started(stack, *commands))):
            assert (status, out.splitlines()[-1:]) == (0, [f"done {number}"]), error
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    assert lines == ['{"round": 1}', '{"round": 2}']


@pytest.mark.slow
def test_two_processes_train_on_xclps_labels_as_one_does(tmp_path):
    """Labels of a graph over both processes, and networks of clients that each has half of."""
    both, alone, elsewhere = (tmp_path / name for name in ("both", "alone", "elsewhere"))
    arguments = [
        "--config=ml_collections_configs/fedavg_xclp.py:smoke",
        "--config.baselines=()",
        "--config.num_repeats=1",
        "--config.rounds=4",
        "--config.execution.compilation_cache=off",
    ]
    with ExitStack() as stack:
        for _, error, status in outputs(
            started(stack, *runs([both, elsewhere], *arguments[1:], config=arguments[0]))
        ):
            assert status == 0, error
    assert invoke([*arguments, f"--workdir={alone}"])[0] in (0, None)
    found, expected = read_run(both), read_run(alone)
    assert found.summary["environment"]["num_processes"] == 2
    assert found.summary["test_accuracy"] == pytest.approx(
        expected.summary["test_accuracy"], abs=0.02
    )


MISTAKES = {
    "--process_id=0: needs --coordinator=HOST:PORT": ["--process_id=0"],
    "--num_processes=2: needs --coordinator=HOST:PORT": ["--num_processes=2"],
    "--coordinator=a:1: ": ["--coordinator=a:1"],
    "--coordinator=auto: ": ["--coordinator=auto"],
}


@pytest.mark.parametrize(("message", "arguments"), MISTAKES.items(), ids=MISTAKES)
def test_flags_that_do_not_fit_are_named(message, arguments, tmp_path):
    place = tmp_path / "none"
    arguments = [f"--config={DIGITS}:smoke", f"--workdir={place}", *arguments]
    status, error = invoke(arguments)
    assert status == 2
    assert error.startswith(f"jaxfed: {message}")
    assert error.count("\n") == 1
    assert not place.exists()
