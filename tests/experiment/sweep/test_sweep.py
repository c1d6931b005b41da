"""Sweeps: what is planned, what runs, what is skipped, what a failure or a signal leaves behind."""

import json
import os
import shlex
import signal
import sys
import threading
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_sweeps import fake_command, launch, results_of, run, write_config

from jaxfed.experiment import sweep as sweep_plan
from jaxfed.experiment.store.records import read_sweep
from jaxfed.experiment.store.workdir import IN_A_SWEEP
from jaxfed.host.interruption import Interrupted


@pytest.fixture
def config(tmp_path):
    return partial(write_config, tmp_path)


def python_command(code):
    return lambda point, directory: [sys.executable, "-S", "-c", code, str(directory)]


def test_plan_resolves_every_point(config):
    path = config(
        "def sweep(add):\n"
        "    add(**{'xclp.num_bits': 64})\n"
        "    add(**{'xclp.num_bits': 128, 'federation.partition': 'dirichlet'})\n"
        "    add()\n"
    )
    plan = sweep_plan.plan(path, ["xclp.num_bits=256"])
    assert [point.name for point in plan.points] == [
        "xclp.num_bits=64",
        "federation.partition=dirichlet,xclp.num_bits=128",
        "base",
    ]
    assert plan.base == {"xclp.num_bits": 256, "federation.partition": "iid"}
    assert [point.settings["xclp"]["num_bits"] for point in plan.points] == [64, 128, 256]
    assert plan.points[1].overrides == {"xclp.num_bits": 128, "federation.partition": "dirichlet"}


def test_points_that_are_one_experiment_run_once(config):
    path = config(
        "def sweep(add):\n"
        "    for bits in (64, 4096): add(**{'xclp.num_bits': bits})\n"
        "    for alpha in (0.5, 0.99): add(**{'xclp.alpha': alpha})\n"
    )
    plan = sweep_plan.plan(path)
    assert [p.name for p in plan.points] == [
        "xclp.num_bits=64",
        "xclp.num_bits=4096",
        "xclp.alpha=0.5",
    ]
    assert plan.repeated == {"xclp.alpha=0.99": "xclp.num_bits=4096"}


@pytest.mark.parametrize(
    ("signature", "variant", "expected"),
    [
        ("add, variant", ":smoke", "smoke"),
        ("add, variant=''", "", ""),
        ("add, variant='', *, more=1", ":smoke", "smoke"),
    ],
)
def test_sweep_may_take_the_variant(config, signature, variant, expected):
    body = f"def sweep({signature}):\n    add(**{{'dataset.root': 'is ' + variant}})\n"
    plan = sweep_plan.plan(config(body) + variant)
    assert plan.points[0].overrides == {"dataset.root": f"is {expected}"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("xclp.relative_confidence", True),
        ("seed", 3),
        ("xclp.alpha", 0.1 + 0.2),
        ("xclp.tolerance", 1e-7),
        ("dataset.root", "text with, signs=!"),
        ("baselines", ("client_knn", "pooled_lp")),
        ("baselines", ()),
        ("federation.table", ((0.5, 0.5), (0.25, 0.75))),
    ],
)
def test_values_survive_the_command_line(config, key, value):
    sweep = config(f"def sweep(add): add(**{{{key!r}: {value!r}}})\n")
    plan = sweep_plan.plan(sweep, ["federation.partition=table"])  # which a table is read with
    assert plan.points[0].overrides == {key: value}


# Not of all of Unicode, whose table would take a second.
LETTERS = [chr(number) for number in range(0x180)] + ["\u0301", "\u202e", "\uff0f", "漢", "😀"]
KEYS = st.lists(st.text(LETTERS, min_size=1, max_size=80), min_size=1, max_size=4)


@given(KEYS, KEYS)
def test_names_are_safe_and_differ(first, second):
    names = [sweep_plan.point_name(texts) for texts in (first, second)]
    for name in names:
        assert 0 < len(name) <= 140
        assert shlex.quote(name).strip("'") == name
        assert not set(name) & set('/\\:*?"<>| \n\0')
    assert (names[0] == names[1]) == (",".join(sorted(first)) == ",".join(sorted(second)))


