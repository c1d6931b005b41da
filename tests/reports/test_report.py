"""Reports: numbers in tables and CSV, curves found in sweeps, what plots show, one page alone."""

import csv
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from small_workdirs import ACCURACIES, PER_CLIENT, XCLP, make_run, make_sweep
from whole_figures import assert_nothing_is_cut

from jaxfed.errors import UsageError
from jaxfed.experiment.records import (
    Measurement,
    Point,
    Sweep,
    find,
    measure,
    read_metrics,
    read_run,
)
from jaxfed.paper_numbers import PAPER_TABLES, paper_table
from jaxfed.reports import axes, partition_figure, plots, tables
from jaxfed.reports.curves import beside_curves, curves, swept_keys
from jaxfed.reports.report import build, write_report
from jaxfed.reports.style import DARK, LIGHT, algorithm_styles, measurement_text, setting_text

ROOT = Path(__file__).parents[2]


def sweep_of(base, *overrides):
    points = tuple(Point(str(index), values, None) for index, values in enumerate(overrides))
    return Sweep(Path("x"), "a.py", "", "", base, points)


# ------------------------------------------------------------------ reading


def test_deviation_is_that_of_a_sample():
    assert measure([1.0, 2.0, 6.0]) == Measurement(3.0, pytest.approx(7**0.5), (1.0, 2.0, 6.0))
    assert measure([0.5]).std is None


def test_results_are_in_a_fixed_order_and_flat(tmp_path):
    run = read_run(make_run(tmp_path / "r"))
    assert list(run.results) == ["xclp", "per_client_lp", "pooled_lp"]
    assert run.results["xclp"]["communication.upload_bytes"].mean == 1e6
    assert "undefined" not in run.results["xclp"]


def test_half_a_line_of_metrics_is_left_out(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"round": 1}\n{"rou')
    assert read_metrics(tmp_path) == [{"round": 1}]


def test_find_takes_each_run_once(tmp_path):
    make_run(tmp_path / "a" / "deep" / "one")
    make_sweep(tmp_path / "s", [("p", {"seed": 1}, ACCURACIES)], {"seed": 7})
    found = find([tmp_path, tmp_path / "a", tmp_path / "s" / "p"])
    assert [run.name for run in found.runs] == ["one"]
    assert [sweep.name for sweep in found.sweeps] == ["s"]


@pytest.mark.parametrize("case", ["missing", "empty", "broken", "list", "foreign"])
def test_a_bad_workdir_is_one_line(tmp_path, case):
    path = tmp_path / "w"
    if case != "missing":
        path.mkdir()
    if case == "broken":
        (path / "config.json").write_text("{\n!")
    if case == "list":
        (path / "config.json").write_text("[]")
    if case == "foreign":
        (path / "sweep.json").write_text("{}")
    with pytest.raises(UsageError) as error:
        build([path])
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


# ------------------------------------------------------------------ curves


@pytest.mark.parametrize(
    ("base", "points", "expected", "rest"),
    [
        # One key at a time; the base is a point of both curves.
        (
            {"L": 4, "a": 9},
            [{"L": 8}, {"L": 4}, {"L": 2}, {"a": 1}],
            {("L",): [2, 4, 8], ("a",): [1, 9]},
            0,
        ),
        # Two lone points on different axes, off the base: nothing to join.
        ({"L": 4, "a": 9}, [{"L": 8}, {"a": 1}], {}, 2),
        # A grid: one family along the longer axis, and the other axis at the base.
        (
            {"L": 4, "a": 1},
            [{"L": length, "a": a} for a in (1, 2) for length in (2, 4, 8)],
            {("L",): [2, 4, 8], ("L", ("a", 2)): [2, 4, 8], ("a",): [1, 2]},
            0,
        ),
        # Names that go with every point: each curve once for each of them.
        (
            {"L": 4, "a": 9, "g": "y"},
            [p | {"g": g} for p in ({"L": 8}, {"L": 4}, {"a": 1}) for g in ("x", "y")],
            {
                ("L",): [4, 8],
                ("L", ("g", "x")): [4, 8],
                ("a",): [1, 9],
                ("a", ("g", "x")): [1, 9],
                ("g",): ["x", "y"],
            },
            0,
        ),
        # One is missing: not with every point.
        (
            {"L": 4, "a": 9, "g": "y"},
            [{"L": 8}, {"L": 4}, {"L": 2}, {"a": 1}, {"a": 1, "g": "x"}, {"g": "x"}],
            {("L",): [2, 4, 8], ("a",): [1, 9], ("g",): ["y", "x"]},
            1,
        ),
        # A key set to one and the same value everywhere is no axis.
        ({"L": 4, "a": 1}, [{"L": 2, "a": 5}, {"L": 4, "a": 5}], {("L",): [2, 4]}, 0),
        # Names keep their order, lists are values too.
        ({"t": [1]}, [{"t": [2]}, {"t": [1]}], {("t",): [[2], [1]]}, 0),
        ({"g": "x"}, [{"g": "y"}, {"g": "x"}], {("g",): ["y", "x"]}, 0),
        ({"L": 4}, [{"L": 4}], {}, 1),
    ],
)
def test_curves(base, points, expected, rest):
    sweep = sweep_of(base, *points)
    found = curves(sweep)
    assert {(curve.key, *curve.fixed.items()): list(curve.values) for curve in found} == expected
    assert len(beside_curves(sweep, found)) == rest


def test_swept_keys_are_those_that_vary():
    assert swept_keys(sweep_of({"L": 4, "a": 1}, {"L": 4}, {"L": 2, "a": 1})) == ["L"]


# ------------------------------------------------------------------ tables


@pytest.mark.parametrize(
    ("name", "mean", "std", "text"),
    [
        ("test_accuracy", 0.93456, 0.01, "93.46 ± 1.00"),
        ("test_accuracy", 1.0, None, "100.00"),
        ("seconds", 12.345, 0.5, "12.3 ± 0.5 s"),
        ("communication.upload_bytes", 920_064.0, 0.0, "920 ± 0 kB"),
        ("communication.upload_bytes", 12.0, None, "12 B"),
        ("communication.upload_bytes", 1.5e9, None, "1.50 GB"),
        ("unreached", 0.0, 0.0, "0 ± 0"),
        ("cosine_rmse", 0.01334, None, "0.0133"),
    ],
)
def test_measurement_text(name, mean, std, text):
    assert measurement_text(name, Measurement(mean, std, (mean,))) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.1, "0.1"), (1e-7, "1e-07"), ([1, 0.5], "1, 0.5"), ("", "none"), (3, "3")]
)
def test_setting_text(value, text):
    assert setting_text(value) == text


