"""Flower's commands as processes: they end with who started them, and their lines are for users."""

import os
import subprocess
import sys
import time

import pytest

from jaxfed.flower.deployment import programs
from jaxfed.flower.deployment.programs import Address, DeploymentError

PYTHON = sys.executable
SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]


def lines_of(*lines):
    said = []
    programs.pass_on(iter(lines), said.append)
    return said


def test_lines_of_flower_are_left_out():
    assert not lines_of(
        "\x1b[92mINFO \x1b[0m:      Start `flwr-serverapp` process", "", "Starting logstream for"
    )
    assert lines_of(
        "Successfully installed jaxfed-app to /x.",
        "\x1b[93mWARNING \x1b[0m:   late",
        "WARNING:absl:round 2: late\n",
        "round 1  \x1b[1mloss\x1b[0m 0.5",
    ) == ["WARNING :   late", "WARNING: round 2: late", "round 1  loss 0.5"]


def test_a_start_begins_without_what_a_kill_left(tmp_path):
    """Flower takes half an app for whole, and goes on neither from half a database nor with its runs."""
    (tmp_path / "home" / "apps" / "half").mkdir(parents=True)
    found = programs.environment(tmp_path / "home")
    assert not (tmp_path / "home" / "apps").exists()
    assert found["FLWR_HOME"] == str(tmp_path / "home")
    assert (found["FLWR_TELEMETRY_ENABLED"], found["FLWR_DISABLE_UPDATE_CHECK"]) == ("0", "1")


def test_a_node_has_its_worker_and_its_key(tmp_path):
    found = programs.node_command(
        "h:1", 'worker="/tmp/w"', root=tmp_path / "ca", key=tmp_path / "k"
    )
    assert found[:3] == ["flower-supernode", "--superlink", "h:1"]
    assert found[5:7] == ["--node-config", 'worker="/tmp/w"']
    assert found[-4::2] == ["--root-certificates", "--auth-supernode-private-key"]


def test_a_process_and_its_children_end(tmp_path):
    child = f"import subprocess, time; print(subprocess.Popen({SLEEP}).pid, flush=True); time.sleep(600)"
    log = tmp_path / "logs" / "x.log"
    process = programs.start([sys.executable, "-S", "-c", child], dict(os.environ), log)
    while not log.read_text():
        time.sleep(0.02)
    assert (log.stat().st_mode & 0o077, log.parent.stat().st_mode & 0o077) == (0, 0)
    programs.end(process)
    assert process.returncode == -15
    assert is_gone(int(log.read_text()))


HOLDER = """
import os, sys, time
sys.path[:0] = {path!r}
from jaxfed.flower.deployment import programs
print(programs.start({command!r}, dict(os.environ)).pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems leave it")
def test_a_process_ends_with_its_starter():
    code = HOLDER.format(path=sys.path, command=SLEEP)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as holder:
        started = int(holder.stdout.readline())
        time.sleep(0.3)  # until it is what it became
        os.kill(started, 0)
        holder.kill()
    assert is_gone(started)


def is_gone(pid):
    """Within a few seconds; a zombie that nobody waits for is gone."""
    for _ in range(200):
        done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
        if done.stdout.strip()[:1] in ("", "Z"):
            return True
        time.sleep(0.02)
    return False


def test_a_superlink_that_ends_is_one_line(tmp_path, monkeypatch):
    programs_folder = tmp_path / "bin"
    programs_folder.mkdir()
    script = programs_folder / "flower-superlink"
    script.write_text("#!/bin/sh\necho Error: no link today\nexit 1\n")
    script.chmod(0o700)
    monkeypatch.setattr(programs.sys, "executable", str(programs_folder / "python"))
    (programs_folder / "python").symlink_to(PYTHON)
    said, address = [], Address("127.0.0.1", programs.free_port(), tmp_path / "keys")
    with pytest.raises(DeploymentError, match="flower-superlink: Error: no link today"):
        programs.run_app(tmp_path / "n", address, [], tmp_path, {}, say=said.append)
    assert said[0] == f"$ export FLWR_HOME={tmp_path / 'n' / 'flower'}"
    assert said[1].startswith("$ flower-superlink --host=127.0.0.1 --port=")
    config = (tmp_path / "n" / "flower" / "config.toml").read_text()
    assert "[superlink.jaxfed]" in config
    assert f'root-certificates = "{tmp_path / "keys" / "ca.crt"}"' in config
