"""launch.bounds: files with the numbers of the proposition, mistakes in one line."""

import csv

import numpy as np
from invoking import called

from jaxfed.reports.bounds import convergence_figure, write_bounds
from jaxfed.training.consensus import change_probability
from launch import bounds


def test_files_hold_the_bounds(tmp_path):
    lines = write_bounds(tmp_path / "b", (3, 5), (1.0,), (1, 400), (0.05,))
    assert {path.name for path in (tmp_path / "b").iterdir()} == {
        *("convergence-1.png", "convergence-400.png", "convergence.csv"),
    }
    with (tmp_path / "b" / "convergence.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            sizes = (int(row[key]) for key in ("num_clients", "num_public", "rounds"))
            assert float(row["delta"]) == change_probability(*sizes, float(row["c"]))
    assert len(lines) == 4
    assert lines[1].startswith("m = 5  c = 1.0  |U| = 1  delta = 0.05  t_0 = ")
    first = int(lines[1].rpartition(" ")[2].replace(",", ""))
    assert change_probability(5, 1, first, 1.0) <= 0.05 < change_probability(5, 1, first - 1, 1.0)


def test_lines_of_convergence_are_the_bound():
    figure = convergence_figure((3, 7), (1.0, 4.0), num_public=50)
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


def test_the_command(tmp_path):
    done = called(bounds.main, f"--out={tmp_path}", "--public=70", "--rates=1", "--deltas=0.05")
    assert (done.returncode, done.stderr) == (0, "")
    assert "m = 5  c = 1.0  |U| = 70" in done.stdout
    assert (tmp_path / "convergence-70.png").is_file()
    header = (tmp_path / "convergence.csv").read_text().partition("\n")[0]
    assert all(column in bounds.__doc__ for column in header.split(","))
    done = called(bounds.main, f"--out={tmp_path}", "--clients=5,x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "jaxfed: --clients=5,x: use numbers, with commas between them\n"