def test_run_table_by_hand(tmp_path):
    table = tables.run_table(read_run(make_run(tmp_path / "r")), "r")
    cells = {row[0].text: row[1] for row in table.rows}
    # 0.80, 0.84, 0.88: mean 0.84, sample deviation 0.04; 0.70, 0.76, 0.76: 0.74 and sqrt(0.0012)
    assert cells["XCLP"] == ("84.00 ± 4.00", True)
    assert cells["Per-client LP"] == ("74.00 ± 3.46", False)
    # Pooled data are no federated method: never bold, however good.
    assert cells["LP on pooled data"] == ("90.00 ± 0.00", False)
    # Seed by seed: 0.10, 0.08, 0.12
    assert cells["XCLP − Per-client LP"].text == "+10.00 ± 2.00"
    assert cells["XCLP − LP on pooled data"].text == "−6.00 ± 4.00"
    facts = dict(table.provenance)
    assert facts["seeds"] == "7, 8, 9"
    assert facts["commit"] == "0123456789ab with uncommitted changes"
    assert facts["device"] == "<cpu & co>"
    assert "divisor n − 1" in table.caption


@pytest.mark.parametrize(
    ("xclp", "per_client", "bold"),
    [
        # 0.10, 0.08, 0.12: mean 0.10, standard error 0.0115.
        (XCLP, PER_CLIENT, {"XCLP"}),
        # 0.02, 0.08, -0.01: mean 0.03, standard error 0.026.
        (XCLP, (0.78, 0.76, 0.89), {"XCLP", "Per-client LP"}),
        # The same mean gain, alike in every seed.
        (XCLP, (0.77, 0.81, 0.85), {"XCLP"}),
        ((0.5, 0.6), (0.5, 0.6), {"XCLP", "Per-client LP"}),
        # One seed: how large the noise is, is not known.
        ((0.5,), (0.49,), {"XCLP"}),
        ((0.5,), (0.5,), {"XCLP", "Per-client LP"}),
    ],
)
def test_a_gain_within_noise_is_not_bold_alone(tmp_path, xclp, per_client, bold):
    accuracies = {"xclp": xclp, "per_client_lp": per_client, "pooled_lp": xclp}
    run = read_run(make_run(tmp_path / "r", accuracies))
    table = tables.run_table(run, "r")
    assert {row[0].text for row in table.rows if row[1].best} == bold
    rows = tables.settings_table("s", "s", ["seed"], [tables.Row([7], run)], "test_accuracy")
    heads = zip(rows.columns, rows.rows[0], strict=True)
    assert {head for head, cell in heads if cell.best} == bold
    assert "at most two standard errors" in table.caption
    assert "at most two standard errors" in rows.caption


