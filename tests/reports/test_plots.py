"""What figures show: every number once, nothing cut, methods that look the same everywhere."""

import json

import numpy as np
import pytest
from small_workdirs import PER_CLIENT, XCLP, make_run
from whole_figures import assert_nothing_is_cut, run_figures

from jaxfed.experiment.store.records import (
    measure,
    read_metrics,
    read_run,
)
from jaxfed.reports import figures, style
from jaxfed.reports.names import setting_text
from jaxfed.reports.style import algorithm_styles


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
    figure = figures.curve_figure("xclp.num_bits", [64, 512, 4096], series, "test_accuracy")
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
        ([0.05, 0.1, 0.2, 1.0], "log"),
        ([0.5, 0.9, 0.99], "logit"),
        ([1, 2, 3], "linear"),
        ([5], "linear"),
    ],
)
def test_scale_for(values, scale):
    assert style.scale_for(values) == scale


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
    figure = figures.curve_figure(key, values, series, "test_accuracy")
    assert figure.axes[0].containers[0].lines[0].get_linestyle() == "None"
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == list(
        map(setting_text, values)
    )


def test_rounds_are_shown_for_methods_that_have_several(tmp_path):
    run = read_run(make_run(tmp_path / "r", {"xclp": (0.1, 0.3)}, rounds=3))
    rounds = figures.over_rounds(read_metrics(run.workdir), "test_accuracy")
    assert [number for number, _ in rounds["xclp"]] == [1, 2, 3]
    assert rounds["xclp"][1][1].mean == pytest.approx(0.4)
    figure = figures.rounds_figure(rounds, "test_accuracy")
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
    rounds = figures.over_rounds(lines, "validation_accuracy")
    assert rounds == {"a": [(1, measure([0.2, 0.5])), (2, measure([0.1, 0.6]))]}


def test_accuracies_over_simulated_time():
    """Each method has its own times; a state before the first round is at 0, one without a time nowhere."""
    accuracy, time = measure([0.5]), measure([7.0])
    rounds = {"a": [(0, accuracy), (2, accuracy), (4, accuracy)], "b": [(0, accuracy)]}
    found = figures.over_time(rounds, {"a": [(1, accuracy), (2, time)]})
    assert found == {"a": [(0.0, accuracy), (7.0, accuracy)], "b": [(0.0, accuracy)]}
    figure = figures.rounds_figure(found, "validation_accuracy", xlabel="Simulated time [s]")
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


@pytest.mark.parametrize(
    ("num_clients", "num_classes"), [(1, 2), (10, 10), (100, 10), (100, 100), (3, 200)]
)
@pytest.mark.sample(2)
def test_partition_figures(num_clients, num_classes):
    """Heat maps of what clients have, and of what everybody has beside them."""
    counts = np.random.default_rng(0).integers(10, 50, (num_clients, num_classes))
    held = {"labeled": counts // 10, "unlabeled": counts, "new": counts // 3, "every": 2}
    held |= {"server": [counts[0]], "public": 100 * counts[0]}
    figure = figures.partition_figure(held)
    assert figure.axes[0].get_xlabel() == "Client, one in 2"
    drawn = {ax.get_title(loc="left"): ax.images[0].get_array() for ax in figure.axes if ax.images}
    np.testing.assert_array_equal(drawn["Unlabeled"], counts.T)
    np.testing.assert_array_equal(drawn["Public"], 100 * counts[:1].T)
    assert list(drawn)[-2:] == ["Server", "Public"]
    assert_nothing_is_cut(figure)


MANY = ["xclp", "per_client_lp", "client_knn", "pooled_lp", "a_method_of_a_long_name", "fed_avg"]


@pytest.mark.parametrize(
    "draw",
    [
        lambda: figures.methods_figure(
            {name: {"test_accuracy": measure(XCLP)} for name in MANY}, "test_accuracy"
        ),
        lambda: figures.curve_figure(
            "xclp.num_bits",
            [2**power for power in range(6, 14)],
            {name: [measure(XCLP)] * 8 for name in MANY},
            "test_accuracy",
            title="labeled fraction 0.1, graph labeled+unlabeled",
        ),
        lambda: figures.curve_figure(
            "federation.graph",
            ["a rather long name of a setting"] * 5,
            {"xclp": [measure([0.5])] * 5},
            "test_accuracy",
        ),
        lambda: figures.rounds_figure(
            {"xclp": [(1, measure(XCLP)), (2, measure(XCLP))]}, "test_accuracy"
        ),
    ],
    ids=["methods", "many lines", "long names", "rounds"],
)
def test_nothing_is_cut(draw):
    assert_nothing_is_cut(draw())


def test_methods_look_the_same_everywhere_and_differ():
    names = ["xclp", "per_client_lp", "client_knn", "pooled_lp", "fed_avg", "fed_prox", "scaffold"]
    together = algorithm_styles(names)
    assert together["client_knn"] == algorithm_styles(["client_knn"])["client_knn"]
    assert len({style["color"] for style in together.values()}) == len(names)
    assert together["xclp"]["color"] == algorithm_styles(["xclp"])["xclp"]["color"]


def test_more_methods_than_colors_differ_by_markers():
    styles = algorithm_styles([f"variant_{number}" for number in range(40)]).values()
    assert len({(style["color"], style["marker"]) for style in styles}) == 40
