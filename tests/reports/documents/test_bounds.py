"""launch.bounds: files with the numbers of both propositions, a run's own sizes, mistakes in one line."""

import csv
import json

import numpy as np
import pytest
from invoking import called
from small_workdirs import make_run

from jaxfed.privacy.label_sensitivity import stability_bound
from jaxfed.reports.documents.bounds import Wanted, of_run, write_bounds
from jaxfed.reports.figures.bound_figures import (
    RATES,
    consensus_bound_figure,
    sensitivity_bound_figure,
)
from jaxfed.training.consensus.consensus import change_probability
from launch import bounds

SMALL = Wanted(clients=(3, 5), rates=(1.0,), public=(1, 400), deltas=(0.05,), estimate=20)


def rows_of(path):
    with path.open(encoding="utf-8") as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def test_files_hold_the_bounds(tmp_path):
    lines, changed = write_bounds(tmp_path / "b", SMALL)
    assert {path.name for path in (tmp_path / "b").iterdir()} == {
        *("convergence-1.png", "convergence-400.png", "sensitivity.png"),
        *("convergence.csv", "sensitivity.csv"),
    }
    for row in rows_of(tmp_path / "b" / "convergence.csv"):
        sizes = int(row["num_clients"]), int(row["num_public"]), int(row["rounds"]), row["c"]
        assert row["delta"] == pytest.approx(change_probability(*sizes))
    for row in rows_of(tmp_path / "b" / "sensitivity.csv"):
        at = int(row["num_public"]), row["stability_rate"], row["delta"]
        assert abs(row["rows"] - stability_bound(*at)) <= 1  # the rate is rounded
        assert row["bits"] == 2 * row["rows"]
        assert row["rows"] <= row["trivial_rows"] == row["num_public"]
    bound = stability_bound(400, 0.01, 0.05)
    assert changed[-1] == f"|U| = 400  delta = 0.05  e = 0.01  r = {bound}"
    assert len(changed) == 6
    assert len(lines) == 4
    assert lines[1].startswith("m = 5  c = 1.0  |U| = 1  delta = 0.05  t_0 = ")
    first = int(lines[1].rpartition(" ")[2].replace(",", ""))
    assert change_probability(5, 1, first, 1.0) <= 0.05 < change_probability(5, 1, first - 1, 1.0)


def test_lines_of_convergence_are_the_bound():
    figure = consensus_bound_figure((3, 7), (1.0, 4.0), num_public=50)
    figure.canvas.draw()
    lines = figure.axes[0].get_lines()
    assert [line.get_label() for line in lines] == [
        f"m = {m}, c = {c}" for m in (3, 7) for c in (1, 4)
    ]
    for line, (m, c) in zip(lines, [(3, 1), (3, 4), (7, 1), (7, 4)], strict=True):
        rounds, delta = line.get_data()
        assert rounds[0] >= 2 * c
        expected = [min(1, change_probability(m, 50, int(t), c)) for t in rounds]
        np.testing.assert_allclose(delta, np.maximum(expected, 1e-12))


def test_lines_of_sensitivity_are_the_bound():
    figure = sensitivity_bound_figure((50, 900), (0.05, 1e-5), estimate=7)
    named = {line.get_label(): line for line in figure.axes[0].lines}
    for size in (50, 900):
        for delta in (0.05, 1e-5):
            line = named[f"|U| = {size}, $\\delta$ = {delta:g}"]
            expected = [stability_bound(size, float(rate), delta) for rate in RATES]
            np.testing.assert_array_equal(line.get_ydata(), expected)
            assert expected[-1] == size
    np.testing.assert_array_equal(named["estimate, 7"].get_ydata(), 7)


def fedct_run(path, voters=5, public=((30, 40),)):
    make_run(path, {"fedct": (0.8,)})
    lines = [
        {"repeat": 0, "algorithm": "fedct", "round": n, "voters": voters, "consensus_change": c}
        for n, c in ((1, 1.0), (2, 0.25), (3, 0.0))
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps({**summary, "algorithm": "fedct"}))
    counts = json.loads((path / "partition.json").read_text())
    (path / "partition.json").write_text(json.dumps({**counts, "public": public}))
    return path


def test_sizes_and_changes_of_a_run(tmp_path):
    wanted = of_run(fedct_run(tmp_path / "r"), SMALL)
    assert wanted == SMALL._replace(
        clients=(5,), public=(70,), changes=((1, 1.0), (2, 0.25), (3, 0.0))
    )
    figure = consensus_bound_figure(wanted.clients, (1.0,), 70, wanted.changes)
    dots = figure.axes[0].lines[-1]
    np.testing.assert_array_equal(dots.get_xdata(), [1, 2])  # no logarithm of what did not change
    np.testing.assert_array_equal(dots.get_ydata(), [1, 0.25])


def test_the_command(tmp_path):
    done = called(bounds.main, str(fedct_run(tmp_path / "r")), "--rates=1", "--deltas=0.05")
    assert (done.returncode, done.stderr) == (0, "")
    assert "m = 5  c = 1.0  |U| = 70" in done.stdout
    assert "|U| = 70  delta = 0.05  e = 0.01  r = " in done.stdout
    assert (tmp_path / "r" / "bounds" / "convergence-70.png").is_file()
    told = bounds.__doc__
    for table in ("convergence", "sensitivity"):
        header = (tmp_path / "r" / "bounds" / f"{table}.csv").read_text().partition("\n")[0]
        assert all(column in told for column in header.split(","))
    done = called(bounds.main, f"--out={tmp_path}", "--clients=5,x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "jaxfed: --clients=5,x: use numbers, with commas between them\n"