def test_names_stay_readable():
    assert sweep_plan.point_name(["xclp.alpha=0.9", "seed=-1"]) == "seed=-1,xclp.alpha=0.9"
    assert sweep_plan.point_name([]) == "base"
    assert sweep_plan.point_name(["dataset.name=/data/set.npz"]).startswith(
        "dataset.name=_data_set.npz-"
    )


THREE = "def sweep(add):\n    for seed in (1, 2, 3): add(seed=seed)\n"


def test_a_failure_stops_nothing_else(config, tmp_path):
    plan, directory = sweep_plan.plan(config(THREE)), tmp_path / "out"
    failed, heard = run(
        plan, directory, fake_command({"seed=1": 0.25, "seed=2": -1, "seed=3": 0.75})
    )
    assert failed == ["seed=2"]
    assert heard.starts == ["seed=1", "seed=2", "seed=3"]
    log = directory / "logs" / "seed=2.log"
    assert heard.ends == {
        "seed=1": "",
        "seed=2": f"exit status 1: it broke ({log})",
        "seed=3": "",
    }
    assert "first line" in log.read_text()
    assert [p.failure for p in read_sweep(directory).points] == list(heard.ends.values())
    results = results_of(directory)
    assert list(results) == [("seed=1", "xclp"), ("seed=3", "xclp")]
    first = results["seed=1", "xclp"]
    assert first["test_accuracy"].mean == pytest.approx(0.25)
    # values 0.15 and 0.35: sample deviation is their distance / sqrt 2
    assert first["test_accuracy"].std == pytest.approx(0.2 / 2**0.5)
    assert first["communication.upload_bytes"] == first["test_accuracy"]


def test_finished_points_are_skipped(config, tmp_path):
    plan, directory = sweep_plan.plan(config(THREE)), tmp_path / "out"
    run(plan, directory, fake_command({"seed=1": 0.5, "seed=2": -1, "seed=3": 0.5}))
    failed, heard = run(plan, directory, fake_command({"seed=2": 0.5}))
    assert (failed, heard.starts) == ([], ["seed=2"])
    assert len(results_of(directory)) == 3
    assert not any(point.failure for point in read_sweep(directory).points)


def test_points_know_that_they_are_of_a_sweep(config, tmp_path):
    code = f"import os, sys; sys.exit({IN_A_SWEEP!r} not in os.environ)"
    failed, _ = run(sweep_plan.plan(config(THREE)), tmp_path / "out", python_command(code), jobs=3)
    assert failed == []
    assert IN_A_SWEEP not in os.environ


def test_a_point_whose_summary_is_cut_off_is_not_finished(config, tmp_path):
    plan, directory = sweep_plan.plan(config(THREE)), tmp_path / "out"
    accuracies = dict.fromkeys(["seed=1", "seed=2", "seed=3"], 0.5)
    run(plan, directory, fake_command(accuracies))
    summary = directory / "seed=2" / "summary.json"
    summary.write_text(summary.read_text()[:-20])
    failed, heard = run(plan, directory, fake_command(accuracies))
    assert (failed, heard.starts) == ([], ["seed=2"])
    assert len(results_of(directory)) == 3


MEET = """
import pathlib, sys, time
path = pathlib.Path(sys.argv[1]); path.with_suffix(".here").touch()
until = time.time() + 20
while len(list(path.parent.glob("*.here"))) < 2:
    if time.time() > until: sys.exit("alone")
    time.sleep(0.02)
"""


def test_jobs_run_together(config, tmp_path):
    plan = sweep_plan.plan(config("def sweep(add):\n    for seed in (1, 2): add(seed=seed)\n"))
    failed, _ = run(plan, tmp_path / "out", python_command(MEET), jobs=2)
    assert failed == []


WAIT_FOR_SIGNAL = """
import pathlib, signal, sys, time
path = pathlib.Path(sys.argv[1])
def save(signum, frame):
    path.with_suffix(".saved").write_text(str(signum))
    sys.exit(128 + signum)
for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP): signal.signal(each, save)
path.with_suffix(".ready").touch()
time.sleep(30)
"""


