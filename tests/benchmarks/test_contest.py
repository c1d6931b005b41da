"""What a contest reports: ratios to peers, parts scaled up, figures beside what is promised."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.timing import contest
from benchmarks.timing.contest import Contest, run_contest
from benchmarks.timing.record import as_line

NOW = [0.0]  # a clock that no other process disturbs


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(contest, "time", SimpleNamespace(perf_counter=lambda: NOW[0], sleep=float))


def seconds(duration, result=None):
    def solve():
        NOW[0] += duration
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
        {},
    )
    whole, quarter = row["peers"]["whole"], row["peers"]["quarter"]
    assert whole["ratio"] == pytest.approx(2)
    assert quarter["ratio"] == pytest.approx(4)
    assert (whole["scaled_from_part"], quarter["scaled_from_part"]) == (None, 1 / 4)
    assert row["figures"]["bytes a point"] == {"measured": 5, "at_most": 5.5}
    assert row["figures"]["ms a point"]["measured"] == pytest.approx(
        125 * row["median_seconds"]["jaxfed"]
    )
    assert row["figures"]["ms a point"]["at_most"] is None
    line = as_line(row)
    assert "5 bytes a point (at most 5.5)" in line
    assert "scaled up from 0.25 of the task" in line
    assert "(target 3)" in line


def test_a_task_of_minutes_is_run_once():
    runs = []
    row = run_contest(
        Contest(
            task="waiting",
            case={"n": 8},
            ours=lambda: runs.append(seconds(0.02)()),
            peers={"half": seconds(0.02)},
            parts={"half": 1 / 2},
            once=True,
        ),
        {},
    )
    assert (len(runs), row["rounds"], len(row["seconds"]["jaxfed"])) == (1, 1, 1)
    assert row["seconds"] == {"jaxfed": [pytest.approx(0.02)], "half": [pytest.approx(0.04)]}


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="counted by Linux alone")
def test_processes_of_a_contestants_own_are_not_others():
    """A worker that lives on: what has ended the system counts by itself."""
    spin = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    before = contest._own_ticks()
    with subprocess.Popen(
        [sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        worker.stdout.readline()
        taken = contest._own_ticks() - before
        worker.communicate(b"\n")
    assert taken >= 0.4 * os.sysconf("SC_CLK_TCK")
