"""Reports: how they read to people, and that files of other kinds are refused in a line."""

import re

import pytest
from small_workdirs import ACCURACIES, make_run, make_sweep
from whole_figures import assert_nothing_is_cut

from jaxfed.algorithms import ALGORITHMS
from jaxfed.experiment.store.records import measure
from jaxfed.reports import figures
from jaxfed.reports.names import algorithm_label, setting_text
from jaxfed.reports.report import build, write_report


def test_every_method_has_a_title_in_tables_and_settings():
    assert all(algorithm_label(n) != n for n in ALGORITHMS if n not in ALGORITHMS.from_outside())
    assert setting_text("fedavg_xclp", "algorithm") == "FedAvg + XCLP"
    assert setting_text(["fedavg", "scaffold"], "baselines") == "FedAvg, SCAFFOLD"
    assert setting_text("cnn", "model.name") == "cnn"


def test_numbers_of_a_page_do_not_break_and_tables_scroll(tmp_path):
    make_run(tmp_path / "r", {"xclp": (0.81, 0.84), "fedavg": (0.81, 0.85)})
    page = write_report([tmp_path]).read_text()
    cells = re.findall(r"<td.*?>(.*?)</td>", page)
    assert "82.50\xa0±\xa02.12" in cells
    assert not [cell for cell in cells if re.search(r"\d [±k%]|± ", cell)]
    assert page.count("<table>") == page.count('<div class="scroll" tabindex="0"><table>') > 0


@pytest.mark.parametrize(
    ("metric", "values", "span"),
    [
        ("test_accuracy", [0.7, 0.7001], 5),
        ("test_accuracy", [1.0, 1.0], 5.5),  # the axis ends at 100
        ("test_accuracy", [0.1, 0.9], 88),  # a wide axis stays as it is
        ("pseudo_labeled", [0.4, 0.4001], 0.1),
        ("train_loss", [2.0, 2.0001], 0.2),
    ],
)
def test_an_axis_is_no_shorter_than_noise(metric, values, span):
    rounds = {"xclp": [(i, measure([value])) for i, value in enumerate(values)]}
    (ax,) = figures.rounds_figure(rounds, metric).axes
    low, high = ax.get_ylim()
    assert high - low == pytest.approx(span, rel=0.02)


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


def test_points_without_results_are_named(tmp_path):
    sweep = make_sweep(
        tmp_path / "sweep",
        [
            ("good", {"xclp.num_bits": 64}, ACCURACIES),
            ("bad", {"xclp.num_bits": 512}, None),
            ("left", {"xclp.num_bits": 4096}, None),
        ],
        {"xclp.num_bits": 4096},
    )
    (section,) = build([sweep])
    assert [path.rpartition("/")[2] for path in section.missing] == ["bad", "left"]
    table, gains = section.tables
    assert [*table.texts.iloc[1:, -1]] == ["–", "–"]
    assert [*gains.texts.iloc[:, 0]] == ["64", "ahead", "behind"]
    page = write_report([sweep]).read_text()
    assert re.search(r"<li>no results yet: <code>.*left</code></li>", page)
