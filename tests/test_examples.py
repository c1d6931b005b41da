"""The examples run as their docstrings say, and stay as short as they claim."""

import re
import runpy
import subprocess
import sys

import pytest
from invoking import ROOT, invoke

from jaxfed.config import file as config_file
from jaxfed.testing import MethodChecks

EXAMPLES = ROOT / "examples"


config_file.load_module(str(EXAMPLES / "own_method.py"))  # registers MOON


@pytest.mark.slow
class TestMoon(MethodChecks):
    method = "moon"


def test_moon_learns():
    TestMoon().test_learns_and_is_repeatable()


def run(*arguments):
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_own_arrays_and_network(capsys):
    runpy.run_module("examples.own_network", run_name="__main__")  # as `python -m` does
    accuracy = float(re.search(r"test accuracy ([\d.]+)", capsys.readouterr().out)[1])
    assert accuracy > 0.8
    body = (EXAMPLES / "own_network.py").read_text().split("def main")[1].split("if __name__")[0]
    assert len(body.strip().splitlines()) <= 15


@pytest.mark.slow
def test_own_method(tmp_path):
    config = "--config=examples/own_method.py:smoke"  # registers the method in a new process
    assert "results are in" in run("-m", "launch.run", config, f"--workdir={tmp_path / 'run'}")


@pytest.mark.slow
def test_own_data(tmp_path):
    arguments = ["--config=examples/own_data.py:smoke", f"--workdir={tmp_path / 'run'}"]
    assert invoke(arguments) == (0, "")
    assert (tmp_path / "run" / "summary.json").is_file()


@pytest.mark.slow
def test_clients_on_disk():
    out = run("-m", "examples.on_disk", "300", "20")
    assert float(re.search(r"test accuracy ([\d.]+)", out)[1]) > 0.9
    assert "examples on disk 0.01 GB" in out


@pytest.mark.slow
def test_a_walk_from_clients_to_plots():
    out = run("-m", "examples.walk")
    right, total = map(int, re.search(r"right on (\d+) of (\d+)", out).groups())
    assert right > 0.9 * total
    assert "algorithms.png" in out
