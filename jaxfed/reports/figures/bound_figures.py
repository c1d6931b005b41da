"""Figures of FedCT's bounds: Proposition 1 on convergence and Proposition 2 on sensitivity."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxfed.privacy.label_sensitivity import stability_bound
from jaxfed.reports.figures.style import LINE_STYLES, MUTED, PALETTE, dress, legend, new_figure
from jaxfed.training.consensus.consensus import change_probability

RATES = np.geomspace(1e-6, 1, 121)

_LEAST = 1e-12  # smallest delta drawn; lower values are clipped to it
_MOST_ROUNDS = 100_000


def consensus_bound_figure(
    num_clients: Sequence[int],
    rates: Sequence[float],
    num_public: int,
    changes: Sequence[tuple[int, float]] = (),
) -> Figure:
    """Plot the probability delta that consensus labels still change after t_0 rounds; clipped at 1.

    Each m has a color and each c a line style.

    Args:
        num_clients: m, each 3 or more.
        rates: c, for training accuracies 1 - c / t.
        num_public: |U|. The paper states 10,000, but its printed numbers hold for 1.
        changes: (round, share of labels that changed) of a run, drawn as dots; zeros are omitted.
    """
    figure = new_figure(6.4, 4.2)
    ax = _axes(figure, "Rounds before, $t_0$", "Labels change afterwards, $\\delta$ at most")
    for (color, m), (style, c) in product(enumerate(num_clients), enumerate(rates)):
        first = max(1, int(np.ceil(2 * c)))
        rounds = np.unique(np.geomspace(first, _MOST_ROUNDS, 120).astype(int))
        delta = [change_probability(m, num_public, int(t), c) for t in rounds]
        _draw(ax, color, style, rounds, np.clip(delta, _LEAST, 1), f"m = {m}, c = {c:g}")
    seen = [(number, share) for number, share in changes if share > 0]
    if seen:
        label = "measured: share that changed"
        ax.plot(*zip(*seen, strict=True), ".", color=MUTED, markersize=4, label=label)
    ax.set_ylim(_LEAST, 2)
    legend(figure, ax, columns=min(max(len(num_clients), 2), 4))
    return figure


def sensitivity_bound_figure(
    num_public: Sequence[int], deltas: Sequence[float], estimate: int = 0
) -> Figure:
    """Plot the most labels r that one example changes against a learner's stability rate e.

    Each |U| has a color, at which its lines end, and each delta a line style.

    Args:
        num_public: |U|.
        deltas: probabilities with which the bound may fail.
        estimate: labels changed by sampled neighbors, drawn for comparison; it is no bound. 0 draws nothing.
    """
    figure = new_figure(6.4, 4.2)
    ax = _axes(
        figure, "Stability rate, $\\epsilon$", "Labels that one example changes, $r$ at most"
    )
    for (color, size), (style, delta) in product(enumerate(num_public), enumerate(deltas)):
        rows = [stability_bound(size, float(rate), delta) for rate in RATES]
        _draw(ax, color, style, RATES, rows, f"|U| = {size:,}, $\\delta$ = {delta:g}")
    for size, line_color in zip(num_public, PALETTE, strict=False):
        ax.axhline(size, color=line_color, linewidth=0.8, alpha=0.6, zorder=1)
    if estimate:
        label, dotted = f"estimate, {estimate:,}", (0, (1, 1))
        ax.axhline(estimate, color=MUTED, linestyle=dotted, linewidth=1.4, label=label)
    legend(figure, ax, columns=max(len(deltas), 2))
    return figure


def _axes(figure: Figure, xlabel: str, ylabel: str) -> Axes:
    ax = figure.subplots()
    dress(ax, xlabel=xlabel, ylabel=ylabel)
    ax.set_xscale("log")
    ax.set_yscale("log")
    return ax


def _draw(ax: Axes, color: int, style: int, x: npt.ArrayLike, y: npt.ArrayLike, label: str) -> None:
    ax.plot(
        x,
        y,
        color=PALETTE[color],
        linestyle=LINE_STYLES[style % len(LINE_STYLES)],
        linewidth=1.8,
        label=label,
    )
