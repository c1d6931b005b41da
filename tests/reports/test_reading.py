"""Reports: how they read to people, and that files of other kinds are refused in a line."""

import re

import numpy as np
import pytest
from small_workdirs import ACCURACIES, make_run, make_sweep
from whole_figures import assert_nothing_is_cut, run_figures

from jaxfed.algorithms import ALGORITHMS
from jaxfed.experiment.store.records import measure, read_run
from jaxfed.reports import figures, partition_figure
from jaxfed.reports.names import USUAL, algorithm_label, setting_text
from jaxfed.reports.page import _PIXELS_PER_INCH
from jaxfed.reports.report import build, write_report
from jaxfed.reports.style import PALETTE, algorithm_styles

# Of a screen, less the paddings of main and figure and the scroll bar.
PAGE_WIDTH = 1280 - 2 * 20 - 2 * 18 - 15


def test_every_method_has_a_title_in_tables_and_settings():
    assert all(algorithm_label(n) != n for n in ALGORITHMS if n not in ALGORITHMS.from_outside())
    assert setting_text("fedavg_xclp", "algorithm") == "FedAvg + XCLP"
    assert setting_text(["fedavg", "scaffold"], "baselines") == "FedAvg, SCAFFOLD"
    assert setting_text("cnn", "model.name") == "cnn"
    assert USUAL.difference("fedavg_xclp", "fedavg") == "(FedAvg + XCLP) − FedAvg"


def test_numbers_of_a_page_do_not_break_and_tables_scroll(tmp_path):
    make_run(tmp_path / "r", {"xclp": (0.81, 0.84), "fedavg": (0.81, 0.85)})
    page = write_report([tmp_path]).read_text()
    cells = re.findall(r"<td.*?>(.*?)</td>", page)
    assert "82.50\xa0±\xa02.12" in cells
    assert not [cell for cell in cells if re.search(r"\d [±k%]|± ", cell)]
    assert page.count("<table>") == page.count('<div class="scroll" tabindex="0"><table>') > 0


def test_letters_are_alike_in_all_plots(tmp_path):
    run = read_run(make_run(tmp_path / "r", {"xclp": (0.1, 0.3)}, rounds=3))
    shown = run_figures(run)
    widths = re.findall(
        r'<img [^>]* width="(\d+)"', write_report([tmp_path], tmp_path / "out").read_text()
    )
    assert list(map(int, widths)) == [
        round(_PIXELS_PER_INCH * figure.get_figwidth()) for figure in shown.values()
    ]
    many = np.ones((40, 10), int)
    large = [
        partition_figure.partition_figure(c, c, c) for c in (many, many.T, np.ones((100, 100)))
    ]
    for figure in (*shown.values(), *large):
        # Nothing is scaled down to fit, so a point is everywhere as large.
        assert _PIXELS_PER_INCH * figure.get_figwidth() < PAGE_WIDTH
        figure.draw_without_rendering()
        labels = [t for ax in figure.axes for t in (*ax.get_xticklabels(), *ax.get_yticklabels())]
        assert {label.get_fontsize() for label in labels if label.get_text()} == {9}


@pytest.mark.parametrize("metric", ["pseudo_labeled", "test_accuracy"])
def test_shares_end_where_shares_end(metric):
    limit = 100 if metric == "test_accuracy" else 1
    values = measure([0.9, 1.0, 1.0])
    for figure, axis in (
        (figures.rounds_figure({"xclp": [(1, values), (2, values)]}, metric), "y"),
        (figures.curve_figure("xclp.alpha", [0.5, 0.9], {"xclp": [values] * 2}, metric), "y"),
        (figures.methods_figure({"xclp": {metric: values}}, metric), "x"),
    ):
        (ax,) = figure.axes
        low, high = getattr(ax, f"get_{axis}lim")()
        assert low >= 0
        assert high <= limit
        assert_nothing_is_cut(figure)


def test_a_failed_point_says_why(tmp_path):
    sweep = make_sweep(
        tmp_path / "sweep",
        [
            ("good", {"xclp.num_bits": 64}, ACCURACIES),
            ("bad", {"xclp.num_bits": 512}, None),
            ("left", {"xclp.num_bits": 4096}, None),
        ],
        {"xclp.num_bits": 4096},
    )
    (sweep / "logs").mkdir()
    (sweep / "logs" / "bad.failure").write_text("exit status 2: jaxfed: <no> data")
    (section,) = build([sweep])
    assert [path.rpartition("/")[2] for path in section.missing] == ["bad", "left"]
    table, gains = section.tables
    assert [row[1].text for row in table.rows] == ["finished", "failed", "not started"]
    assert [row[0].text for row in gains.rows] == ["64", "ahead", "behind"]
    page = write_report([sweep]).read_text()
    assert re.search(
        r"<li>failed: <code>.*bad</code>, exit status 2: jaxfed: &lt;no&gt; data", page
    )
    assert re.search(r"<li>no results yet: <code>.*left</code></li>", page)
    assert "- failed: `" in (sweep / "report" / "report.md").read_text()


def test_colors_of_the_first_methods_are_their_own():
    styles = algorithm_styles(["xclp", *ALGORITHMS])
    assert styles["xclp"]["color"] == PALETTE[0]
