"""What figures show: every number once, nothing cut, methods that look the same everywhere."""

import json

import numpy as np
import pytest
from matplotlib.figure import Figure
from small_workdirs import PER_CLIENT, XCLP, make_run, make_sweep
from whole_figures import assert_nothing_is_cut, run_figures

from jaxfed.experiment.store.records import (
    measure,
    read_metrics,
    read_run,
)
from jaxfed.reports.documents.report import build, write_report
from jaxfed.reports.figures import axes, line_figures, partition_figure, plots
from jaxfed.reports.figures.style import OTHERS, algorithm_styles, legend, new_figure
from jaxfed.reports.tables.display_names import setting_text


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
    figure = line_figures.curve_figure("xclp.num_bits", [64, 512, 4096], series, "test_accuracy")
    (ax,) = figure.axes
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("LSH bits L", "Test accuracy [%]")
    assert ax.get_xscale() == "log"
    lines = lines_of(figure)
    assert lines["XCLP"] == ([64, 4096], [pytest.approx(84), 50])
    assert len(lines["Per-client LP"][0]) == 3
    bar = ax.containers[0].lines[2][0].get_segments()[0]
    np.testing.assert_allclose(bar[:, 1], [80, 88])
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["64", "512", "4096"]


def test_many_methods_have_a_panel_each():
    names = [f"m{i}" for i in range(line_figures.MOST_TOGETHER + 1)]
    series = {name: [measure([0.1 * i, 0.1 * i + 0.02]), None] for i, name in enumerate(names, 1)}
    curves = line_figures.curve_figure("xclp.num_bits", [64, 512], series, "test_accuracy")
    rounds = {name: [(1, m), (2, m)] for name, (m, _) in series.items()}
    for figure in (curves, line_figures.rounds_figure(rounds, "test_accuracy")):
        panels = [ax for ax in figure.axes if ax.get_visible()]
        assert [ax.get_title(loc="left") for ax in panels] == names
        assert len({ax.get_ylim() for ax in panels}) == 1
        for i, ax in enumerate(panels, 1):
            lines = [
                line for line in ax.lines if len(line.get_xdata()) and line.get_linestyle() == "-"
            ]
            (own,) = [line for line in lines if line.get_color() != OTHERS]
            assert own.get_ydata()[0] == pytest.approx(10 * i + 1)
            assert len({line.get_ydata()[0] for line in lines}) == len(names)
    assert not any(ax.containers[0].has_yerr for ax in curves.axes[1 : len(names)])
    assert_nothing_is_cut(curves)


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
        ("xclp.relative_confidence", [False, True]),
        ("federation.table", [[1], [2]]),
    ],
)
def test_names_are_not_joined_by_lines(key, values):
    series = {"xclp": [measure(XCLP)] * len(values)}
    figure = line_figures.curve_figure(key, values, series, "test_accuracy")
    assert figure.axes[0].containers[0].lines[0].get_linestyle() == "None"
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == list(
        map(setting_text, values)
    )


def test_cosine_error_figure_has_theory_beside_measurements():
    measured, theory = [measure([0.1, 0.2])] * 2, [measure([0.1]), measure([0.05])]
    figure = line_figures.cosine_error_figure([64, 256], measured, theory)
    (ax,) = figure.axes
    assert ax.get_yscale() == "log"
    (line,) = [line for line in ax.lines if line.get_label() == "Theory"]
    assert list(line.get_ydata()) == [0.1, 0.05]


def test_rounds_are_shown_for_methods_that_have_several(tmp_path):
    run = read_run(make_run(tmp_path / "r", {"xclp": (0.1, 0.3)}, rounds=3))
    rounds = plots.rounds_by_algorithm(read_metrics(run.workdir), "test_accuracy")
    assert [number for number, _ in rounds["xclp"]] == [1, 2, 3]
    assert rounds["xclp"][1][1].mean == pytest.approx(0.4)
    figure = line_figures.rounds_figure(rounds, "test_accuracy")
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), [20, 40, 60])
    assert set(run_figures(run)) == {"algorithms", "rounds", "partition"}


def test_the_curve_of_a_mean_ends_where_a_repeat_diverged():
    """Not at the mean of the survivors. A method with one round of all repeats has no curve."""
    values = {
        ("a", 0): (0.2, 0.1),
        ("a", 1): (0.5, 0.6, 0.9),
        ("b", 0): (0.4,),
        ("b", 1): (0.5, 0.6),
    }
    lines = [
        {"algorithm": name, "repeat": repeat, "round": number, "validation_accuracy": value}
        for (name, repeat), accuracies in values.items()
        for number, value in enumerate(accuracies, 1)
    ]
    lines.append({"algorithm": "a", "repeat": 0, "round": 3, "diverged": True})
    rounds = plots.rounds_by_algorithm(lines, "validation_accuracy")
    assert rounds == {"a": [(1, measure([0.2, 0.5])), (2, measure([0.1, 0.6]))]}


