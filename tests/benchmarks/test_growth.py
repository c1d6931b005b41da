"""launch.growth: figures with ours, peers and limits, out of files of launch.bench; mistakes in one line."""

import csv
import json

import numpy as np
import pytest
from invoking import called
from matplotlib.colors import to_hex
from whole_figures import assert_nothing_is_cut

from benchmarks.growth.document import read_growths, write_growth
from benchmarks.growth.figure import growth_figure
from jaxfed.errors import UsageError
from launch import growth

SEARCH = {"num_bits": 64}
GIGA = 1e9


def row(n, task="search", case=None, *, slow=None, part=None, doubt=None, rate=GIGA, **more):
    """Ours takes n^2 ns, the peer ten times that; the limit is n^2 / 2 ns of a rate of 1 G."""
    ours, peer = n * n / GIGA, n * n / GIGA * 10
    seconds = {"jaxfed": [ours / 2, ours, ours * 2], "peer": [peer] * 3}
    if slow is not None:
        del seconds["peer"]
    return {
        "task": task,
        "case": {"n": n, **(SEARCH if case is None else case)},
        "seconds": seconds,
        "median_seconds": {name: times[1] for name, times in seconds.items()},
        "peers": {name: {"scaled_from_part": part, "unreliable": doubt} for name in [*seconds][1:]},
        "left_out": {} if slow is None else {"peer": slow},
        "operation": "popcount_bits",
        "operations_per_second": n * n / 2 / ours,
        "share_of_machine_limit": n * n / 2 / ours / rate,
        **more,
    }


def bench_file(path, *rows, device="a CPU"):
    path.write_text(json.dumps({"environment": {"device": device}, "contests": rows}))
    return path


def lines_of(figure):
    return {line.get_label(): line for line in figure.axes[0].lines}


def test_lines_are_medians_and_the_limit_is_what_the_task_needs(tmp_path):
    rows = [row(100), row(1000, doubt="busy"), row(10_000, part=0.25), row(100_000, slow=123.4)]
    (growth,) = read_growths([bench_file(tmp_path / "b.json", *rows[::-1])])
    figure = growth_figure(growth)
    ax, lines = figure.axes[0], lines_of(figure)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert ax.get_title(loc="left") == "Search"
    assert ax.get_xlabel() == "Points n (num_bits=64)"
    assert [text.get_text() for text in ax.get_xticklabels()] == [
        *("100", "1,000", "10,000", "100,000")
    ]
    n = np.array([100, 1000, 10_000, 100_000])
    np.testing.assert_allclose(lines["jaxfed"].get_xydata(), np.stack([n, n**2 / GIGA], 1))
    peer = lines["peer (left out from 100,000 on: 123 s)"]
    np.testing.assert_allclose(peer.get_xydata(), np.stack([n, n**2 / GIGA * 10], 1)[:3])
    limit = lines["Limit: popcount units, 1.0 Gbit/s"]
    assert limit.get_linestyle() == "--"
    np.testing.assert_allclose(limit.get_xydata(), np.stack([n, n**2 / 2 / GIGA], 1))
    signs = [
        (line.get_marker(), *line.get_xydata()[0])
        for line in ax.lines
        if len(line.get_xydata()) == 1
    ]
    assert signs == [("x", 1000, pytest.approx(0.01)), ("s", 10_000, pytest.approx(1.0))]
    assert {"scaled up from a part", "in doubt: growth.csv says why"} <= lines.keys()
    assert to_hex(lines["jaxfed"].get_color()) != to_hex(peer.get_color())
    band = ax.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((5e-6, 20.0))
    assert_nothing_is_cut(figure)


def test_one_figure_a_case_and_none_of_a_single_size(tmp_path):
    files = [
        bench_file(
            tmp_path / "one.json",
            *(row(n, "spread", {"C": c}) for n in (100, 200) for c in (10, 62)),
            row(100),
            row(200),
            row(100, "alone"),
            {"task": "search", "case": {"n": 300, **SEARCH}, "error": "out of memory"},
            row(5, "no number", {"n": "many"}),
        ),
        bench_file(tmp_path / "two.json", row(100, part=0.5, rate=2 * GIGA)),
    ]
    figures = write_growth(files, tmp_path / "out" / "deep")
    names = ["spread_c_10.png", "spread_c_62.png", "search.png"]
    assert [path.name for path in figures] == names
    assert all(path.is_file() for path in figures)
    with (tmp_path / "out" / "deep" / "growth.csv").open() as file:
        table = list(csv.DictReader(file))
    assert len(table) == 3 * 2 * 2
    peer = {
        int(line["n"]): line
        for line in table
        if (line["task"], line["contestant"]) == ("search", "peer")
    }
    assert [peer[n]["scaled_from_part"] for n in (100, 200)] == ["0.5", ""], "the last file counts"
    assert float(peer[100]["seconds"]) == pytest.approx(1e-4)
    # The best rate that the files have measured is the limit.
    assert float(peer[200]["limit_seconds"]) == pytest.approx(200**2 / 2 / (2 * GIGA))


def test_memory_is_a_limit_too_and_a_task_may_have_none(tmp_path):
    moved = {"bytes_per_second": 1e8, "share_of_machine_bandwidth": 0.25}
    counted = {"operation": "", "operations_per_second": 0, "share_of_machine_limit": 0}
    rows = [row(n, "graph", {}, **counted, **moved) for n in (100, 200)]
    rows += [row(n, "bare", {}, **counted) for n in (100, 200)]
    graph, bare = map(growth_figure, read_growths([bench_file(tmp_path / "b.json", *rows)]))
    limit = lines_of(graph)["Limit: memory, 400.0 MB/s"]
    np.testing.assert_allclose(limit.get_ydata(), [0.25 * 1e-5, 0.25 * 4e-5])
    assert lines_of(bare).keys() == {"jaxfed", "peer"}
    assert bare.axes[0].get_xlabel() == "Points n"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", r"^cannot read .*bad.json: "),
        ("{}", r"bad.json was not written by launch.bench: has no 'environment'$"),
        (
            json.dumps({"environment": {"device": "a CPU"}, "contests": [row(100)]}),
            r"bad.json: no task at several numbers of points; launch.bench --points=1000,10000 has",
        ),
    ],
)
def test_files_that_cannot_be_drawn(tmp_path, content, told):
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(UsageError, match=told):
        write_growth([tmp_path / "bad.json"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_files_of_two_machines(tmp_path):
    files = [
        bench_file(tmp_path / f"{name}.json", row(100), row(200), device=name) for name in "ab"
    ]
    with pytest.raises(UsageError, match=r"a.json is of a, .*b.json of b: give files of one mach"):
        read_growths(files)


def test_the_command(tmp_path):
    done = called(growth.main, bench_file(tmp_path / "b.json", row(100), row(200)))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path / 'growth' / 'search.png'}\n"
    assert (tmp_path / "growth" / "growth.csv").is_file()
