"""FedCT's Proposition 1 drawn: how surely consensus labels have settled after so many rounds (Figure 1)."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from jaxfed.reports.style import LIGHT, LINE_STYLES, Theme, dress, legend, new_figure
from jaxfed.training.consensus_bound import change_probability

_LEAST = 1e-12  # of delta: below it a line is at the bottom


def consensus_bound_figure(
    *,
    num_clients: Sequence[int] = (5, 50, 100),
    rates: Sequence[float] = (1.0, 2.0, 10.0),
    num_public: int = 10_000,
    most_rounds: int = 100_000,
    changes: Sequence[tuple[int, float]] = (),
    theme: Theme = LIGHT,
) -> Figure:
    """delta against t_0, a color for each m and a line style for each c; above 1 the bound says nothing.

    Args:
        num_clients: m, each 3 or more.
        rates: c, of training accuracies 1 - c / t.
        num_public: |U|. The paper says 10,000 and prints figures of 1.
        most_rounds: the largest t_0.
        changes: (round, share of labels that changed in it) of a run, drawn as dots; zeros are left out.
        theme: light or dark.
    """
    figure = new_figure(6.4, 4.2, theme)
    ax = figure.subplots()
    dress(
        ax,
        theme,
        xlabel="Rounds before, $t_0$",
        ylabel="Labels change afterwards, $\\delta$ at most",
    )
    for m, color in zip(num_clients, theme.palette, strict=False):
        for number, c in enumerate(rates):
            first = max(1, int(np.ceil(2 * c)))
            rounds = np.unique(np.geomspace(first, most_rounds, 120).astype(int))
            delta = [change_probability(m, num_public, int(t), c) for t in rounds]
            ax.plot(
                rounds,
                np.clip(delta, _LEAST, 1),
                color=color,
                linestyle=LINE_STYLES[number % len(LINE_STYLES)],
                linewidth=1.8,
                label=f"m = {m}, c = {c:g}",
            )
    seen = [(number, share) for number, share in changes if share > 0]
    if seen:
        ax.plot(
            *zip(*seen, strict=True),
            ".",
            color=theme.muted,
            markersize=4,
            label="measured: share that changed",
        )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(_LEAST, 2)
    legend(figure, ax, theme, columns=min(max(len(num_clients), 2), 4))
    return figure
