"""Lines of methods over rounds and over the values of a setting; of many methods, a panel for each."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxfed.experiment.store.records import Measurement
from jaxfed.reports.figures.axes import (
    axis_label,
    fit,
    is_quantity,
    mark_above,
    place_values,
    thin_log_ticks,
)
from jaxfed.reports.figures.style import (
    INK,
    MUTED,
    OTHERS,
    algorithm_styles,
    dress,
    legend,
    new_figure,
    plain,
)
from jaxfed.reports.tables.display_names import is_accuracy, metric_label
from jaxfed.reports.tables.method_names import USUAL, Methods

MOST_TOGETHER = 8  # methods whose lines one pair of axes can show

Draw = Callable[
    [Axes, str, Mapping[str, Any], bool], None
]  # axes, method, style, in its own panel or color


def curve_figure(
    key: str,
    values: Sequence[Any],
    series: Mapping[str, Sequence[Measurement | None]],
    metric: str,
    *,
    title: str = "",
    above: tuple[str, Sequence[float]] | None = None,
    methods: Methods = USUAL,
    examples: int = 0,
) -> Figure:
    """Plot a metric against a swept value, a line for each method, error bars of one sample deviation.

    Args:
        key: the config key that is swept.
        values: its values in order; quantities have a linear, log or logit scale, other values are evenly
            spaced.
        series: for each method its measurement at every value, None where it is missing.
        metric: name of the metric; accuracies are shown in percent.
        title: the fixed settings, if any.
        above: label and values of a second quantity, shown on a top axis.
        methods: display names and algorithms of the methods.
        examples: number of examples that the metric is measured on (`jaxfed.reports.figures.axes.fit`).
    """
    labels = {"title": title, "xlabel": axis_label(key), "ylabel": metric_label(metric)}
    figure, panels = _panels(list(series), methods, **labels)
    for ax in panels:
        positions = place_values(ax, key, values)
    if above is not None:
        for ax in panels[: _columns(len(panels))]:
            mark_above(ax, positions, *above, color=MUTED)
    joined = is_quantity(key, values)
    # At categorical values, methods are shifted side by side; on a numeric scale they must not be.
    step = 0.0 if joined or len(panels) > 1 else 0.5 / len(series)
    shifts = {name: step * (i - (len(series) - 1) / 2) for i, name in enumerate(series)}

    def draw(ax: Axes, algorithm: str, style: Mapping[str, Any], own: bool) -> None:
        moved = [position + shifts[algorithm] for position in positions]
        look = dict(style) if joined else {**style, "linestyle": "none"}
        label = methods.name(algorithm)
        draw_series(ax, moved, series[algorithm], scale_of(metric), label, look, own=own)

    _draw_all(figure, panels, list(series), methods, draw)
    for ax in panels:
        fit(ax, metric, "y", examples)
    return figure


def cosine_error_figure(
    values: Sequence[int],
    measured: Sequence[Measurement | None],
    theory: Sequence[Measurement | None],
    *,
    key: str = "xclp.num_bits",
) -> Figure:
    """Plot the root mean squared error of cos(pi h / L) against L, measured and expected by theory."""
    figure = new_figure(6.4, 4.2)
    ax = figure.subplots()
    dress(ax, xlabel=axis_label(key), ylabel=metric_label("cosine_rmse"))
    positions = place_values(ax, key, values)
    kept = [(x, t.mean) for x, t in zip(positions, theory, strict=True) if t is not None]
    ax.plot(
        [x for x, _ in kept],
        [y for _, y in kept],
        color=MUTED,
        linestyle="--",
        linewidth=1.6,
        label="Theory",
        zorder=2,
    )
    draw_series(ax, positions, measured, 1.0, "Measured", algorithm_styles(["xclp"])["xclp"])
    ax.set_yscale("log")
    thin_log_ticks(ax)
    legend(figure, ax)
    return figure


def rounds_figure(
    rounds: Mapping[str, Sequence[tuple[float, Measurement]]],
    metric: str,
    methods: Methods = USUAL,
    examples: int = 0,
    xlabel: str = "Round",
) -> Figure:
    """Plot a metric over rounds, a line for each method; the band is one sample deviation over repeats."""
    figure, panels = _panels(list(rounds), methods, xlabel=xlabel, ylabel=metric_label(metric))
    scale = scale_of(metric)

    def draw(ax: Axes, algorithm: str, style: Mapping[str, Any], own: bool) -> None:
        numbers = np.array([number for number, _ in rounds[algorithm]])
        mean = scale * np.array([m.mean for _, m in rounds[algorithm]])
        deviation = scale * np.array([m.std or 0.0 for _, m in rounds[algorithm]])
        if own:
            band = (mean - deviation, mean + deviation)
            ax.fill_between(numbers, *band, color=style["color"], alpha=0.18, lw=0)
        ax.plot(
            numbers,
            mean,
            color=style["color"],
            linestyle=style["linestyle"],
            linewidth=1.8 if own else 0.8,
            label=methods.name(algorithm),
            zorder=style["zorder"],
        )

    _draw_all(figure, panels, list(rounds), methods, draw)
    for ax in panels:
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=xlabel == "Round"))
        fit(ax, metric, "y", examples)
    return figure


def draw_series(
    ax: Axes,
    positions: Sequence[float],
    measured: Sequence[Measurement | None],
    scale: float,
    label: str,
    style: Mapping[str, Any],
    *,
    own: bool = True,
) -> None:
    """Draw a method's measurements with error bars; not its `own` axes: a thin line without them."""
    kept = [(x, m) for x, m in zip(positions, measured, strict=True) if m is not None]
    if kept:
        ax.errorbar(
            [x for x, _ in kept],
            [scale * m.mean for _, m in kept],
            yerr=[scale * (m.std or 0.0) for _, m in kept] if own else None,
            label=label,
            linewidth=1.8 if own else 0.8,
            elinewidth=1.2,
            markersize=6 if own else 2,
            capsize=3,
            **style,
        )


