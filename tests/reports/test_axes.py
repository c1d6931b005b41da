"""Axes of plots: no shorter than noise, and within a share's limits."""

import pytest

from jaxfed.experiment.store.records import measure
from jaxfed.reports import figures


@pytest.mark.parametrize(
    ("metric", "values", "span"),
    [
        ("test_accuracy", [0.7, 0.7001], 5),
        ("test_accuracy", [1.0, 1.0], 5.5),  # the axis ends at 100
        ("test_accuracy", [0.0, 0.0], 5),
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
    scale = 100 if metric == "test_accuracy" else 1
    assert low <= scale * min(values) <= scale * max(values) <= high
    if metric != "train_loss":
        assert low >= 0
        assert high <= scale