@pytest.mark.parametrize(
    ("labels", "shown"),
    [
        ({}, "federation.labeled_fraction=0.1"),
        ({"federation__num_labeled": 20}, "federation.num_labeled=20"),
        ({"federation__num_labeled": 0}, "federation.labeled_fraction=0.1"),
        (
            {"federation__num_labeled": 20, "federation__labeled_per_class": 3},
            "federation.labeled_per_class=3",
        ),
    ],
)
def test_provenance_says_how_many_labels_there_are(tmp_path, labels, shown):
    run = read_run(make_run(tmp_path / "r", **labels))
    settings = dict(tables.run_table(run, "r").provenance)["config"].split(", ")
    assert [text for text in settings if "label" in text] == [shown]


def test_csv_has_the_numbers_unrounded(tmp_path):
    run = read_run(make_run(tmp_path / "r"))
    tables.run_table(run, "r").write_csv(tmp_path / "t" / "r.csv")
    with (tmp_path / "t" / "r.csv").open(newline="") as stream:
        rows = {(row["algorithm"], row["metric"]): row for row in csv.DictReader(stream)}
    row = rows["per_client_lp", "test_accuracy"]
    assert float(row["mean"]) == np.mean(PER_CLIENT)
    assert float(row["std"]) == np.std(PER_CLIENT, ddof=1)
    assert tuple(map(float, row["values"].split())) == PER_CLIENT
    assert row["num_repeats"] == "3"


def test_one_repeat_has_no_deviation(tmp_path):
    run = read_run(make_run(tmp_path / "r", {"xclp": (0.5,), "client_knn": (0.25,)}))
    rows = {row[0].text: row[1].text for row in tables.run_table(run, "r").rows}
    assert rows == {"XCLP": "50.00", "Client kNN": "25.00", "XCLP − Client kNN": "+25.00"}


