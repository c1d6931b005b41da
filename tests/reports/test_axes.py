"""Axes of plots: no shorter than noise, which the number of examples says, and within a share's limits."""

import json

import numpy as np
import pytest
from small_workdirs import make_run

from jaxfed.experiment.store.records import measure, read_run
from jaxfed.reports import figures


@pytest.mark.parametrize(
    ("metric", "values", "examples", "span"),
    [
        # Four images of 10,000 apart: 8 sqrt(0.7 * 0.3 / 10000) of the axis, in percent.
        ("test_accuracy", [0.7, 0.7004], 10_000, 800 * (0.7 * 0.3 / 10_000) ** 0.5),
        # All right: as if a tenth were not, and the axis ends at 100.
        ("test_accuracy", [1.0, 1.0], 400, 800 * (0.9 * 0.1 / 400) ** 0.5),
        ("test_accuracy", [0.0, 0.0], 400, 800 * (0.9 * 0.1 / 400) ** 0.5),
        ("test_accuracy", [0.7, 0.7001], 0, 5),
        ("test_accuracy", [0.5, 0.5], 3, 100),
        ("pseudo_labeled", [0.4, 0.4001], 0, 0.1),
        ("train_loss", [2.0, 2.0001], 0, 0.2),
    ],
)
def test_an_axis_is_no_shorter_than_noise(metric, values, examples, span):
    rounds = {"xclp": [(i, measure([value])) for i, value in enumerate(values)]}
    (ax,) = figures.rounds_figure(rounds, metric, examples=examples).axes
    low, high = ax.get_ylim()
    assert high - low == pytest.approx(span, rel=0.02)
    scale = 100 if metric == "test_accuracy" else 1
    assert low <= scale * min(values) <= scale * max(values) <= high
    if metric != "train_loss":
        assert low >= 0
        assert high <= scale


def test_a_wide_axis_stays_as_it_is():
    rounds = {"xclp": [(0, measure([0.1])), (1, measure([0.9]))]}
    spans = [
        np.ptp(figures.rounds_figure(rounds, "test_accuracy", examples=n).axes[0].get_ylim())
        for n in (0, 100, 10**6)
    ]
    assert spans[0] == spans[1] == spans[2]


def test_an_axis_knows_how_many_examples_there_are(tmp_path):
    place = make_run(tmp_path / "r", {"xclp": (0.7, 0.7)}, rounds=2)
    summary = json.loads((place / "summary.json").read_text())
    counts = {"test": 400, "validation": 100, "unlabeled": 50, "public": 9}
    (place / "summary.json").write_text(json.dumps(summary | {"examples": counts}))
    run = read_run(place)
    assert run.num_examples("round_test_balanced_accuracy") == 400
    assert run.num_examples("validation_accuracy") == 100
    assert run.num_examples("unlabeled_accuracy") == 50
    assert run.num_examples("round_consensus_accuracy") == 9
    (ax,) = figures.run_plots(run)["algorithms"]().axes
    assert np.ptp(ax.get_xlim()) == pytest.approx(800 * (0.7 * 0.3 / 400) ** 0.5)
