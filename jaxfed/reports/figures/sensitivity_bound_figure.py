"""Figure of FedCT's Proposition 2: most labels that one example changes, by a learner's stability."""

from collections.abc import Sequence
from itertools import product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxfed.privacy.label_sensitivity import stability_bound, trivial_rows
from jaxfed.reports.figures.bound_figure import BoundLine, bound_figure
from jaxfed.reports.figures.style import LIGHT, Theme

RATES = np.geomspace(1e-6, 1, 121)


def sensitivity_bound_figure(
    *,
    num_public: Sequence[int] = (10_000, 50_000),
    deltas: Sequence[float] = (0.05, 1e-5),
    estimate: int = 0,
    theme: Theme = LIGHT,
) -> Figure:
    """Plot r against the rate e, a color for each |U| (at which lines end) and a line style for each delta.

    Args:
        num_public: |U|.
        deltas: probabilities with which the bound may fail.
        estimate: labels changed by sampled neighbors, drawn for comparison; it is no bound. 0 draws nothing.
        theme: light or dark.
    """
    lines = [
        BoundLine(
            color,
            style,
            RATES,
            [stability_bound(size, float(rate), delta) for rate in RATES],
            f"|U| = {size:,}, $\\delta$ = {delta:g}",
        )
        for (color, size), (style, delta) in product(enumerate(num_public), enumerate(deltas))
    ]

    def trivial_and_estimated(ax: Axes) -> None:
        for size, color in zip(num_public, theme.palette, strict=False):
            ax.axhline(trivial_rows(size), color=color, linewidth=0.8, alpha=0.6, zorder=1)
        if estimate:
            ax.axhline(
                estimate,
                color=theme.muted,
                linestyle=(0, (1, 1)),
                linewidth=1.4,
                label=f"estimate, {estimate:,}",
            )

    return bound_figure(
        lines,
        xlabel="Stability rate, $\\epsilon$",
        ylabel="Labels that one example changes, $r$ at most",
        columns=max(len(deltas), 2),
        beside=trivial_and_estimated,
        theme=theme,
    )