def test_overview_says_what_differs_and_what_is_unfinished(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", federation__labeled_fraction=0.05, finished=False)
    (section, *_) = build([tmp_path])
    (table,) = section.tables
    assert table.columns[:3] == ("run", "labeled fraction", "state")
    assert [row[1].text for row in table.rows] == ["0.1", "0.05"]
    assert [row[2].text for row in table.rows] == ["finished", "unfinished"]
    assert [row[3].text for row in table.rows] == ["84.00 ± 4.00", "–"]
    assert table.columns[-1] == "XCLP − Per-client LP"


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_papers_tables_are_whole(name):
    table = paper_table(name)
    assert {len(row) for row in table.rows.values()} == {len(table.columns)}
    assert all(0 < mean < 100 and 0 < std < 4 for row in table.rows.values() for mean, std in row)
    shown = tables.paper_orientation(table, "p")
    assert table.data in shown.title
    assert "other data" in shown.caption


@pytest.mark.parametrize(
    ("name", "setting", "column", "cell"),
    [
        ("xclp/1", "18597", "pretrained: per-client LP", (55.10, 0.51)),
        ("xclp/2", "2", "FedAvg", (68.75, 0.72)),
        ("xclp/3", "0.05", "XCLP (labeled+unlabeled)", (49.50, 1.42)),
        ("xclp/6", "0.1", "identity: XCLP", (49.29, 0.16)),
    ],
)
def test_papers_numbers(name, setting, column, cell):
    table = paper_table(name)
    assert table.rows[setting][table.columns.index(column)] == cell


def test_an_unknown_paper_table_is_named():
    with pytest.raises(UsageError, match="'xclp/9'"):
        paper_table("xclp/9")


# ------------------------------------------------------------------ plots


def lines_of(figure):
    """Label -> (x, y) of the lines that carry error bars."""
    (ax,) = figure.axes
    containers = {c.get_label(): c.lines[0] for c in ax.containers}
    return {
        name: (list(line.get_xdata()), list(line.get_ydata())) for name, line in containers.items()
    }


def test_curve_figure_shows_the_numbers():
    series = {
        "xclp": [measure(XCLP), None, measure([0.5])],
        "per_client_lp": [measure(PER_CLIENT)] * 3,
    }
    figure = plots.curve_figure("xclp.num_bits", [64, 512, 4096], series, "test_accuracy")
    (ax,) = figure.axes
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("LSH bits L", "Test accuracy [%]")
    assert ax.get_xscale() == "log"
    lines = lines_of(figure)
    assert lines["XCLP"] == ([64, 4096], [pytest.approx(84), 50])
    assert len(lines["Per-client LP"][0]) == 3
    bar = ax.containers[0].lines[2][0].get_segments()[0]
    np.testing.assert_allclose(bar[:, 1], [80, 88])
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["64", "512", "4096"]


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([64, 8192], "log"),
        ([0.05, 0.1, 0.2, 1.0], "log"),
        ([0.5, 0.9, 0.99], "logit"),
        ([1, 2, 3], "linear"),
        ([0, 100], "linear"),
        ([-1, 5], "linear"),
        ([5], "linear"),
    ],
)
def test_scale_for(values, scale):
    assert axes.scale_for(values) == scale


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("federation.graph", ["labeled", "labeled+unlabeled"]),
        ("federation.left_out_client", [0, 1, 2]),
        ("xclp.class_balanced", [False, True]),
        ("federation.table", [[1], [2]]),
    ],
)
def test_names_are_not_joined_by_lines(key, values):
    series = {"xclp": [measure(XCLP)] * len(values)}
    figure = plots.curve_figure(key, values, series, "test_accuracy")
    assert figure.axes[0].containers[0].lines[0].get_linestyle() == "None"
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == list(
        map(setting_text, values)
    )


def test_cosine_error_figure_has_theory_beside_measurements():
    measured, theory = [measure([0.1, 0.2])] * 2, [measure([0.1]), measure([0.05])]
    figure = plots.cosine_error_figure([64, 256], measured, theory)
    (ax,) = figure.axes
    assert ax.get_yscale() == "log"
    (line,) = [line for line in ax.lines if line.get_label() == "Theory"]
    assert list(line.get_ydata()) == [0.1, 0.05]


def test_rounds_are_shown_for_methods_that_have_several(tmp_path):
    run = read_run(make_run(tmp_path / "r", {"xclp": (0.1, 0.3)}, rounds=3))
    rounds = plots.rounds_by_algorithm(read_metrics(run.workdir), "test_accuracy")
    assert [number for number, _ in rounds["xclp"]] == [1, 2, 3]
    assert rounds["xclp"][1][1].mean == pytest.approx(0.4)
    figure = plots.rounds_figure(rounds, "test_accuracy")
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), [20, 40, 60])
    assert set(plots.run_figures(run)) == {"algorithms", "rounds", "partition"}


def make_training_run(path):
    """Two methods, two repeats, four rounds: validated at the start and every second, pseudo-labels late."""
    make_run(path, {"fedavg_xclp": (0.8, 0.9), "fedavg": (0.5, 0.6)})
    lines = []
    for name, final in (("fedavg_xclp", (0.8, 0.9)), ("fedavg", (0.5, 0.6))):
        for repeat, value in enumerate(final):
            start = {"repeat": repeat, "algorithm": name, "round": 0, "validation_accuracy": 0.1}
            lines.append(start)
            for number in (1, 2, 3, 4):
                line = {"repeat": repeat, "algorithm": name, "round": number, "train_loss": 1.0}
                if number % 2 == 0:
                    line["validation_accuracy"] = value * number / 4
                if number > 2 and name == "fedavg_xclp":
                    line |= {"pseudo_labeled": 0.5 + 0.1 * number, "pseudo_label_weight": None}
                if number == 4:
                    line["test_accuracy"] = value
                lines.append(line)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (path / "metrics.jsonl").write_text(text)
    return path


