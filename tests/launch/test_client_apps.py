"""The process that forks ClientApps: Flower's program runs in a fork, and by itself without the process."""

import os
import subprocess
import sys
import time

import pytest
from invoking import ROOT

pytest.importorskip("flwr", reason="pip install -r requirements-flower.txt")


def test_flowers_program_is_forked_and_started_as_usual_without_the_process(tmp_path):
    program = tmp_path / "flwr-clientapp"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command = [sys.executable, "-m", "launch.client_apps", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, **pipes) as apps:
        while not os.access(program, os.X_OK):
            assert apps.poll() is None
            time.sleep(0.1)
        handed_over = subprocess.run([program, "--help"], **pipes, check=True)
        assert handed_over.stdout == ""
        assert apps.stdout.readline().startswith("usage: flwr-clientapp")
        apps.kill()
    by_itself = subprocess.run([program, "--help"], **pipes, check=True)
    assert by_itself.stdout.startswith("usage: flwr-clientapp")
