"""launch.bench --points: kernels at any numbers of points, without peers that would take too long."""

import json
import signal

import pytest
from absl import flags
from absl.testing import flagsaver

from benchmarks import bench
from benchmarks.catalog import BENCHMARKS, OF_ANY_SIZE
from benchmarks.timing import limits
from benchmarks.timing.contest import Contest
from benchmarks.timing.limits import Limits
from benchmarks.timing.patience import Patience
from jaxfed.errors import UsageError
from jaxfed.host.interruption import Interrupted
from launch import bench as entry


def contest(n, *peers, task="search", parts=None, **case):
    return Contest(
        task, {"n": n, **case}, ours=int, peers=dict.fromkeys(peers, int), parts=parts or {}
    )


@pytest.mark.parametrize(
    ("taken", "n", "expected"),
    [
        ({}, 10**9, None),
        ({1000: 1.0}, 7000, None),  # 49 s
        ({1000: 1.0}, 8000, 64.0),
        (
            {100: 10.0, 1000: 10.1},
            5000,
            None,
        ),  # hardly more at ten times as many: grows as n at least
        ({100: 10.0, 1000: 10.1}, 6000, 60.6),
        ({1000: 1.0, 2000: 2.0**1.5}, 32_000, 32**1.5),
        ({1000: 1.0, 2000: 100.0}, 3000, 100 * 1.5**2),  # no task here grows faster than n^2
        ({10_000: 1000.0}, 5000, None),  # nothing is known of fewer points
    ],
)
def test_peers_that_would_take_more_than_a_minute_are_left_out(taken, n, expected):
    patience = Patience(60)
    for size, seconds in taken.items():
        patience.remember(contest(size, "peer"), {"jaxfed": 1.0, "peer": seconds})
    kept, slow = patience.without_slow_peers(contest(n, "peer", "other"))
    assert slow == ({} if expected is None else {"peer": pytest.approx(expected)})
    assert set(kept.peers) == {"peer", "other"} - set(slow)


def test_a_part_may_take_a_minute_and_tasks_are_told_apart():
    patience = Patience(60)
    patience.remember(contest(1000, "peer", C=10), {"peer": 1.0})
    for other in (
        contest(10_000, "peer", C=62),
        contest(10_000, "peer", C=10, task="another"),
        contest(10_000, "peer", C=10, parts={"peer": 0.5}),
        Contest("search", {}, ours=int, peers={"peer": int}),
    ):
        assert patience.without_slow_peers(other) == (other, {})
    assert patience.without_slow_peers(contest(10_000, "peer", C=10))[1] == {"peer": 100.0}


@pytest.fixture
def benched(monkeypatch, tmp_path):
    """The report of a run of the command, of contests that nobody solves: n^2 microseconds each."""

    def drawn(with_peers, sizes):
        return (contest(n, *["peer"] * with_peers) for n in sizes)

    def row(contest, limits):
        seconds = dict.fromkeys(["jaxfed", *contest.peers], contest.case["n"] ** 2 / 1e6)
        peers = {name: {"ratio": 1.0, "target": None, "unreliable": None} for name in contest.peers}
        blank = {"task": contest.task, "case": contest.case, "agreement": {}}
        scaled = {name: {**told, "scaled_from_part": None} for name, told in peers.items()}
        return {**blank, "median_seconds": seconds, "peers": scaled}

    for name, found in {
        "machine_limits": lambda: Limits({}, 0.0),
        "one_device_a_core": int,
        "run_contest": row,
        "OF_ANY_SIZE": {"knn": drawn, "graph": drawn},
    }.items():
        monkeypatch.setattr(bench, name, found)
    flags.FLAGS.mark_as_parsed()

    def run(**given):
        out = tmp_path / "out.json"
        with flagsaver.flagsaver(**{"out": str(out), **given}):
            entry.main([], [], None)
        return json.loads(out.read_text())["contests"]

    return run


