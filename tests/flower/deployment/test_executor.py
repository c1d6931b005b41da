"""A fork server: programs run in processes of their own, and end with it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxfed.flower.deployment import executor, waits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux alone")

STARTER = """
import json, os, sys, time
sys.path[:0] = {path!r}
from jaxfed.flower.deployment import executor
executor._PROGRAMS["flwr-clientapp"] = "a_program"
server = executor.ForkServer(["json", "a_program"])
start = executor.InPlaceOfSubprocess(server, executor.waits.Waits(1.0))
for number in range(3):
    start.Popen(["flwr-clientapp", "--number", str(number), "--parent-pid", str(os.getpid())])
start.Popen([sys.executable, "-c", "print('another program')"])
print("server", server.pid, flush=True)
time.sleep(2)
"""
PROGRAM = """
import os, sys
imported_by = os.getpid()
def flwr_clientapp():
    line = " ".join([*sys.argv, "in", str(os.getpid()), "imported by", str(imported_by)])
    os.write(1, f"{line}\\n".encode())  # at once: others write, too
    sys.exit(3)
"""


def is_running(number):
    """True unless the process has ended, or waits for its parent to read its status."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_each_command_is_a_fork_of_one_process(tmp_path, monkeypatch):
    (tmp_path / "a_program.py").write_text(PROGRAM)
    monkeypatch.setattr(waits, "wait_for_message", lambda: None)
    starter = STARTER.format(path=[str(tmp_path), *sys.path])
    starter = starter.replace(
        "server =", "executor.waits.wait_for_message = lambda: None\nserver ="
    )
    done = subprocess.run(
        [sys.executable, "-c", starter], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    server = next(line.split()[1] for line in lines if line.startswith("server"))
    assert "another program" in lines
    programs = sorted(line.split() for line in lines if line.startswith("flwr-clientapp"))
    assert [words[2] for words in programs] == ["0", "1", "2"]
    assert {words[4] for words in programs} == {server}  # with the one that started them they end
    assert len({words[6] for words in programs} | {server}) == 4
    assert {words[-1] for words in programs} == {server}
    until = time.monotonic() + 60
    while is_running(server):  # it ends with its starter
        assert time.monotonic() < until
        time.sleep(0.05)


LEARNING = """
import os, sys
def flwr_clientapp():
    known = [name in sys.modules for name in ("scipy.constants", "jaxfed.errors", "wave")]
    if known[0]:
        open("learned", "w").close()
    import wave, scipy.constants, jaxfed.errors
    os.write(1, f"program {sys.argv[2]} {known}\\n".encode())
"""


@pytest.mark.slow
def test_a_message_has_ready_what_an_earlier_one_imported(tmp_path):
    (tmp_path / "a_program.py").write_text(LEARNING)
    starter = STARTER.format(path=[str(tmp_path), *sys.path])
    starter = starter.replace(
        "server =", "executor.waits.wait_for_message = lambda: None\nserver ="
    ).replace(
        "range(3):", "range(20):\n    if os.path.exists('learned'): break\n    time.sleep(1.5)"
    )
    command = [sys.executable, "-c", starter]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    found = [line for line in done.stdout.splitlines() if line.startswith("program")]
    # Modules of other packages, as wave, may start threads: each message imports its own.
    assert "program 0 [False, False, False]" in found
    assert {line.partition("[")[2] for line in found} == {
        "False, False, False]",
        "True, True, False]",
    }


FORKED = """
import contextlib, os, pkgutil
import jaxfed
import numpy as np
from jax._src import xla_bridge
for found in pkgutil.walk_packages(jaxfed.__path__, "jaxfed."):
    if "jaxfed_app" not in found.name and not found.name.endswith("__main__"):
        with contextlib.suppress(ImportError):  # of extras
            __import__(found.name)
from sklearn.ensemble import HistGradientBoostingClassifier
assert not xla_bridge.backends_are_initialized()
child = os.fork()
if not child:
    x = np.random.default_rng(0).normal(size=(2000, 8))
    HistGradientBoostingClassifier(max_iter=3).fit(x, x[:, 0] > 0)
    assert len(np.linalg.svd(x[:500] @ x[:500].T)) == 3
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
def test_forks_compute_after_imports_that_are_learned():
    """No import starts a device; OpenBLAS and OpenMP work in a fork, as their threads start again there."""
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["7"]


def test_a_script_in_place_of_flowers_program(tmp_path):
    executor.write_script(tmp_path / "bin", "supernode")
    script = tmp_path / "bin" / "flower-superexec"
    assert os.access(script, os.X_OK)
    assert " -m jaxfed.flower.deployment.executor supernode " in script.read_text()


def test_waits_grow_with_the_time_since_the_last_message():
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    node = waits.Waits(3.0, busy_below=1.0, clock=lambda: now[0], sleep=sleep)
    while now[0] < 100:
        node.sleep(3)
    assert slept[0] == 0.1
    assert slept == sorted(slept)
    assert slept[-1] == 3.0
    slept.clear()
    node.sleep(0.5)  # it waits for its client's reply
    node.sleep(3)
    assert slept == [0.05, 0.1]
    executor_ = waits.Waits(1.0, clock=lambda: now[0], sleep=slept.append)
    now[0] += 100
    executor_.sleep(0.1)
    assert slept[-1] == 1.0
    executor_.message()
    executor_.sleep(0.1)
    assert slept[-1] == 0.1