def test_validation_and_pseudo_labels_are_shown_over_rounds(tmp_path):
    run = read_run(make_training_run(tmp_path / "r"))
    figures = plots.run_figures(run)
    # Tested once: no curve of that. A metric that is never a number: none either.
    assert set(figures) == {
        *("algorithms", "train_loss", "validation", "pseudo_labeled", "partition"),
    }
    (ax,) = figures["validation"].axes
    plain, ours = ax.lines
    np.testing.assert_array_equal(ours.get_xdata(), [0, 2, 4])
    np.testing.assert_allclose(ours.get_ydata(), [10, 42.5, 85])
    np.testing.assert_allclose(plain.get_ydata(), [10, 27.5, 55])
    _, band = ax.collections
    deviation = 100 * np.std([0.8, 0.9], ddof=1)
    y = band.get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose((y.min(), y.max()), (10, 85 + deviation))
    assert ax.get_ylabel() == "Validation accuracy [%]"
    (line,) = figures["pseudo_labeled"].axes[0].lines
    np.testing.assert_allclose(line.get_ydata(), [0.8, 0.9])
    for figure in figures.values():
        assert_nothing_is_cut(figure)


def test_a_report_holds_the_curves_of_training(tmp_path):
    path = write_report([make_training_run(tmp_path / "r")])
    names = {picture.name for picture in (path.parent / "plots").iterdir()}
    assert names >= {"r-validation.png", "r-pseudo-labeled.png"}
    assert "the band is one sample deviation" in path.read_text()


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("num_clients", "num_classes", "num_axes"),
    # Bubbles: training and new data. Heat maps: three kinds, each with its scale of colors.
    [(1, 2, 2), (10, 10, 2), (100, 10, 6), (100, 100, 6), (3, 200, 6)],
)
def test_partition_figures(num_clients, num_classes, num_axes, theme):
    counts = np.random.default_rng(0).integers(0, 50, (num_clients, num_classes))
    figure = partition_figure.partition_figure(counts // 10, counts, counts // 3, theme=theme)
    assert isinstance(figure, Figure)
    assert len(figure.axes) == num_axes
    assert_nothing_is_cut(figure)


MANY = ["xclp", "per_client_lp", "client_knn", "pooled_lp", "a_method_of_a_long_name", "fed_avg"]


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(
    "draw",
    [
        lambda theme: plots.algorithms_figure(
            {name: {"test_accuracy": measure(XCLP)} for name in MANY},
            ["test_accuracy"],
            theme=theme,
        ),
        lambda theme: plots.algorithms_figure(
            {"xclp": {name: measure(XCLP) for name in ("a_accuracy", "b_accuracy", "loss")}},
            ["a_accuracy", "b_accuracy", "loss"],
            theme=theme,
        ),
        lambda theme: plots.curve_figure(
            "xclp.num_bits",
            [2**power for power in range(6, 14)],
            {name: [measure(XCLP)] * 8 for name in MANY},
            "test_accuracy",
            title="labeled fraction 0.1, graph labeled+unlabeled",
            theme=theme,
        ),
        lambda theme: plots.curve_figure(
            "federation.graph",
            ["a rather long name of a setting"] * 5,
            {"xclp": [measure([0.5])] * 5},
            "test_accuracy",
            theme=theme,
        ),
        lambda theme: plots.cosine_error_figure(
            [64], [measure([0.1, 0.1])], [measure([0.1])], theme=theme
        ),
        lambda theme: plots.rounds_figure(
            {"xclp": [(1, measure(XCLP)), (2, measure(XCLP))]}, "test_accuracy", theme=theme
        ),
    ],
    ids=["methods", "metrics", "many lines", "long names", "one point", "rounds"],
)
def test_nothing_is_cut(draw, theme):
    assert_nothing_is_cut(draw(theme))


def test_bubbles_have_areas_of_counts():
    figure = partition_figure.partition_figure([[1, 0], [0, 4]], [[7, 2], [0, 12]])
    training, labeled = (collection.get_sizes() for collection in figure.axes[0].collections)
    np.testing.assert_allclose(training / training.max(), [8 / 16, 2 / 16, 1])
    np.testing.assert_allclose(labeled / training.max(), [1 / 16, 4 / 16])


@pytest.mark.parametrize(
    ("labeled", "unlabeled", "names"),
    [([1, 2], [1, 2], None), ([[1, 2]], [[1, 2, 3]], None), ([[1, 2]], [[1, 2]], ["one"])],
)
def test_partition_figure_refuses_what_does_not_fit(labeled, unlabeled, names):
    with pytest.raises(ValueError, match=r"counts must|class names"):
        partition_figure.partition_figure(labeled, unlabeled, class_names=names)


def test_methods_look_the_same_everywhere_and_differ():
    alone = algorithm_styles(["fed_avg"], LIGHT)["fed_avg"]
    names = ["xclp", "per_client_lp", "client_knn", "pooled_lp", "fed_avg", "fed_prox", "scaffold"]
    together = algorithm_styles(names, LIGHT)
    assert together["fed_avg"] == alone
    assert len({style["color"] for style in together.values()}) == len(names)
    assert together["xclp"]["color"] == algorithm_styles(["xclp"], LIGHT)["xclp"]["color"]


# ------------------------------------------------------------------ the page


class Page(HTMLParser):
    """All references of a page, and whether its tags close in order."""

    VOID = frozenset({"meta", "img", "source", "br", "circle", "path"})

    def __init__(self, text):
        super().__init__()
        self.open, self.references, self.text, self.tags = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [v for k, v in attrs if k in ("src", "srcset", "href", "action", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_report_of_everything(tmp_path):
    work = tmp_path / "work"
    make_run(work / "one", paper_table="xclp/3")
    make_run(work / "two", dataset__name="<b>odd & data</b>")
    make_run(work / "half", finished=False)
    make_sweep(
        work / "bits",
        [
            ("L64", {"xclp.num_bits": 64}, {"xclp": (0.5, 0.6, 0.7), "per_client_lp": PER_CLIENT}),
            ("L512", {"xclp.num_bits": 512}, ACCURACIES),
            ("a5", {"xclp.alpha": 0.5}, ACCURACIES),
            ("L4096", {"xclp.num_bits": 4096}, ACCURACIES),
            ("L8", {"xclp.num_bits": 8192}, None),
        ],
        {"xclp.num_bits": 4096, "xclp.alpha": 0.99},
    )
    path = write_report([work])
    assert path == work / "report" / "report.html"
    text = path.read_text()
    page = Page(text)
    assert page.open == []
    assert all(r.startswith(("data:image/png;base64,", "#")) for r in page.references)
    assert not re.search(r"@import|url\(|<script|<link|<iframe", text)
    words = " ".join(page.text).replace("\xa0", " ")
    assert "60.00 ± 10.00" in words
    assert "<b>odd & data</b>" in words
    assert "bits/L8" in words
    assert "not started" in words
    assert "other data" in words
    assert page.tags.count("img") == len(list((path.parent / "plots").glob("*.png")))
    markdown = (path.parent / "report.md").read_text()
    assert "| 64 | finished | 60.00 ± 10.00 |" in markdown
    for name in re.findall(r"\]\((.*?)\)", markdown):
        assert (path.parent / name).is_file()
    assert {p.name for p in (path.parent / "plots").iterdir()} >= {
        "bits-xclp-num-bits.png",
        "bits-xclp-num-bits-cosine-rmse.png",
        "bits-partition.png",
        "one-partition.png",
        "one-algorithms.png",
    }
    assert {p.name for p in (path.parent / "tables").iterdir()} == {
        "overview.csv",
        "one.csv",
        "two.csv",
        "bits-xclp-num-bits.csv",
        "bits-xclp-alpha.csv",
        "paper-xclp-3.csv",
    }
    # The same results make the same report, and the report is no result.
    assert write_report([work]).read_text() == text


def launch(*arguments):
    command = [sys.executable, "-m", "launch.report", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_launch_report(tmp_path):
    make_run(tmp_path / "one")
    done = launch(tmp_path / "one", f"--out={tmp_path / 'here'}")
    assert (done.returncode, done.stderr) == (0, "")
    assert str(tmp_path / "here" / "report.html") in done.stdout
    assert (tmp_path / "here" / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a workdir"),
        (["no/such/place"], "no such directory: no/such/place"),
        (["RUN", "--config.seed=1"], "a report has no config"),
        (["RUN", "--out=FILE"], "--out="),
    ],
)
def test_launch_report_mistakes_exit_with_2(tmp_path, arguments, message):
    make_run(tmp_path / "one")
    (tmp_path / "file").touch()
    texts = {"RUN": str(tmp_path / "one"), "--out=FILE": f"--out={tmp_path / 'file'}"}
    done = launch(*[texts.get(argument, argument) for argument in arguments])
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
