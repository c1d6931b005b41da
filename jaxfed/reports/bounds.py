"""FedCT's Proposition 1, on convergence, with its Figure 1.

Assumptions and differences from the paper: `jaxfed.training.consensus`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from jaxfed.errors import UsageError
from jaxfed.host.storage import write_csv
from jaxfed.reports import style
from jaxfed.training.consensus import change_probability, rounds_needed

_LEAST = 1e-12  # smallest delta drawn; lower values are clipped to it


def write_bounds(
    folder: Path,
    clients: Sequence[int],
    rates: Sequence[float],
    public: Sequence[int],
    deltas: Sequence[float],
) -> list[str]:
    """Write convergence-U.png for each |U|, and convergence.csv.

    Args:
        folder: where they go.
        clients: m, each 3 or more.
        rates: c, for training accuracies 1 - c / t.
        public: |U|. The paper states 10,000 in Figure 1, but its printed numbers hold for 1.
        deltas: probabilities with which labels may change after round t_0.

    Returns:
        Printable lines: the least t_0 for each m, c, |U| and delta.

    Raises:
        UsageError: a number is out of its range, there are more numbers than distinguishable colors or line
            styles, or the folder cannot be written.
    """
    for name, values, most, low, high, allowed in (
        ("clients", clients, len(style.PALETTE), 3, math.inf, "integers from 3 on"),
        ("public", public, len(style.PALETTE), 1, math.inf, "integers from 1 on"),
        ("rates", rates, len(style.LINE_STYLES), 5e-324, math.inf, "numbers above 0"),
        ("deltas", deltas, len(style.LINE_STYLES), 5e-324, 0.5, "numbers above 0 and up to 0.5"),
    ):
        if not 0 < len(values) <= most:
            raise UsageError(f"--{name}: {len(values)} numbers; use 1 to {most}")
        for value in values:
            if not low <= value <= high or value == math.inf:
                raise UsageError(f"--{name}={value}: use {allowed}")
    rows = [
        {"num_public": size, "num_clients": m, "c": c, "rounds": t}
        | {"delta": change_probability(m, size, int(t), c)}
        for size, m, c in product(public, clients, rates)
        for t in np.unique(np.geomspace(max(1, math.ceil(2 * c)), 1e6, 61).astype(int))
    ]
    try:
        for size in public:
            figure = convergence_figure(clients, rates, size)
            style.write(figure, folder / f"convergence-{size}.png")
        write_csv(folder / "convergence.csv", rows[0], rows)
    except OSError as error:
        raise UsageError(f"--out={folder}: {error.filename}: {error.strerror}") from error
    return [
        f"m = {m:,}  c = {c:,}  |U| = {size:,}  delta = {delta:,}  t_0 = {rounds_needed(m, size, c, delta):,}"
        for size, m, c, delta in product(public, clients, rates, deltas)
    ]


def convergence_figure(clients: Sequence[int], rates: Sequence[float], num_public: int) -> Figure:
    """Plot the probability delta that consensus labels still change after t_0 rounds; clipped at 1.

    Each m has a color and each c a line style.
    """
    figure = style.new_figure(6.4, 4.2)
    ax = figure.subplots()
    ylabel = "Labels change afterwards, $\\delta$ at most"
    style.dress(ax, xlabel="Rounds before, $t_0$", ylabel=ylabel)
    ax.set(xscale="log", yscale="log", ylim=(_LEAST, 2))
    lines = product(
        zip(clients, style.PALETTE, strict=False), zip(rates, style.LINE_STYLES, strict=False)
    )
    for (m, color), (c, dashes) in lines:
        rounds = np.unique(np.geomspace(max(1, math.ceil(2 * c)), 1e5, 120).astype(int))
        delta = [change_probability(m, num_public, int(t), c) for t in rounds]
        look: dict[str, Any] = {
            "color": color,
            "linestyle": dashes,
            "linewidth": 1.8,
            "label": f"m = {m}, c = {c:g}",
        }
        ax.plot(rounds, np.clip(delta, _LEAST, 1), **look)
    style.legend(figure, ax)
    return figure