def test_accuracies_over_simulated_time():
    """Each method has its own times; a state before the first round is at 0, one without a time nowhere."""
    accuracy, time = measure([0.5]), measure([7.0])
    rounds = {"a": [(0, accuracy), (2, accuracy), (4, accuracy)], "b": [(0, accuracy)]}
    found = plots.over_time(rounds, {"a": [(1, accuracy), (2, time)]})
    assert found == {"a": [(0.0, accuracy), (7.0, accuracy)], "b": [(0.0, accuracy)]}
    figure = line_figures.rounds_figure(found, "validation_accuracy", xlabel="Simulated time [s]")
    (ax,) = figure.axes
    assert ax.get_xlabel() == "Simulated time [s]"
    assert ax.lines[0].get_xdata().tolist() == [0.0, 7.0]


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
    figures = run_figures(run)
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


@pytest.mark.parametrize(
    ("num_clients", "num_classes", "num_axes"),
    # Bubbles: training and new data. Heat maps: three kinds, each with its scale of colors.
    [(1, 2, 2), (10, 10, 2), (100, 10, 6), (100, 100, 6), (3, 200, 6)],
)
@pytest.mark.sample(2)
def test_partition_figures(num_clients, num_classes, num_axes):
    counts = np.random.default_rng(0).integers(0, 50, (num_clients, num_classes))
    figure = partition_figure.partition_figure(counts // 10, counts, counts // 3)
    assert isinstance(figure, Figure)
    assert len(figure.axes) == num_axes
    assert_nothing_is_cut(figure)


@pytest.mark.parametrize(("num_clients", "num_classes"), [(1, 2), (5, 10), (10, 10), (100, 10)])
@pytest.mark.sample(2)
def test_what_everybody_has_stands_beside_the_clients(num_clients, num_classes):
    counts = np.random.default_rng(0).integers(0, 50, (num_clients, num_classes))
    apart = {"server": [counts[0]], "public": 100 * counts[0]}
    figure = partition_figure.partition_figure(counts, counts, counts, apart=apart)
    drawn = {ax.get_title(loc="left"): ax for ax in figure.axes}
    for whose, scale in (("Server", 1), ("Public", 100)):
        np.testing.assert_array_equal(
            [bar.get_width() for bar in drawn[whose].patches], scale * counts[0]
        )
    assert_nothing_is_cut(figure)


def test_a_run_shows_what_everybody_has(tmp_path):
    run = make_run(tmp_path / "run")
    file = run / "partition.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"public": [[5, 7]]}))
    figure = run_figures(read_run(run))["partition"]
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["Training data", "Public"]


MANY = ["xclp", "per_client_lp", "client_knn", "pooled_lp", "a_method_of_a_long_name", "fed_avg"]


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plots.algorithms_figure(
            {name: {"test_accuracy": measure(XCLP)} for name in MANY},
            ["test_accuracy"],
        ),
        lambda: plots.algorithms_figure(
            {"xclp": {name: measure(XCLP) for name in ("a_accuracy", "b_accuracy", "loss")}},
            ["a_accuracy", "b_accuracy", "loss"],
        ),
        lambda: line_figures.curve_figure(
            "xclp.num_bits",
            [2**power for power in range(6, 14)],
            {name: [measure(XCLP)] * 8 for name in MANY},
            "test_accuracy",
            title="labeled fraction 0.1, graph labeled+unlabeled",
        ),
        lambda: line_figures.curve_figure(
            "federation.graph",
            ["a rather long name of a setting"] * 5,
            {"xclp": [measure([0.5])] * 5},
            "test_accuracy",
        ),
        lambda: line_figures.cosine_error_figure([64], [measure([0.1, 0.1])], [measure([0.1])]),
        lambda: line_figures.rounds_figure(
            {"xclp": [(1, measure(XCLP)), (2, measure(XCLP))]}, "test_accuracy"
        ),
    ],
    ids=["methods", "metrics", "many lines", "long names", "one point", "rounds"],
)
def test_nothing_is_cut(draw):
    assert_nothing_is_cut(draw())


def test_bubbles_have_areas_of_counts():
    figure = partition_figure.partition_figure([[1, 0], [0, 4]], [[7, 2], [0, 12]])
    training, labeled = (collection.get_sizes() for collection in figure.axes[0].collections)
    np.testing.assert_allclose(training / training.max(), [8 / 16, 2 / 16, 1])
    np.testing.assert_allclose(labeled / training.max(), [1 / 16, 4 / 16])


def test_methods_look_the_same_everywhere_and_differ():
    alone = algorithm_styles(["fed_avg"])["fed_avg"]
    names = ["xclp", "per_client_lp", "client_knn", "pooled_lp", "fed_avg", "fed_prox", "scaffold"]
    together = algorithm_styles(names)
    assert together["fed_avg"] == alone
    assert len({style["color"] for style in together.values()}) == len(names)
    assert together["xclp"]["color"] == algorithm_styles(["xclp"])["xclp"]["color"]


