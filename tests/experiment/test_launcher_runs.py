import functools
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from invoking import DIGITS, ROOT, Done, called, invoke

from jaxfed.experiment.store.workdir import is_finished, open_workdir
from launch import run

# launch.run with a method of many rounds, which ends its own process where it is told to.
DRIVER = """
import os, signal, sys, threading
from pathlib import Path
import jax
from jaxfed.algorithms import ALGORITHMS
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import method
from jaxfed.host import checkpoint
from launch import entry, run

how, _, when = os.environ.get("STOP", "").partition("@")
BESIDE = "while_writing", "after_writing"  # the run goes on meanwhile
write, replace = Checkpoints.write, Path.replace
played, has_gone_on = [], threading.Event()

def end(signum):
    os.kill(os.getpid(), signum)

def replace_two_rounds_later(*paths):
    if threading.current_thread() is not threading.main_thread():
        assert has_gone_on.wait(timeout=100), "the run has waited for its writer"
        if how == "while_writing":
            end(signal.SIGKILL)
    replace(*paths)

def stopping_write(self, step, *rest):
    if str(step) == when and how == "before_save":
        end(signal.SIGKILL)
    if str(step) == when and how == "while_saving":
        Path.replace = lambda *paths: end(signal.SIGKILL)  # all is written but the name
    if str(step) == when and how in BESIDE:
        Path.replace = replace_two_rounds_later
    write(self, step, *rest)
    if str(step) == when and how in ("after_save", "after_writing"):
        end(signal.SIGKILL)

Checkpoints.write = stopping_write
if how in BESIDE:  # a save is due after every round
    checkpoint._MOST_LOST, checkpoint.LARGEST_SHARE = 0.0, 1e9

@method(takes=("num_classes",))
def drift(*, num_classes):
    def init(key, federation):
        return {"w": jax.random.normal(key, (3,)), "rounds": 0}

    def round(state, cohort, key):
        played.append(state["rounds"])
        if how in BESIDE and len(played) == 3:
            has_gone_on.set()
            signal.pause()
        if str(state["rounds"] + 1) == when and how in ("SIGINT", "SIGTERM"):
            end(getattr(signal, how))
        w = state["w"] + jax.random.normal(key, (3,))
        return {"w": w, "rounds": state["rounds"] + 1}, {"mean": float(w.mean())}

    def evaluate(state, federation):
        return {"test_accuracy": float(jax.nn.sigmoid(state["w"][0]))}

    return FederatedAlgorithm(init, round, evaluate)

ALGORITHMS["drift"] = drift
try:
    entry.start(run.main)
finally:
    unneeded = {"sklearn", "scipy.stats", "scipy.spatial", "pandas", "matplotlib"}
    print("imported", unneeded & {*sys.modules})
"""

DRIFT = """
from jaxfed.config.file import shipped

def get_config():
    config = shipped("xclp_digits").get_config()
    config.algorithm, config.baselines, config.execution.plots = "drift", (), False
    config.rounds, config.num_repeats, config.cohort_size = 6, 2, 3
    return config
"""

# Runs code in children of a process that has imported what takes each anew a second.
FORKS = f"""
import json, os, sys
from launch import run  # first, as in a launched process
import jaxfed.experiment.run.loop
from jaxfed.config import file
from jaxfed.config.check import check

check(file.load({DIGITS!r}))

for line in sys.stdin:
    code, arguments, variables, *outputs = json.loads(line)
    child = os.fork()
    if not child:
        for number, output in enumerate(outputs, 1):
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), number)
        os.environ.update(variables)
        sys.argv = ["launch", *arguments]
        exec(code)
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Done]]:
    """Run code with arguments and variables in a child of a process that has imported jaxfed."""
    place = tmp_path_factory.mktemp("outputs")
    command = [sys.executable, "-c", FORKS]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as forks:

        def run(code: str, *arguments: object, **variables: str) -> Done:
            outputs = [Path(tempfile.mkstemp(dir=place)[1]) for _ in range(2)]
            given = (code, [*map(str, arguments)], variables, *map(str, outputs))
            forks.stdin.write(json.dumps(given) + "\n")
            forks.stdin.flush()
            status = int(forks.stdout.readline())
            return Done(status, *(output.read_text() for output in outputs))

        yield run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the driver's config, its cache and its uninterrupted run."""
    return tmp_path_factory.mktemp("drift")


