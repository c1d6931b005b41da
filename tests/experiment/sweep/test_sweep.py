"""Sweeps: what is planned, what runs, what is skipped, what a failure or a signal leaves behind."""

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


@pytest.mark.parametrize("variant", ["", "smoke"])
def test_sweep_may_take_the_variant(config, variant):
    body = "def sweep(add, variant=''):\n    add(**{'dataset.root': 'is ' + variant})\n"
    plan = sweep_plan.plan(config(body) + f":{variant}" * bool(variant))
    assert plan.points[0].overrides == {"dataset.root": f"is {variant}"}


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


THREE = "def sweep(add):\n    for seed in (1, 2, 3): add(seed=seed)\n"


def test_a_failure_stops_nothing_else(config, tmp_path):
    plan, directory = sweep_plan.plan(config(THREE)), tmp_path / "out"
    failed, heard = run(
        plan, directory, fake_command({"seed=1": 0.25, "seed=2": -1, "seed=3": 0.75})
    )
    assert failed == ["seed=2"]
    assert heard.starts == ["seed=1", "seed=2", "seed=3"]
    log = directory / "logs" / "seed=2.log"
    assert heard.ends == {"seed=1": "", "seed=2": f"it broke ({log})", "seed=3": ""}
    assert "first line" in log.read_text()
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


def test_a_point_whose_summary_is_cut_off_is_not_finished(config, tmp_path):
    plan, directory = sweep_plan.plan(config(THREE)), tmp_path / "out"
    accuracies = dict.fromkeys(["seed=1", "seed=2", "seed=3"], 0.5)
    run(plan, directory, fake_command(accuracies))
    summary = directory / "seed=2" / "summary.json"
    summary.write_text(summary.read_text()[:-20])
    failed, heard = run(plan, directory, fake_command(accuracies))
    assert (failed, heard.starts) == ([], ["seed=2"])
    assert len(results_of(directory)) == 3


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
