"""`launch.accelerator`: what its pieces measure, on next to nothing; what is done, stopped, refused."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial

import jax
import pytest
from absl import flags
from absl.testing import flagsaver

from benchmarks import inputs, on_device
from benchmarks.on_device import PIECES, contests, joint_graph
from benchmarks.on_device.piece import Piece
from benchmarks.timing import contest
from jaxfed.config import check
from jaxfed.config import file as config_file
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


def test_the_joint_graph_says_that_its_points_are_synthetic(monkeypatch):
    found = json.loads(json.dumps(PIECES["joint_graph"].measure(True, {"bytes": 1e12})))
    assert found["is_synthetic"]
    assert found["points"].startswith("300 synthetic ones, 5 classes")
    assert found["accuracy_of_synthetic_labels"] > 0.25  # of five classes
    assert (found["errors"], found["converged"]) == (0, True)
    stages = [row["stage"] for row in found["stages"]]
    assert stages == ["codes", "neighbors", "graph", "propagation"]
    assert 0 < found["stages"][-1]["share_of_limit"]["bytes"] < 1
    monkeypatch.setattr(joint_graph, "TOLERANCE", 1e-12)
    found = PIECES["joint_graph"].measure(True, {})
    assert (found["errors"], found["converged"]) == (1, False)


@pytest.mark.parametrize("small", [False, True])
def test_commands_are_experiments_that_there_are(tmp_path, small):
    commands = {
        name: piece.command(tmp_path, small) for name, piece in PIECES.items() if piece.command
    }
    assert len(commands) == 3 + 4 + 5 + 3  # tests, and cells of three papers
    for name, command in commands.items():
        assert command[:2] == [sys.executable, "-m"]
        if name.startswith("tests_"):
            assert command[2:6] == ["pytest", "-q", "-m", "gpu"]
            continue
        spec, workdir, *overrides = command[3:]
        assert workdir == f"--workdir={tmp_path / name}"
        settings = [
            text.removeprefix("--config.")
            for text in overrides
            if "initial_model" not in text  # which is not there yet
        ]
        check.check(config_file.load(spec.removeprefix("--config="), settings))
    second = " ".join(commands["xclp_table_4_pseudo_labels"])
    assert small or f"{tmp_path}/xclp_table_4_labeled_only/states/fedavg-{{repeat}}" in second


def test_what_tests_have_come_to(tmp_path):
    case = '<testcase classname="a" name="{}">{}</testcase>'.format
    cases = [case("good", ""), case("bad", "<failure/>"), case("left", "<skipped/>")]
    cases += [case("ended", "<error/>")]  # a fixture's mistake, or a process that died
    result = partial(PIECES["tests_kernels"].result, tmp_path, False)
    report = tmp_path / "tests_kernels.xml"
    report.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    assert result() == {"ran": 3, "skipped": 1, "failed": ["a.bad", "a.ended"], "errors": 2}
    report.write_text("<testsuites/>")
    assert result()["errors"] == 1  # nothing has been tested


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


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"[]", b"{}", b'{"piece": "b", "small": true, "errors": 0, "text": "y"}'],
)
def test_a_damaged_file_or_anothers_is_none(pieces, tmp_path, content):
    pieces(writing("limits"), writing("a"))
    for name in ("limits", "a"):
        (tmp_path / f"{name}.json").write_bytes(content)
    assert run(tmp_path) == 0
    assert json.loads((tmp_path / "a.json").read_text())["text"] == "x"


def test_what_fails_is_told_and_the_rest_is_done(pieces, tmp_path, capsys):
    pieces(writing("limits"), python("raise SystemExit(3)", "a"), writing("b"))
    assert run(tmp_path) == 1
    assert (tmp_path / "b.json").exists()
    assert "a: has failed, exit status 3" in capsys.readouterr().out
    pieces(writing("limits"), writing("a"), writing("b"))
    assert run(tmp_path) == 0
    assert (tmp_path / "b.txt").read_text() == "x"
    recorded = json.loads((tmp_path / "a.json").read_text())
    (tmp_path / "a.json").write_text(json.dumps({**recorded, "errors": 2}))
    assert run(tmp_path) == 1
    assert "a: has failed in part" in capsys.readouterr().out


WRITES = "open('{}.txt', 'w').write('x'); import sys; "


@pytest.mark.parametrize(
    ("name", "code", "is_recorded", "said"),
    [
        ("a", WRITES + "sys.exit(3)", False, "a: has failed, exit status 3"),
        ("a", "pass", False, "a: has failed, exit status 1"),  # nothing that can be read
        ("tests_a", WRITES + "sys.exit(1)", True, "tests_a: done"),  # the report says what failed
        ("tests_a", WRITES + "os.kill(os.getpid(), 15)", False, "tests_a is stopped; the same"),
    ],
    ids=["failed", "nothing there", "tests that fail", "tests that are stopped"],
)
def test_a_result_counts_where_its_command_has_ended(
    pieces, tmp_path, capsys, name, code, is_recorded, said
):
    pieces(writing("limits"), python(code.format(name), name))
    run(tmp_path)
    assert (tmp_path / f"{name}.json").exists() == is_recorded
    assert said in capsys.readouterr().out


def test_a_piece_takes_memory_as_it_needs_it(pieces, tmp_path, monkeypatch):
    code = "open('{}.txt', 'w').write(os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'])"
    pieces(*(python(code.format(name), name) for name in ("limits", "a")))
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    assert run(tmp_path, pieces=["limits"]) == 0
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "true")  # what a user has asked for stands
    assert run(tmp_path) == 0
    texts = [(tmp_path / f"{name}.txt").read_text() for name in ("limits", "a")]
    assert texts == ["false", "true"]


def test_no_piece_is_begun_that_would_not_fit(pieces, tmp_path, capsys):
    pieces(writing("limits"), writing("a", seconds=100), writing("b"))
    assert run(tmp_path, limit_s=15.0) == 0
    assert sorted(tmp_path.glob("*.json")) == [tmp_path / "limits.json"]
    assert "2 pieces are left; the same command goes on with a" in capsys.readouterr().out
    with pytest.raises(UsageError, match="--limit_s=15: a wants 20 seconds"):
        run(tmp_path, limit_s=15.0)
    pieces(writing("limits"), python("import time; time.sleep(60)", "a"), writing("b"))
    assert run(tmp_path, limit_s=1.0) == 0
    assert "a is stopped; the same command goes on with it" in capsys.readouterr().out
    assert not (tmp_path / "b.json").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"workdir": None}, "--workdir=DIR is missing"),
        ({"pieces": ["limits", "c"]}, "--pieces=c: choose one of limits, a"),
        ({"limit_s": float("nan")}, "--limit_s=nan: use numbers from 0 on"),
        ({"measure": "c"}, "--measure=c: choose one of b"),
        ({"measure": "a"}, "--measure=a: choose one of b"),
        ({"small": False}, "this is a CPU: --small tries all pieces on next to nothing"),
    ],
)
def test_mistakes_are_named(pieces, tmp_path, values, message):
    pieces(writing("limits"), writing("a"), Piece("b", 0, "about b", measure=lambda *_: {}))
    with flagsaver.flagsaver(**{"workdir": str(tmp_path), **values}):
        with pytest.raises(UsageError, match=message):
            accelerator.main([], [], None)
        with pytest.raises(UsageError, match="--this: no such argument"):
            accelerator.main(["--this"], [], None)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="its figures would be another device's")
def test_figures_of_two_devices_do_not_mix(pieces, tmp_path):
    environment = {"device": "NVIDIA H200"}
    recorded = {
        "piece": "limits",
        "small": True,
        "errors": 0,
        "environment": environment,
        "limits": {},
    }
    (tmp_path / "limits.json").write_text(json.dumps(recorded))
    with (
        flagsaver.flagsaver(workdir=str(tmp_path), small=True, measure="limits"),
        pytest.raises(UsageError, match="has NVIDIA H200; this is "),
    ):
        accelerator.main([], [], None)


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


def test_nothing_is_measured_beside_a_piece_left_behind(pieces, tmp_path):
    """Whose command was killed; while that lives, too."""
    pieces(writing("limits"))
    command = [sys.executable, "-c", WAITING, f"--workdir={tmp_path}", "--small"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        piece = int(process.stdout.readline())
        try:
            for _ in range(2):
                with pytest.raises(UsageError, match=r"^--workdir=.*: another process is at work"):
                    run(tmp_path)
                process.kill()
                process.wait()
            assert not list(tmp_path.glob("*.json"))
        finally:
            os.kill(piece, signal.SIGKILL)
        assert process.stdout.read() == b""  # the piece's end of it has gone
    assert run(tmp_path) == 0