@pytest.fixture(scope="module")
def drift(forked: Callable[..., Done], place: Path) -> Callable[..., Done]:
    """Run the driver for 2 repeats of 6 rounds; `stop` says where the process ends itself."""
    config = place / "drift.py"
    config.write_text(DRIFT)

    def run(workdir: Path, stop: str = "", every: int = 1) -> Done:
        saving = f"--config.checkpoint_every={every}"
        arguments = [f"--config={config}", f"--workdir={workdir}", saving]
        return forked(DRIVER, *arguments, STOP=stop, JAXFED_CACHE=str(place / "cache"))

    return run


@pytest.fixture(scope="module")
def whole(drift: Callable[..., Done], place: Path) -> Done:
    """The uninterrupted run, in `place / "whole"`."""
    return drift(place / "whole")


def results(workdir: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Everything in metrics.jsonl and summary.json but times and environment."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((workdir / "summary.json").read_text())
    for timed in (*lines, summary, *summary["algorithms"].values()):
        del timed["seconds"]
    del summary["environment"]
    return lines, summary


def test_a_run_does_not_wait_for_packages_that_it_does_not_need(whole):
    """Each takes a tenth of a second to a whole one: they are imported where they are used."""
    assert "  accuracy, %  " in whole.stdout  # the table of results is there
    assert whole.stdout.endswith("\nimported set()\n")


@pytest.mark.usefixtures("whole")
def test_killed_and_stopped_anywhere_equals_uninterrupted(tmp_path, drift, place):
    parts = tmp_path / "parts"
    killed = -signal.SIGKILL
    by_clock = tmp_path / "by_clock"
    for workdir, every, stop, status, lines in (
        (parts, 1, "before_save@2", killed, 2),
        (parts, 1, "while_saving@2", killed, 2),
        (parts, 1, "SIGINT@5", 130, 5),
        (parts, 1, "after_save@8", killed, 8),
        (by_clock, 0, "SIGTERM@4", 143, 4),
        # The writer has all of step 5 but its name, or that too, when 6 has ended and 7 has begun.
        (by_clock, 0, "while_writing@5", killed, 6),
        (by_clock, 0, "after_writing@5", killed, 6),
    ):
        stopped = drift(workdir, stop, every)
        assert stopped.returncode == status, stopped.stderr
        assert len((workdir / "metrics.jsonl").read_text().splitlines()) == lines
        assert not (workdir / "summary.json").exists()
        if status != killed:
            assert f"stopped by {stop[:-2]}; the same command continues" in stopped.stderr
            assert "Traceback" not in stopped.stderr
        steps = {file.stem for file in (workdir / "checkpoints").glob("*.npz")}
        if workdir == by_clock:
            assert steps == ({"4", "5"} if stop == "after_writing@5" else {"4"})
    for workdir, every in ((parts, 1), (by_clock, 0)):
        assert drift(workdir, every=every).returncode == 0
        assert results(workdir) == results(place / "whole")


def test_smoke_from_the_command_line(tmp_path):
    """The README's main job, smaller, without other methods and plots: files, then "is finished"."""
    workdir = tmp_path / "new" / "digits"
    command = [
        *(sys.executable, "-m", "launch.run", f"--config={DIGITS}:smoke"),
        *(f"--workdir={workdir}", "--config.xclp.num_bits", "256"),
        *("--config.dataset.train_size=500", "--config.federation.labeled_fraction=0.3"),
        *("--config.baselines=", "--config.execution.plots=false"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"repeat 2/2  {'xclp':<14}  round 1/1  test accuracy 0." in done.stdout
    config = json.loads((workdir / "config.json").read_text())
    assert config["xclp"]["num_bits"] == 256
    summary = json.loads((workdir / "summary.json").read_text())
    assert summary["test_accuracy"] > 0.8
    assert summary["test_balanced_accuracy"] > 0.8
    assert summary["examples"]["labeled"] + summary["examples"]["unlabeled"] == 400
    assert done.stdout.count("digits: 10 clients 120 labeled and 280 unlabeled, public 0, ") == 1
    assert summary["communication"]["upload_bytes"] > 500 * 256 // 8
    assert summary["environment"]["command"] == " ".join([Path(sys.executable).name, *command[1:]])

    again = called(run.main, *command[3:])
    assert again.returncode == 0
    assert again.stdout == f"{workdir} is finished; --overwrite runs it again\n"


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("n" * 300, f"{'n' * 300}': File name too long"),
        ("pyproject.toml", "pyproject.toml/xla': cannot write in pyproject.toml: Not a directory"),
    ],
)
def test_a_cache_that_cannot_be_is_one_line(place, words, monkeypatch, tmp_path):
    monkeypatch.setenv("JAXFED_CACHE", place)
    workdir = tmp_path / "w"
    command = [f"--config={DIGITS}", f"--workdir={workdir}"]
    status, complaint = invoke(command)
    assert (status, complaint.count("\n")) == (2, 1)
    assert complaint.startswith(f"jaxfed: $JAXFED_CACHE='{words}")
    assert not workdir.exists()


CONFIG = {"algorithm": "xclp", "num_repeats": 2, "dataset": {"name": "digits"}, "alpha": 0.5}


TWO_RATES = """
import sys
import jaxfed
from jaxfed.config import file
from jaxfed.experiment.store import compilation_cache
for rate in 0.1, 0.3:
    config = file.load("ml_collections_configs/fssl.py:smoke")
    config.algorithm, config.baselines, config.num_repeats = "fedavg", (), 2
    config.training.learning_rate, config.execution.plots = rate, False
    config.execution.compilation_cache = sys.argv[1]
    jaxfed.run(config, workdir=f"{sys.argv[1]}/{rate}", progress=False)
"""


def test_repeats_and_learning_rates_have_one_program(forked, tmp_path):
    """Clients' sizes, the mean of inputs and the rate are no constants of a round's program."""
    done = forked(TWO_RATES, tmp_path / "programs")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "programs").glob("jit_whole-*-cache"))) == 1
    losses = {
        record["train_loss"]
        for rate in ("0.1", "0.3")
        for line in (tmp_path / "programs" / rate / "metrics.jsonl").read_text().splitlines()
        if (record := json.loads(line))["round"] == 1
    }
    assert len(losses) == 4


