"""Figure of the partition: examples of each class at each client, as bubbles or heat maps."""

import math
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from jaxfed.reports.figures.style import (
    INK,
    LABELED,
    MUTED,
    NEW,
    UNLABELED,
    dress,
    new_figure,
    plain,
    sequential,
)

Counts = npt.NDArray[np.int64]

UNKNOWN = "(unknown)"
"""Name of the column of examples whose class is unknown."""

_MAX_BUBBLES = 400
_MAX_NAMED = 25
_BARS = 1.6  # width in inches of a bar panel (server or public examples)


def partition_figure(
    labeled: npt.ArrayLike,
    unlabeled: npt.ArrayLike,
    new: npt.ArrayLike | None = None,
    *,
    apart: Mapping[str, npt.ArrayLike] | None = None,
    class_names: Sequence[str] | None = None,
    client_names: Sequence[str] | None = None,
    every: int = 1,
) -> Figure:
    """Plot the number of examples of each class at each client, by kind: labeled, unlabeled and new.

    Few clients and classes are drawn as bubbles with areas proportional to counts: labeled data in front of
    all training data. Many are drawn as heat maps, one for each kind. The server's examples and public ones
    have separate bar panels with their own scale. A line below gives the `mean_distances`, without examples
    of the class `UNKNOWN`.

    Args:
        labeled: counts, int [num_clients, num_classes].
        unlabeled: counts of the clients' training data without labels, same shape.
        new: counts of the data that clients want classified, same shape; None if there are none.
        apart: owner ("server", "public") -> counts, int [num_classes] or [1, num_classes].
        class_names: one name for each class; numbers if not given.
        client_names: one name for each client, shown for at most 25; numbers if not given.
        every: k if only every k-th client is counted.
    """
    kinds = {"labeled": np.asarray(labeled), "unlabeled": np.asarray(unlabeled)}
    if new is not None and np.any(new):
        kinds["new"] = np.asarray(new)
    num_clients, num_classes = kinds["labeled"].shape
    names = [str(name) for name in class_names or range(num_classes)]
    bars = {whose: np.atleast_2d(counts) for whose, counts in (apart or {}).items()}
    draw = _bubbles if num_clients * num_classes <= _MAX_BUBBLES else _heat_maps
    figure = draw(kinds, bars, names)
    is_known = np.array([name != UNKNOWN for name in names], bool)
    _add_distances(figure, kinds["labeled"][:, is_known], kinds["unlabeled"][:, is_known])
    for ax in figure.axes:
        if ax.get_xlabel() == "Client":
            if client_names and num_clients <= _MAX_NAMED:
                texts = [plain(name, 18) for name in client_names]
                ax.set_xticks(range(num_clients), texts, rotation=45, ha="right")
            if every > 1:
                ax.set_xlabel(f"Client, one in {every}")
    return figure


def mean_distances(labeled: npt.ArrayLike, unlabeled: npt.ArrayLike) -> tuple[float, float]:
    """Return two mean total variation distances of class shares, over clients.

    The distance of shares p and q is half the sum of abs(p_c - q_c): 0 if they are equal, 1 if no class is in
    both.

    Args:
        labeled: counts, int [num_clients, num_classes].
        unlabeled: the same for examples without labels.

    Returns:
        The distance of a client's examples from those of all clients, over clients with examples; and of its
        labeled from its unlabeled examples, over clients with both. NaN if there is no such client.
    """
    parts = np.asarray(labeled, float), np.asarray(unlabeled, float)
    held = parts[0] + parts[1]
    everybody = np.broadcast_to(held.sum(axis=0), held.shape)
    means = []
    for one, other in ((held, everybody), parts):
        has_both = (one.sum(axis=1) > 0) & (other.sum(axis=1) > 0)
        p, q = (part[has_both] / part[has_both].sum(axis=1, keepdims=True) for part in (one, other))
        distances = np.abs(p - q).sum(axis=1) / 2
        means.append(float(distances.mean()) if len(distances) else math.nan)
    return means[0], means[1]


def _add_distances(figure: Figure, labeled: Counts, unlabeled: Counts) -> None:
    """Add the mean distances below the axes, without those that are NaN."""
    texts = ("a client from all", "labeled from unlabeled in a client")
    values = mean_distances(labeled, unlabeled)
    shown = [f"{t} {v:.2f}" for t, v in zip(texts, values, strict=True) if not math.isnan(v)]
    if shown:
        text = f"Mean total variation distance: {', '.join(shown)}"
        text = textwrap.fill(text, int(12 * figure.get_figwidth()))
        below = figure.legends or [
            figure.legend([], [], loc="outside lower center", frameon=False, labelcolor=INK)
        ]
        below[0].set_title(text, prop=FontProperties(size=9))