@pytest.mark.parametrize(
    ("signum", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["INT", "TERM", "HUP"],
)
@pytest.mark.usefixtures("hang_ups_arrive")
def test_signals_reach_the_children(config, tmp_path, signum, status):
    plan, directory = sweep_plan.plan(config(THREE)), tmp_path / "out"

    def interrupt():
        while len(list(directory.glob("*.ready"))) < 2:
            pass
        os.kill(os.getpid(), signum)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Interrupted) as interrupted:
        run(plan, directory, python_command(WAIT_FOR_SIGNAL), jobs=2)
    thread.join()
    assert interrupted.value.exit_status == status
    # Two were running and were told; the third never started.
    assert sorted(p.read_text() for p in directory.glob("*.saved")) == [str(int(signum))] * 2
    assert len(list((directory / "logs").iterdir())) == 2


def test_dry_run_prints_commands_and_makes_nothing(config, tmp_path):
    path, directory = config(THREE), tmp_path / "out"
    done = launch(
        f"--config={path}", f"--workdir={directory}", "--dry_run", "--config.xclp.alpha=0.5"
    )
    assert done.returncode == 0, done.stderr
    lines = [shlex.split(line)[1:] for line in done.stdout.splitlines()]
    assert lines == [
        [
            *("-m", "launch.run", f"--config={path}", f"--workdir={directory}/seed={seed}"),
            *("--config.xclp.alpha=0.5", f"--config.seed={seed}"),
        ]
        for seed in (1, 2, 3)
    ]
    assert not directory.exists()
    assert "seed is swept with num_repeats=5: repeat i has seed + i" in done.stderr
    once = launch(
        *(f"--config={path}", f"--workdir={directory}", "--dry_run", "--config.num_repeats=1")
    )
    assert "num_repeats" not in once.stderr


def test_a_finished_point_whose_methods_went_wrong_stays_a_failure(config, tmp_path):
    path, directory = config(THREE), tmp_path / "out"
    plan = sweep_plan.plan(path)
    run(plan, directory, fake_command({point.name: 0.5 for point in plan.points}))
    summary = directory / "seed=2" / "summary.json"
    summary.write_text(
        json.dumps(json.loads(summary.read_text()) | {"diverged": ["xclp diverged"]})
    )
    done = launch(f"--config={path}", f"--workdir={directory}")
    assert (done.returncode, done.stderr.count("\nfailed: ")) == (1, 1)
    assert "failed: seed=2, see" in done.stderr


def test_points_are_told_by_their_values(config):
    path = config(
        "def sweep(add): add(**{'xclp.presence': ('1@hamming',), 'xclp.hamming': 'phe'})\n"
    )
    (point,) = sweep_plan.plan(path, ["xclp.compared_clients=4"]).points
    assert point.title == "xclp.hamming=phe,xclp.presence=('1@hamming',)"


# A method that does nothing, and one whose rounds fail, which nothing can be said against before.
QUICK_AND_BROKEN = """
from jaxfed.algorithms import ALGORITHMS
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import method

@method(takes=("num_classes",))
def quick(*, num_classes, accuracy=0.5, is_broken=False):
    def round(state, cohort, key):
        if is_broken:
            raise RuntimeError("it broke")
        return state, {}

    def evaluate(state, federation):
        return {"test_accuracy": accuracy}

    return FederatedAlgorithm(lambda key, federation: 0, round, evaluate)

ALGORITHMS["quick"] = quick

"""


def test_a_real_sweep_with_a_failing_point(config, tmp_path):
    path, directory = (
        config(
            f"{QUICK_AND_BROKEN}def sweep(add):\n"
            "    add(**{'another.accuracy': 0.75})\n"
            "    add(**{'quick.is_broken': True})\n"
        ),
        tmp_path / "out",
    )
    done = launch(
        f"--config={path}",
        f"--workdir={directory}",
        "--config.num_repeats=1",
        "--config.dataset.train_size=400",
        "--config.federation.labeled_fraction=0.5",
        "--config.rounds=1",
        "--config.algorithm=quick",
        "--config.baselines=another",
        "--config.another.algorithm=quick",
        "--config.execution.plots=false",
    )
    assert done.returncode == 1, done.stderr
    assert "failed: quick.is_broken=true, see" in done.stderr
    assert "1 of 2 points are finished" in done.stdout
    results = results_of(directory)
    accuracies = {name: found["test_accuracy"].mean for (_, name), found in results.items()}
    assert accuracies == {"quick": 0.5, "another": 0.75}
    assert all(found["test_accuracy"].std is None for found in results.values())
