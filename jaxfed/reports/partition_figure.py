"""Figure of the partition: heat maps of the examples of each class at each client."""

import math
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxfed.reports.style import INK, LABELED, MUTED, NEW, dress, new_figure, plain, sequential

UNKNOWN = "(unknown)"
"""Name of the column of examples whose class is unknown."""
_MAX_NAMED = 25
_WIDTHS = {"Server": 0.4, "Public": 0.4}  # of a panel without clients, in those of one with


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
    """Plot the number of examples of each class at each client: a heat map for each kind of examples.

    A line below gives the `mean_distances`, without examples of the class `UNKNOWN`.

    Args:
        labeled: counts, int [num_clients, num_classes].
        unlabeled: counts of the clients' training data without labels, same shape.
        new: counts of the data that clients want classified, same shape.
        apart: owner ("server", "public") -> counts, int [num_classes] or [1, num_classes].
        class_names: numbers if not given.
        client_names: shown for at most 25; numbers if not given.
        every: k if only every k-th client is counted.
    """
    kinds = {"Labeled": np.asarray(labeled), "Unlabeled": np.asarray(unlabeled)}
    if new is not None:
        kinds["New, to be classified"] = np.asarray(new)
    num_clients, num_classes = kinds["Labeled"].shape
    names = [str(name) for name in class_names or range(num_classes)]
    is_known = np.array([name != UNKNOWN for name in names], bool)
    distances = mean_distances(kinds["Labeled"][:, is_known], kinds["Unlabeled"][:, is_known])
    kinds = {title: counts for title, counts in kinds.items() if np.any(counts)} or kinds
    kinds |= {whose.title(): np.atleast_2d(counts) for whose, counts in (apart or {}).items()}
    widths = [_WIDTHS.get(title, 1.0) for title in kinds]
    height = float(np.clip(3.4 * num_classes / num_clients, 2.2, 5.0)) + 1.8
    figure = new_figure(1.2 + min(3.4, 11 / sum(widths)) * sum(widths), height)
    axes = figure.subplots(1, len(kinds), sharey=True, squeeze=False, width_ratios=widths)[0]
    for ax, (title, counts) in zip(axes, kinds.items(), strict=True):
        image = ax.imshow(
            counts.T,
            cmap=sequential(NEW if title.startswith("New") else LABELED),
            # Square roots: a few large counts must not make all small ones look empty.
            norm=PowerNorm(0.5, vmin=0, vmax=max(1, int(counts.max(initial=0)))),
            aspect="auto",
            interpolation="nearest",
        )
        dress(ax, title=title)
        ax.grid(False)
        bar = figure.colorbar(image, ax=ax, orientation="horizontal", aspect=30, pad=0.04)
        bar.outline.set_visible(False)
        bar.locator = MaxNLocator(1 if title in _WIDTHS else 4, integer=True)
        bar.update_ticks()
        bar.ax.tick_params(colors=MUTED, labelsize=9, length=2)
        bar.set_label(f"{int(counts.sum()):,} examples", color=MUTED, fontsize=9)
        if title in _WIDTHS:
            ax.set_xticks([])
            continue
        ax.set_xlabel("Client" if every == 1 else f"Client, one in {every}")
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if client_names and num_clients <= _MAX_NAMED:
            texts = [plain(name, 18) for name in client_names]
            ax.set_xticks(range(num_clients), texts, rotation=45, ha="right")
    axes[0].yaxis.set_major_locator(MaxNLocator(10, integer=True))
    if num_classes <= _MAX_NAMED:
        axes[0].set_yticks(range(num_classes), [plain(name, 18) for name in names], color=INK)
    axes[0].set_ylabel("Class", color=INK, fontsize=10)
    told = ("a client from all", "labeled from unlabeled in a client")
    shown = [f"{t} {v:.2f}" for t, v in zip(told, distances, strict=True) if not math.isnan(v)]
    if shown:
        text = f"Mean total variation distance: {', '.join(shown)}"
        wide = int(12 * figure.get_figwidth())
        figure.supxlabel(textwrap.fill(text, wide), color=INK, fontsize=9)
    return figure


def mean_distances(labeled: npt.ArrayLike, unlabeled: npt.ArrayLike) -> list[float]:
    """Return mean total variation distances of class shares: clients from all, their labeled from unlabeled.

    The distance of shares p and q is half the sum of abs(p_c - q_c). The means are over clients with
    examples, and with both kinds; NaN if there is none. Counts are int [num_clients, num_classes].
    """
    parts = np.asarray(labeled, float), np.asarray(unlabeled, float)
    held = parts[0] + parts[1]
    means = []
    for one, other in ((held, np.broadcast_to(held.sum(axis=0), held.shape)), parts):
        has_both = (one.sum(axis=1) > 0) & (other.sum(axis=1) > 0)
        p, q = (part[has_both] / part[has_both].sum(axis=1, keepdims=True) for part in (one, other))
        distances = np.abs(p - q).sum(axis=1) / 2
        means.append(float(distances.mean()) if len(distances) else math.nan)
    return means
