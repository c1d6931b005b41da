"""Clients' own models over rounds: every number once, deviations by hand, methods of one model beside."""

import json

import numpy as np
import pytest
from small_workdirs import make_run
from whole_figures import assert_nothing_is_cut, run_figures

from jaxfed.experiment.store.records import measure, read_run
from jaxfed.reports.figures import clients_figure, over_clients, partition_figure

EACH = {0: [0.1, 0.3], 2: [0.4, 0.8], 4: [0.7, 0.9]}  # of two clients, by round


def written(path, metric="round_client_test_accuracy", mean="round_test_accuracy", repeats=2):
    """FedCT of two clients, FedAvg of one model, and a client that is alone."""
    make_run(path, {"fedct": (0.8,) * repeats, "fedavg": (0.5,) * repeats})
    lines = []
    for repeat in range(repeats):
        for number, each in EACH.items():
            worse = [value - 0.05 * repeat for value in each[:1]] + each[1:]
            shared = {"repeat": repeat, "round": number}
            told = {metric: worse, mean: float(np.mean(worse)), "agreement": 0.9}
            lines.append(
                {"algorithm": "fedct", "consensus_change": 0.5 / (number + 1)} | shared | told
            )
            lines.append({"algorithm": "fedavg", mean: 0.1 * number} | shared)
            lines.append({"algorithm": "pate", metric: [0.2]} | shared)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_clients_their_mean_and_their_deviation(tmp_path):
    run = read_run(written(tmp_path / "r"))
    figures = run_figures(run)
    assert {"clients", "consensus_change", "agreement"} <= set(figures)
    assert "clients_validation" not in figures
    above, below = figures["clients"].axes
    thin = [line for line in above.lines if line.get_linewidth() < 1]
    np.testing.assert_allclose(
        [line.get_ydata() for line in thin],
        [[10, 40, 70], [30, 80, 90]],  # the first repeat's
    )
    thick = {line.get_label(): line for line in above.lines if line not in thin}
    np.testing.assert_allclose(thick["FedCT"].get_ydata(), [18.75, 58.75, 78.75])
    np.testing.assert_allclose(thick["FedAvg"].get_ydata(), [0, 20, 40])
    assert set(thick) == {"FedCT", "FedAvg"}
    (deviation,) = below.lines
    np.testing.assert_array_equal(deviation.get_xdata(), [0, 2, 4])
    np.testing.assert_allclose(deviation.get_ydata(), [11.25, 21.25, 11.25])
    (band,) = below.collections
    y = band.get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose(y.max() - 21.25, np.std([20, 22.5], ddof=1))
    assert_nothing_is_cut(figures["clients"])


def test_rounds_that_all_repeats_have():
    line = {"algorithm": "fedct", "client": [0.1, 0.2]}
    judged = {0: (1, 2, 3), 1: (2, 3)}
    lines = [line | {"repeat": r, "round": n} for r, rounds in judged.items() for n in rounds]
    rounds, accuracy = over_clients(lines, "client")["fedct"]
    np.testing.assert_array_equal(rounds, [2, 3])
    assert accuracy.shape == (2, 2, 2)
    assert over_clients(lines[:1], "client") == {}
    unknown = over_clients([line | {"round": n, "client": [None, 1]} for n in (1, 2)], "client")
    clients_figure(unknown, {"fedct": [(1, measure([0.5]))]}, "test_accuracy").canvas.draw()


@pytest.mark.parametrize("num_classes", [3, 60])
def test_clients_with_names_are_named(num_classes):
    counts, names = np.ones((9, num_classes), int), ["Hospital Clínic de Barcelona", *"bcdefghi"]
    held = {"labeled": counts, "unlabeled": counts, "new": counts, "client_names": names}
    figure = partition_figure(held)
    panels = [ax for ax in figure.axes if ax.get_xlabel() == "Client"]
    assert len(panels) >= 2
    for ax in panels:
        shown = [label.get_text() for label in ax.get_xticklabels()]
        assert shown == ["Hospital Clínic d…", *"bcdefghi"]
    assert_nothing_is_cut(figure)
