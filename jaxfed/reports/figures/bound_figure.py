"""Common figure for theoretical bounds: lines for two settings on logarithmic axes, and a legend."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxfed.reports.figures.style import LINE_STYLES, Theme, dress, legend, new_figure


class BoundLine(NamedTuple):
    """A bound at one pair of settings, with the indices of its color and line style."""

    color: int
    style: int
    x: npt.ArrayLike
    y: npt.ArrayLike
    label: str


def bound_figure(
    lines: Iterable[BoundLine],
    *,
    xlabel: str,
    ylabel: str,
    columns: int,
    beside: Callable[[Axes], None],
    theme: Theme,
) -> Figure:
    """Draw the lines, then call `beside` for additional artists; the legend has `columns` columns."""
    figure = new_figure(6.4, 4.2, theme)
    ax = figure.subplots()
    dress(ax, theme, xlabel=xlabel, ylabel=ylabel)
    ax.set_xscale("log")
    ax.set_yscale("log")
    for line in lines:
        ax.plot(
            line.x,
            line.y,
            color=theme.palette[line.color],
            linestyle=LINE_STYLES[line.style % len(LINE_STYLES)],
            linewidth=1.8,
            label=line.label,
        )
    beside(ax)
    legend(figure, ax, theme, columns=columns)
    return figure