def _bubbles(
    kinds: Mapping[str, Counts],
    bars: Mapping[str, Counts],
    class_names: Sequence[str],
) -> Figure:
    training = kinds["labeled"] + kinds["unlabeled"]
    num_clients, num_classes = training.shape
    most = max(1, int(training.max(initial=0)), int(kinds.get("new", training).max(initial=0)))
    panels = 2 if "new" in kinds else 1
    room = min(5.5, (11 - _BARS * len(bars)) / panels)  # to fit on a page
    cell = min(0.5, room / max(1, num_clients), 7.0 / max(1, num_classes))
    panel = max(2.7, cell * num_clients + 0.3)
    figure = new_figure(
        max(4.6, panels * panel + 1.5) + _BARS * len(bars),
        max(2.6, cell * num_classes + 1.7),
    )
    axes = _side_by_side(figure, panels, panel, bars)
    full = (0.92 * cell * 72) ** 2  # The largest bubble's area in points squared.

    def draw(ax: Axes, counts: Counts, color: str) -> None:
        client, label = np.nonzero(counts)
        ax.scatter(client, label, s=full * counts[client, label] / most, color=color, linewidths=0)

    draw(axes[0], training, UNLABELED)
    draw(axes[0], kinds["labeled"], LABELED)
    if "new" in kinds:
        draw(axes[1], kinds["new"], NEW)
    titles = ("Training data", "New data, to be classified")
    for ax, title in zip(axes[:panels], titles, strict=False):
        dress(ax, title=title, xlabel="Client")
        ax.set_xlim(-0.6, num_clients - 0.4)
        ax.set_ylim(num_classes - 0.4, -0.6)
        ax.set_xticks(range(0, num_clients, math.ceil(num_clients / 10)))
        for side in ("left", "bottom"):
            ax.spines[side].set_visible(False)
        ax.tick_params(length=0)
    _name_classes(axes[0], class_names)
    _partition_legend(figure, kinds, f"largest bubble: {most} examples")
    return figure


def _side_by_side(
    figure: Figure, panels: int, panel: float, bars: Mapping[str, Counts]
) -> Sequence[Axes]:
    """Return axes for the clients' counts, each `panel` inches wide; draw the bar panels to their right."""
    widths = [panel] * panels + [_BARS] * len(bars)
    axes = figure.subplots(1, len(widths), sharey=True, squeeze=False, width_ratios=widths)[0]
    for ax, (whose, counts) in zip(axes[panels:], bars.items(), strict=True):
        color = {"server": LABELED}.get(whose, UNLABELED)
        ax.barh(range(counts.shape[1]), counts[0], height=0.7, color=color)
        dress(ax, title=whose.capitalize(), xlabel="Examples")
        ax.xaxis.set_major_locator(MaxNLocator(2, integer=True))
    return list(axes)


def _heat_maps(
    kinds: Mapping[str, Counts],
    bars: Mapping[str, Counts],
    class_names: Sequence[str],
) -> Figure:
    colors = {"labeled": LABELED, "unlabeled": LABELED, "new": NEW}
    titles = {"labeled": "Labeled", "unlabeled": "Unlabeled", "new": "New, to be classified"}
    num_clients, num_classes = kinds["labeled"].shape
    panel = 3.4 - _BARS * len(bars) / len(kinds)
    height = float(np.clip(panel * num_classes / num_clients, 2.2, 6.0))
    figure = new_figure(panel * len(kinds) + _BARS * len(bars) + 1.2, height + 1.5)
    axes = _side_by_side(figure, len(kinds), panel, bars)
    for ax, (kind, counts) in zip(axes, kinds.items(), strict=False):
        image = ax.imshow(
            counts.T,
            cmap=sequential(colors[kind]),
            # Square roots: a few large counts must not make all small ones look empty.
            norm=PowerNorm(0.5, vmin=0, vmax=max(1, int(counts.max(initial=0)))),
            aspect="auto",
            interpolation="nearest",
        )
        dress(ax, title=titles[kind], xlabel="Client")
        ax.grid(False)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        bar = figure.colorbar(
            image, ax=ax, orientation="horizontal", shrink=0.9, aspect=30, pad=0.04
        )
        bar.outline.set_visible(False)
        bar.locator = MaxNLocator(4, integer=True)
        bar.update_ticks()
        bar.ax.tick_params(colors=MUTED, labelsize=9, length=2)
        bar.set_label("examples", color=MUTED, fontsize=9)
    _name_classes(axes[0], class_names)
    return figure


def _name_classes(ax: Axes, names: Sequence[str]) -> None:
    if len(names) <= _MAX_NAMED:
        shortened = [plain(name, 18) for name in names]
        ax.set_yticks(range(len(names)), shortened, color=INK)
    else:
        ax.yaxis.set_major_locator(MaxNLocator(10, integer=True))
    ax.set_ylabel("Class", color=INK, fontsize=10)


def _partition_legend(figure: Figure, kinds: Mapping[str, Counts], scale: str) -> None:
    colors = {"labeled": LABELED, "unlabeled": UNLABELED, "new": NEW}
    handles = [
        Line2D([], [], marker="o", linestyle="", color=colors[kind], markersize=8) for kind in kinds
    ]
    figure.legend(
        [*handles, Line2D([], [], linestyle="")],
        [f"{kind} ({int(counts.sum()):,})" for kind, counts in kinds.items()] + [scale],
        loc="outside lower center",
        ncols=len(kinds) + 1 if figure.get_figwidth() > 1.6 * (len(kinds) + 1) else 2,
        frameon=False,
        fontsize=9,
        labelcolor=INK,
        handletextpad=0.3,
        columnspacing=1.4,
    )
