"""What a contest reports: ratios to peers, parts scaled up, figures beside what is promised."""

import json
import sys
import time
from pathlib import Path

import pytest

from launch.bench import as_line
from launch.benchmarks import contest, secure_hamming
from launch.benchmarks.contest import Contest, run_contest

UNITS = ("us a pair", "bytes a pair")


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(contest, "SHORTEST_SAMPLE", 0.001)
    monkeypatch.setattr(contest, "REST", 0)


def seconds(duration, result=None):
    def solve():
        time.sleep(duration)
        return result

    return solve


def test_a_peer_that_solves_a_part_is_scaled_up_and_figures_stand_beside_promises(short):
    row = run_contest(
        Contest(
            task="waiting",
            case={"n": 8},
            ours=seconds(0.02, 40),
            peers={"whole": seconds(0.04), "quarter": seconds(0.02)},
            parts={"quarter": 1 / 4},
            targets={"quarter": 3},
            figures=lambda result, took: {
                "ms a point": 1e3 * took / 8,
                "bytes a point": result / 8,
            },
            at_most={"bytes a point": 5.5},
        ),
        5,
        {},
    )
    whole, quarter = row["peers"]["whole"], row["peers"]["quarter"]
    assert whole["ratio"] == pytest.approx(2, rel=0.3)
    assert quarter["ratio"] == pytest.approx(4, rel=0.3)
    assert (whole["scaled_from_part"], quarter["scaled_from_part"]) == (None, 1 / 4)
    assert row["figures"]["bytes a point"] == {"measured": 5, "at_most": 5.5}
    assert row["figures"]["ms a point"]["measured"] == pytest.approx(2.5, rel=0.3)
    assert row["figures"]["ms a point"]["at_most"] is None
    line = as_line(row)
    assert "5 bytes a point (at most 5.5)" in line
    assert "scaled up from 0.25 of the task" in line
    assert "(target 3)" in line


def test_without_its_packages_phe_is_left_out_with_a_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "phe", None)
    monkeypatch.setitem(sys.modules, "phe.paillier", None)
    for module in [name for name in sys.modules if "paillier" in name and "phe" not in name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(secure_hamming, "_CASES", {})
    tasks = [drawn.task for drawn in secure_hamming.distances(with_peers=False)]
    assert tasks == ["base oblivious transfers"]
    said = capsys.readouterr().err
    assert said.startswith("bench: phe and phe_paper left out, phe")
    assert said.count("\n") == 1


def three_digits(number):
    return f"{float(format(number, '.3g')):,g}"


def cost_row(contest):
    """A protocol's row of the README's table."""
    case, figures = contest["case"], contest["figures"]
    name = contest["task"].removeprefix("secure Hamming, ")
    points = f"{case['n']:,} × {case['m']:,}"
    costs = [three_digits(figures[unit]["measured"]) for unit in UNITS]
    peers = [f"`{peer}` {three_digits(told['ratio'])}" for peer, told in contest["peers"].items()]
    return f"| `{name}` | {points} | {' | '.join(costs)} | {', '.join(peers)} |"


def test_the_readme_shows_protocols_costs_as_they_were_measured():
    report = json.loads(Path("results/bench_secure_one_core.json").read_text())
    readme = Path("README.md").read_text()
    assert report["environment"]["command"] in readme
    rows = [
        cost_row(contest)
        for contest in report["contests"]
        if contest.get("figures", {}).keys() >= set(UNITS) and contest["case"]["num_bits"] == 4096
    ]
    assert len(rows) == 4
    for row in rows:
        assert row in readme
