"""The bound's figure: a line for each setting, at the values of the bound."""

import numpy as np
import pytest

from jaxfed.reports.figures.consensus_bound_figure import consensus_bound_figure
from jaxfed.reports.figures.style import DARK, LIGHT
from jaxfed.training.consensus.consensus_bound import change_probability


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_lines_are_the_bound(theme):
    figure = consensus_bound_figure(
        num_clients=(3, 7), rates=(1.0, 4.0), num_public=50, most_rounds=5000, theme=theme
    )
    figure.canvas.draw()
    lines = figure.axes[0].get_lines()
    assert [line.get_label() for line in lines] == [
        f"m = {m}, c = {c}" for m in (3, 7) for c in (1, 4)
    ]
    for line, (m, c) in zip(lines, [(3, 1), (3, 4), (7, 1), (7, 4)], strict=True):
        rounds, delta = line.get_data()
        assert rounds[0] >= 2 * c
        expected = [min(1, change_probability(m, 50, int(t), c)) for t in rounds]
        np.testing.assert_allclose(delta, np.maximum(expected, 1e-12))
