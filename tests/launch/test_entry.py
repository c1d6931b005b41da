"""What entries do around their work: help, pipes, encodings, commands that are installed."""

import io
import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from absl import app, logging
from absl.testing import flagsaver
from invoking import called as in_process

from jaxfed.config import file as config_file
from jaxfed.experiment.run.progress import RunProgress
from launch import entry

ROOT = Path(__file__).parents[2]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


app.define_help_flags()  # here, because flagsaver takes back what is defined within


def status_of(main, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["run", *arguments])
    with flagsaver.flagsaver(), pytest.raises(SystemExit) as caught:
        entry.start(main)
    return caught.value.code or 0


@pytest.mark.parametrize("flag", ["--help", "--helpshort", "--helpfull"])
def test_help_is_no_mistake(flag, monkeypatch, capsys):
    assert status_of(lambda *_: 1, monkeypatch, flag) == 0
    assert "--[no]help" in capsys.readouterr().out or flag != "--helpfull"


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
        lambda *_: print("results", flush=True),
        lambda *_: RunProgress({"num_repeats": 1, "rounds": 1, "baselines": ()}).say("results"),
    ],
    ids=["buffered", "at once", "progress"],
)
def test_a_reader_who_has_gone_is_no_bug(work, monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)  # as `| true` leaves it
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert status_of(work, monkeypatch) == 141


@pytest.mark.parametrize("write_through", [False, True], ids=["buffered", "at once"])
def test_help_for_a_reader_who_has_gone_is_no_bug(monkeypatch, write_through):
    reading, writing = os.pipe()
    os.close(reading)
    raw = io.FileIO(writing, "w") if write_through else open(writing, "wb")  # noqa: SIM115
    with io.TextIOWrapper(raw, write_through=write_through) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert status_of(lambda *_: 1, monkeypatch, "--help") == 141


def test_another_broken_pipe_is_a_bug(monkeypatch):
    def main(*_):
        raise BrokenPipeError("of a worker")

    monkeypatch.setattr(sys, "argv", ["run"])
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "w") as stream, flagsaver.flagsaver():
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(BrokenPipeError):
            entry.start(main)


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


@pytest.mark.parametrize("script", sorted(OF_THE_REPOSITORY))
def test_commands_that_measure_need_the_repository(script, tmp_path):
    done = called(script, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"jaxfed: {script} needs the repository")
    assert done.stderr.endswith(f"python -m launch.{script.removeprefix('jaxfed-')}\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("path", ["ml_collections_configs/xclp_digits.py", "xclp_digits.py"])
def test_configs_are_found_from_any_folder(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert config_file.load(f"{path}:smoke").num_repeats == 2
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text("x = 1\n")  # one's own goes first
    with pytest.raises(ValueError, match="defines no get_config"):
        config_file.load(path)


@pytest.mark.parametrize(
    ("name", "arguments", "key"),
    [
        ("costs", ["--config=ml_collections_configs/xclp_digits.py", "--out=LONG"], "--out"),
        ("bench", ["--out=LONG"], "--out"),
        ("bounds", ["--out=LONG"], "--out"),
        ("growth", ["LONG"], "FILE"),
    ],
)
def test_a_name_too_long_is_a_mistake(name, arguments, key):
    long = "a" * 300
    given = [argument.replace("LONG", long) for argument in arguments]
    done = in_process(import_module(f"launch.{name}").main, *given)
    assert done == (2, "", f"jaxfed: {key}='{long}': File name too long\n")
