"""Distances below the figure of the partition: of clients from all, of labeled from unlabeled."""

import json
import math

import numpy as np
import pytest
from whole_figures import assert_nothing_is_cut

from jaxfed.data import Dirichlet, Labels, class_counts, partition
from jaxfed.reports import figures as plots
from jaxfed.reports.partition_figure import UNKNOWN, mean_distances, partition_figure


def line_below(figure):
    return " ".join(figure.get_supxlabel().split())


def test_distances_by_hand():
    labeled = [[4, 0], [1, 1], [0, 0], [0, 0]]
    unlabeled = [[0, 4], [3, 3], [0, 2], [0, 0]]
    # All: 8 and 10 of 18. Held: (1/2, 1/2), (1/2, 1/2), (0, 1), nothing.
    from_all = (2 * (1 / 2 - 8 / 18) + 8 / 18) / 3
    assert mean_distances(labeled, unlabeled) == pytest.approx((from_all, (1 + 0) / 2))


def test_distances_of_nobody_are_not_numbers():
    nothing = np.zeros((3, 2), int)
    assert all(map(math.isnan, mean_distances(nothing, nothing)))
    from_all, inside = mean_distances(nothing, nothing + 1)
    assert from_all == 0
    assert math.isnan(inside)


@pytest.mark.sample(2)
@pytest.mark.parametrize("num_clients", [5, 100])
@pytest.mark.parametrize(("skew", "inside"), [("both", (0.0, 0.2)), ("independent", (0.5, 1.0))])
def test_the_line_tells_the_two_deals_apart(num_clients, skew, inside):
    y = np.arange(20_000) % 10
    part = partition(
        y, num_clients=num_clients, scheme=Dirichlet(0.2), labels=Labels(fraction=0.3), skew=skew
    )
    labeled, unlabeled, _ = (class_counts(y, role, 10) for role in part)
    figure = partition_figure(labeled, unlabeled)
    values = mean_distances(labeled, unlabeled)
    assert inside[0] < values[1] < inside[1]
    assert line_below(figure) == (
        f"Mean total variation distance: a client from all {values[0]:.2f}, "
        f"labeled from unlabeled in a client {values[1]:.2f}"
    )
    assert_nothing_is_cut(figure)


def test_the_line_leaves_out_what_there_is_not():
    labeled, unlabeled = np.array([[2, 0, 0], [0, 2, 0]]), np.array([[2, 0, 9], [0, 2, 0]])
    names = ["a", "b", UNKNOWN]
    assert "in a client 0.00" in line_below(partition_figure(labeled, unlabeled, class_names=names))
    assert "in a client 0.41" in line_below(partition_figure(labeled, unlabeled))
    of_server = line_below(partition_figure(0 * labeled, unlabeled, class_names=names))
    assert of_server == "Mean total variation distance: a client from all 0.50"
    assert not line_below(partition_figure(0 * labeled, 0 * unlabeled))


def test_the_axis_says_that_some_clients_are_shown(tmp_path):
    counts = {"labeled": [[1, 2]] * 3, "unlabeled": [[2, 2]] * 3, "class_names": ["a", "b"]}
    for more, label in (({}, "Client"), ({"every": 2}, "Client, one in 2")):
        (tmp_path / "partition.json").write_text(json.dumps(counts | more))
        first, *_ = plots._partition_of(tmp_path).axes
        assert first.get_xlabel() == label
