"""What entries do around their work: help, pipes, encodings, commands that are installed."""

import io
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from absl import app, logging
from absl.testing import flagsaver
from invoking import DIGITS, invoke
from small_tracking import stand_in

from jaxfed.config import file as config_file
from jaxfed.experiment.run.progress import RunProgress
from launch import entry, sweep

ROOT = Path(__file__).parents[2]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


app.define_help_flags()  # here, because flagsaver takes back what is defined within


def status_of(main, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["run", *arguments])
    with flagsaver.flagsaver(), pytest.raises(SystemExit) as caught:
        entry.start(main)
    return caught.value.code or 0


def test_a_warning_is_a_plain_line(monkeypatch):
    handler, stream = logging.get_absl_handler(), io.StringIO()
    monkeypatch.setattr(handler.python_handler, "stream", stream)
    formatter = handler.formatter
    try:
        assert status_of(lambda *_: logging.warning("%d gaps", 2), monkeypatch) == 0
    finally:
        handler.setFormatter(formatter)
    assert stream.getvalue() == "jaxfed: WARNING: 2 gaps\n"


@pytest.mark.parametrize(
    "work",
    [
        lambda *_: print("results"),  # written at the end only
        lambda *_: RunProgress({"num_repeats": 1, "rounds": 1, "baselines": ()}).say("results"),
    ],
    ids=["buffered", "progress"],
)
def test_a_reader_who_has_gone_is_no_bug(work, monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)  # as `| true` leaves it
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert status_of(work, monkeypatch) == 141


def test_what_an_encoding_lacks_is_spelled_out(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert status_of(lambda *_: print("Universität ± \udcff"), monkeypatch) == 0
    assert stream.buffer.getvalue() == rb"Universit\xe4t \xb1 \udcff" + b"\n"


OF_THE_REPOSITORY = {"jaxfed-bench", "jaxfed-growth", "jaxfed-accelerator"}


def called(script, tmp_path):
    """The script with --help as installed, but for its module: `launch` in place of `jaxfed.launch`."""
    module, function = SCRIPTS[script].removeprefix("jaxfed.").split(":")
    program = f"import sys; sys.argv[0] = {script!r}; from {module} import {function}; {function}()"
    return subprocess.run(
        [sys.executable, "-c", program, "--help"],
        cwd=tmp_path,  # not the repository
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("script", sorted(SCRIPTS.keys() - OF_THE_REPOSITORY))
def test_installed_commands(script, tmp_path):
    done = called(script, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"python -m launch.{script.removeprefix('jaxfed-')} " in done.stdout


@pytest.mark.parametrize("path", ["ml_collections_configs/xclp_digits.py", "xclp_digits.py"])
def test_configs_are_found_from_any_folder(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert config_file.load(f"{path}:smoke").num_repeats == 2
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text("x = 1\n")  # one's own goes first
    with pytest.raises(ValueError, match="defines no get_config"):
        config_file.load(path)


SWEEP = (f"--config={DIGITS}:smoke", "--dry_run", "--sweep.xclp.alpha=0.5,0.9")


def test_a_sweep_tracks_every_point(tmp_path, monkeypatch):
    for name in ("wandb", "tensorboard"):
        stand_in(monkeypatch, name)
    shown = []
    monkeypatch.setattr("builtins.print", lambda *told, **how: shown.append(*told))
    given = [*SWEEP, f"--workdir={tmp_path / 's'}", "--tracker=wandb", "--tracker=tensorboard"]
    assert invoke(given, sweep.main) == (0, "")
    commands = [line for line in shown if "-m launch.run" in line]
    assert len(commands) == 2
    assert all("--tracker=wandb --tracker=tensorboard" in command for command in commands)
