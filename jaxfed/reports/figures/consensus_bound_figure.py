"""Figure of FedCT's Proposition 1: probability that consensus labels still change after t_0 rounds."""

from collections.abc import Sequence
from itertools import product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxfed.reports.figures.bound_figure import BoundLine, bound_figure
from jaxfed.reports.figures.style import LIGHT, Theme
from jaxfed.training.consensus.consensus_bound import change_probability

_LEAST = 1e-12  # smallest delta drawn; lower values are clipped to it


def consensus_bound_figure(
    *,
    num_clients: Sequence[int] = (5, 50, 100),
    rates: Sequence[float] = (1.0, 2.0, 10.0),
    num_public: int = 10_000,
    most_rounds: int = 100_000,
    changes: Sequence[tuple[int, float]] = (),
    theme: Theme = LIGHT,
) -> Figure:
    """Plot delta against t_0, a color for each m and a line style for each c; the bound is clipped at 1.

    Args:
        num_clients: m, each 3 or more.
        rates: c, for training accuracies 1 - c / t.
        num_public: |U|. The paper states 10,000, but its printed numbers hold for 1.
        most_rounds: the largest t_0.
        changes: (round, share of labels that changed) of a run, drawn as dots; zeros are omitted.
        theme: light or dark.
    """
    lines = []
    for (color, m), (style, c) in product(enumerate(num_clients), enumerate(rates)):
        rounds = np.unique(np.geomspace(max(1, int(np.ceil(2 * c))), most_rounds, 120).astype(int))
        delta = [change_probability(m, num_public, int(t), c) for t in rounds]
        label = f"m = {m}, c = {c:g}"
        lines.append(BoundLine(color, style, rounds, np.clip(delta, _LEAST, 1), label))

    def measured(ax: Axes) -> None:
        seen = [(number, share) for number, share in changes if share > 0]
        if seen:
            ax.plot(
                *zip(*seen, strict=True),
                ".",
                color=theme.muted,
                markersize=4,
                label="measured: share that changed",
            )
        ax.set_ylim(_LEAST, 2)

    return bound_figure(
        lines,
        xlabel="Rounds before, $t_0$",
        ylabel="Labels change afterwards, $\\delta$ at most",
        columns=min(max(len(num_clients), 2), 4),
        beside=measured,
        theme=theme,
    )