WITH_DAMAGED_PROGRAMS = """
import sys, warnings
from pathlib import Path
import jax
from jaxfed.experiment.store import compilation_cache
compilation_cache.enable(sys.argv[1])
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
for step in range(4):
    jax.jit(lambda x: x * step)(1.0)
"""


def test_kept_programs_are_their_owners_alone_and_damaged_ones_are_compiled(forked, tmp_path):
    run = functools.partial(forked, WITH_DAMAGED_PROGRAMS, tmp_path / "programs")
    assert run() == (0, "", "")
    assert (tmp_path / "programs").stat().st_mode & 0o777 == 0o700
    for program in (tmp_path / "programs").glob("*-cache"):
        program.write_bytes(b"damaged")
    assert run() == (0, "", "")


def test_overwrite_deletes_our_files_and_no_others(tmp_path):
    with open_workdir(tmp_path, CONFIG) as workdir:
        workdir.append_metrics({"round": 1})
        (tmp_path / "partition.json").write_text("{}")
        (tmp_path / "checkpoints" / "1").mkdir(parents=True)
        (tmp_path / "plots").mkdir()
        (tmp_path / "summary.json").write_text('{"algorithms": {}}')
    (tmp_path / "notes.txt").write_text("mine")
    assert is_finished(tmp_path, CONFIG)
    changed = {**CONFIG, "alpha": 0.9}
    with open_workdir(tmp_path, changed, overwrite=True):
        left = {path.name for path in tmp_path.iterdir()}
    assert left == {"config.json", "notes.txt", ".lock"}
    assert not is_finished(tmp_path, changed)


def test_a_start_that_was_cut_short_is_no_obstacle(tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / ".config.json.12.partial").write_text('{"algo')
    with open_workdir(tmp_path, CONFIG) as workdir:
        assert workdir.read_metrics() == []