def test_more_methods_than_colors_differ_by_markers():
    styles = algorithm_styles([f"variant_{number}" for number in range(40)]).values()
    assert len({(style["color"], style["marker"]) for style in styles}) == 40


def test_a_long_legend_makes_the_figure_higher():
    heights = []
    for number in (2, 12):
        figure = new_figure(6, 4)
        ax = figure.add_subplot()
        for name in range(number):
            ax.plot([0, 1], [0, name], label=f"a method of some forty letters, number {name}")
        legend(figure, ax)
        figure.canvas.draw()
        heights.append(ax.get_window_extent().height)
    assert heights[1] == pytest.approx(heights[0], rel=0.15)


def test_one_methods_curves_are_lines_of_one_figure(tmp_path):
    """ProtoFSSL's Table 8: local epochs, for two numbers of active clients."""
    accuracy = {(5, 1): 0.3, (5, 2): 0.4, (5, 10): 0.7, (20, 1): 0.4, (20, 10): 0.6}
    points = [
        (
            f"m{m}e{e}",
            {"cohort_size": m, "training.epochs": e},
            {"protofssl": (value - 0.1, value + 0.1)},
        )
        for (m, e), value in accuracy.items()
    ]
    base = {"cohort_size": 5, "training.epochs": 10}
    make_sweep(tmp_path / "epochs", points, base)
    (section,) = build([tmp_path / "epochs"])
    pictures = {picture.name: picture for picture in section.pictures}
    assert set(pictures) == {
        "epochs-training-epochs",
        "epochs-cohort-size",
        "epochs-partition",
    }
    picture = pictures["epochs-training-epochs"]
    assert "a line for each value of clients a round" in picture.caption
    figure = picture.draw()
    assert figure.axes[0].get_title(loc="left") == "ProtoFSSL"
    lines = lines_of(figure)
    assert list(lines) == ["clients a round 5", "clients a round 20"]
    assert lines["clients a round 5"] == ([1, 2, 10], pytest.approx([30, 40, 70]))
    assert lines["clients a round 20"] == ([1, 10], pytest.approx([40, 60]))
    assert_nothing_is_cut(figure)


def test_what_values_are_besides_is_marked_on_top():
    epsilons = [0.1, 1.0, 10.0, 100.0, 300.0, 1000.0, 3000.0, 1e4, 3e4, 1e5]
    series = {name: [measure([0.5])] * 10 for name in ("dp_fedct", "dp_fedct_paper", "fedct")}
    figure = line_figures.curve_figure(
        "dp_fedct.epsilon",
        epsilons,
        series,
        "test_accuracy",
        above=("Together", [10 * epsilon for epsilon in epsilons]),
    )
    assert_nothing_is_cut(figure)
    (ax,) = figure.axes
    (top,) = ax.child_axes
    assert top.get_xlabel() == "Together"
    below, above = (
        {tick.get_position()[0]: tick.get_text() for tick in side.get_xticklabels()}
        for side in (ax, top)
    )
    assert below[10.0] == "10"
    assert above[10.0] == "100"
    assert 300.0 not in below  # its label would run into its neighbor's


@pytest.mark.parametrize(
    ("key", "values", "method", "metric", "caption", "marks"),
    [
        (
            *("dp_fedct.epsilon", (1.0, 10.0), "dp_fedct", "epsilon"),
            *("Epsilon of all rounds together.", ["10", "100"]),
        ),
        (
            *("dp_fedct.epsilon", (1.0, 10.0), "dp_fedct", "epsilon_estimated"),
            *("Estimate of epsilon, of all rounds together; no promise.", ["10", "100"]),
        ),
        (
            *("protofssl.noise", (0.0, 1.0), "protofssl_clipped", "prototype_epsilon"),
            *("Epsilon of shared prototypes, given the networks.", ["inf", "10"]),
        ),
    ],
)
def test_what_all_releases_promise_stands_on_top(
    tmp_path, key, values, method, metric, caption, marks
):
    points = [(f"e{value}", {key: value}, {method: (0.5, 0.6)}) for value in values]
    sweep = make_sweep(tmp_path / "epsilons", points, {key: 10.0})
    [section] = build([sweep])
    assert "On top" not in section.pictures[0].caption  # runs say nothing of it
    for value in filter(None, values):
        file = sweep / f"e{value}" / "summary.json"
        summary = json.loads(file.read_text())
        total = 10.004 * value
        told = {"mean": total, "std": 0.0, "values": [total, total]}
        summary["algorithms"][method][metric] = told
        file.write_text(json.dumps(summary))
    [section] = build([sweep])
    assert f"On top: {caption}" in section.pictures[0].caption
    (top,) = section.pictures[0].draw().axes[0].child_axes
    assert [tick.get_text() for tick in top.get_xticklabels()] == marks
