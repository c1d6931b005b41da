"""`launch.accelerator`: what its pieces measure, on next to nothing; what is done, stopped, refused."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from absl import flags
from absl.testing import flagsaver

from benchmarks import inputs, on_device
from benchmarks.on_device import PIECES, contests
from benchmarks.on_device.piece import Piece
from benchmarks.timing import contest
from jaxfed.errors import UsageError
from jaxfed.kernels import hamming, knn
from launch import accelerator


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(contest, "SHORTEST_SAMPLE", 0.001)
    monkeypatch.setattr(contest, "REST", 0)


# ---- what is measured ----


@pytest.mark.usefixtures("short")
def test_wrong_neighbors_and_what_raises_are_errors_and_the_rest_goes_on(monkeypatch, capsys):
    search = knn.hamming_knn

    def damaged(codes, k, *, backend):
        if backend == "matmul":
            raise NotImplementedError("no such type\nand more")
        indices, distances = search(codes, k)
        return indices, distances + int(backend == "popcount")

    expected = search(inputs.codes(contests.SMALL_POINTS, contests.SMALL_BITS, "features"), 10)
    monkeypatch.setattr(contests, "_expected", lambda codes: expected)
    monkeypatch.setattr(knn, "hamming_knn", damaged)
    found = PIECES["neighbors"].measure(True, {"popcount_bits": 1e12})
    assert found["errors"] == 2
    rows = {row["task"].split()[-1]: row for row in found["contests"]}
    assert rows["popcount"]["figures"]["neighbors unlike matmul's"]["measured"] == 2000
    assert rows["matmul"]["error"] == "NotImplementedError: no such type"
    assert list(rows) == list(hamming.BACKENDS)
    assert rows["auto"]["figures"]["neighbors unlike matmul's"]["measured"] == 0
    assert 0 < rows["auto"]["share_of_machine_limit"] < 1
    assert "failed: NotImplementedError: no such type" in capsys.readouterr().out


# ---- what is done ----


def python(code, name, seconds=0.0):
    """A piece that runs some code in its folder."""

    def result(out, small):
        return {"text": (out / f"{name}.txt").read_text(), "errors": 0}

    def command(out, small):
        return [sys.executable, "-c", f"import os; os.chdir({str(out)!r}); {code}"]

    return Piece(name, seconds, f"about {name}", command=command, result=result)


def writing(name, text="x", seconds=0.0):
    return python(f"open('{name}.txt', 'a').write('{text}')", name, seconds)


@pytest.fixture
def pieces(monkeypatch):
    flags.FLAGS.mark_as_parsed()

    def chosen(*pieces):
        monkeypatch.setattr(on_device, "PIECES", {piece.name: piece for piece in pieces})

    return chosen


def run(workdir, **values):
    with flagsaver.flagsaver(workdir=str(workdir), **{"small": True, **values}):
        return accelerator.main([], [], None)


def test_what_is_done_is_not_done_again(pieces, tmp_path, capsys):
    pieces(writing("limits"), writing("a"), writing("b"))
    assert run(tmp_path / "there", pieces=["b"]) == 0
    assert {path.stem for path in (tmp_path / "there").glob("*.json")} == {"limits", "b"}
    assert run(tmp_path / "there") == 0
    assert run(tmp_path / "there") == 0
    for name in ("limits", "a", "b"):
        recorded = json.loads((tmp_path / "there" / f"{name}.json").read_text())
        assert (recorded["text"], recorded["piece"], recorded["small"]) == ("x", name, True)
    said = capsys.readouterr().out
    assert said.count("a: about a") == 1
    assert said.splitlines()[-3:] == ["limits: done", "a: done", "b: done"]
    with pytest.raises(UsageError, match=r"--small=False: .*limits.json is a small one; choose"):
        run(tmp_path / "there", small=False)


WRITES = "open('{}.txt', 'w').write('x'); import sys; "


@pytest.mark.parametrize(
    ("name", "code", "is_recorded", "said"),
    [
        ("a", WRITES + "sys.exit(3)", False, "a: has failed, exit status 3"),
        ("tests_a", WRITES + "sys.exit(1)", True, "tests_a: done"),  # the report says what failed
        ("tests_a", WRITES + "os.kill(os.getpid(), 15)", False, "tests_a is stopped; the same"),
    ],
    ids=["failed", "tests that fail", "tests that are stopped"],
)
def test_a_result_counts_where_its_command_has_ended(
    pieces, tmp_path, capsys, name, code, is_recorded, said
):
    pieces(writing("limits"), python(code.format(name), name))
    run(tmp_path)
    assert (tmp_path / f"{name}.json").exists() == is_recorded
    assert said in capsys.readouterr().out


@pytest.mark.slow
def test_everything_small(tmp_path):
    command = [sys.executable, "-m", "launch.accelerator", f"--workdir={tmp_path}", "--small"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert {path.stem for path in tmp_path.glob("*.json")} == set(PIECES)


WAITING = (  # without what measures, which takes seconds to import
    "import sys; from unittest import mock; "
    "sys.modules['benchmarks.on_device.contests'] = mock.MagicMock(); "
    "sys.modules['benchmarks.on_device.joint_graph'] = mock.MagicMock(); "
    "from benchmarks import on_device; from benchmarks.on_device.piece import Piece; "
    "from launch import accelerator, entry; "
    "waiting = [sys.executable, '-c', 'import time, os; print(os.getpid(), flush=True);"
    "time.sleep(60)']; on_device.PIECES = {'limits': Piece('limits', 0, 'waiting', "
    "command=lambda *_: waiting)}; entry.start(accelerator.main)"
)


def test_a_signal_ends_the_piece_too(tmp_path):
    command = [sys.executable, "-c", WAITING, f"--workdir={tmp_path}", "--small"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"limits: waiting, next to nothing of it\n"
        piece = int(process.stdout.readline())
        time.sleep(0.5)  # the command, too, knows by then that the piece has started
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate()
    assert process.returncode == 143
    assert error == b"jaxfed: stopped by SIGTERM; the same command continues\n"
    with pytest.raises(ProcessLookupError):
        os.kill(piece, 0)