def scale_of(metric: str) -> float:
    """Return what a metric is multiplied by in figures: accuracies are percentages."""
    return 100.0 if is_accuracy(metric) else 1.0


def _panels(
    names: Sequence[str], methods: Methods, *, xlabel: str, ylabel: str, title: str = ""
) -> tuple[Figure, list[Axes]]:
    """Make one pair of axes, or of many methods one for each, with equal scales."""
    if len(names) <= MOST_TOGETHER:
        figure = new_figure(6.4, 4.2)
        ax = figure.subplots()
        dress(ax, title=title, xlabel=xlabel, ylabel=ylabel)
        return figure, [ax]
    columns = _columns(len(names))
    rows = -(-len(names) // columns)
    figure = new_figure(8.4, 0.8 + 1.5 * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True).ravel()
    for ax in grid[len(names) :]:
        ax.set_visible(False)
    panels = list(grid[: len(names)])
    for ax, name in zip(panels, names, strict=True):
        dress(ax)
        text = textwrap.fill(plain(methods.name(name)), 30)
        ax.set_title(text, color=INK, fontsize=8.5, loc="left", pad=4)
        ax.tick_params(labelsize=8)
    for ax in panels[-columns:]:
        ax.tick_params(labelbottom=True)
    figure.supxlabel(xlabel, color=INK, fontsize=10)
    figure.supylabel(ylabel, color=INK, fontsize=10)
    if title:
        figure.suptitle(title, color=INK, fontsize=11, fontweight="bold", x=0.01, ha="left")
    return figure, panels


def _columns(number: int) -> int:
    """Return four or three columns, whichever leaves fewer places empty."""
    return min((4, 3), key=lambda columns: -number % columns)


def _draw_all(
    figure: Figure, panels: Sequence[Axes], names: Sequence[str], methods: Methods, draw: Draw
) -> None:
    """Draw all methods into one pair of axes with a legend, or each into its own before gray others."""
    styles = algorithm_styles(names, methods.algorithms)
    if len(panels) == 1:
        for name in names:
            draw(panels[0], name, styles[name], True)
        legend(figure, panels[0])
        return
    for ax, name in zip(panels, names, strict=True):
        for other in names:
            if other != name:
                draw(ax, other, {**styles[other], "color": OTHERS, "zorder": 2}, False)
        draw(ax, name, styles[name], True)