def test_points_up_to_the_most_and_whose_time_ends_where(benched, capsys):
    rows = benched(
        points=["9000", "30000", "1000", "3000", "1000"], max_points=10_000, kernel=["knn"]
    )
    assert [row["case"]["n"] for row in rows] == [1000, 3000, 9000]
    assert [row["left_out"] for row in rows] == [{}] * 3
    rows = benched(points=["1000", "9000"], peers=True)
    assert [row["case"]["n"] for row in rows] == [1000, 9000] * 2
    assert rows[1]["left_out"] == {"peer": pytest.approx(81.0)}
    assert rows[1]["median_seconds"].keys() == {"jaxfed"}
    assert "peer: left out, would take 81 s" in capsys.readouterr().out
    rows = benched(points=["1000", "9000"], peers=True, patience=82.0)
    assert [row["left_out"] for row in rows[:2]] == [{}, {}]


def test_a_signal_leaves_what_has_ended(benched, monkeypatch, tmp_path, capsys):
    row = bench.run_contest

    def stopping(contest, *given, **more):
        if contest.case["n"] == 3000:
            raise Interrupted(signal.SIGINT)
        return row(contest, *given, **more)

    monkeypatch.setattr(bench, "run_contest", stopping)
    out = tmp_path / "out.json"
    given = {"points": ["1000", "2000", "3000", "4000"], "kernel": ["knn"]}
    assert [row["case"]["n"] for row in benched(**given)] == [1000, 2000]
    assert capsys.readouterr().err == (
        f"jaxfed: stopped by SIGINT; {out} has the contests that had ended, 2; "
        "the same command begins anew\n"
    )
    with flagsaver.flagsaver(points=["3000"], out=None):
        assert entry.main([], [], None) == 130
    assert capsys.readouterr().err == "jaxfed: stopped by SIGINT; the same command begins anew\n"


def test_a_limit_is_the_best_of_all_passes(monkeypatch):
    """Others take the cores in the first of them."""
    speeds, taken = iter([4.0, 1.0, 2.0]), iter([0.0, 50.0, 50.0, 50.0, 50.0, 50.0])
    monkeypatch.setattr(limits, "_work", lambda accelerated: {"bytes": (8.0, int)})
    monkeypatch.setattr(limits, "_seconds", lambda compute: next(speeds))
    monkeypatch.setattr(limits, "others_cpu_seconds", lambda: next(taken))
    assert limits.machine_limits() == ({"bytes": 8.0}, 0.0)


def ascending(with_peers):
    yield contest(1000)
    raise AssertionError("the next one is set up, which takes long")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"points": ["1000", "1e4"]}, "--points=1e4: use integers from 100 on"),
        ({"points": ["99"]}, "--points=99: use integers from 100 on"),
        ({"points": ["-5"]}, "--points=-5: use"),
        (
            {"points": ["1000"], "kernel": ["lsh"]},
            "--kernel=lsh: choose with --points one of knn, graph",
        ),
        ({"kernel": ["dog"]}, "--kernel=dog: choose one of lsh, hamming"),
        ({"points": ["1000"], "max_points": 999}, "--max_points=999: no contest has so few$"),
        ({"max_points": 1, "kernel": ["knn"]}, "--max_points=1: no contest has so few$"),
        ({"kernel": ["lsh"]}, "--kernel=lsh: has no contest on this machine$"),
        ({"out": ""}, "--out=: the name of a file is missing$"),
    ],
)
def test_mistakes(benched, monkeypatch, given, told):
    monkeypatch.setitem(BENCHMARKS, "lsh", lambda with_peers: iter(()))
    monkeypatch.setitem(BENCHMARKS, "knn", ascending)
    with pytest.raises(UsageError, match=f"^{told}"):
        benched(**given)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["knn", "experiment_mlp", "knn"], ["knn", "experiment_mlp"]),
        (["experiment_cnn", "experiment"], ["experiment"]),
    ],
)
def test_no_contest_is_run_twice(names, expected):
    assert bench.without_parts(names) == expected


@pytest.mark.slow  # compiles one of each
def test_those_of_any_size_are_the_benchmarks_of_their_names():
    for name, draw in OF_ANY_SIZE.items():
        assert BENCHMARKS[name] is draw
        drawn = next(draw(False, [120]))
        assert drawn.case["n"] == 120
        assert drawn.work is not None, "no limit to draw in"
