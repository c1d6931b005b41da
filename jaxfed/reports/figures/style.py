"""Common style of all plots: colors, markers, axes, legends, light and dark themes."""

import math
import textwrap
import zlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath

from jaxfed.algorithms import declaration_of

# Colors of a plot: background, text, grid, kinds of data, and lines (a palette after Okabe and Ito, Color
# Universal Design).
BACKGROUND, INK, MUTED, GRID = "#ffffff", "#1b2530", "#5b6875", "#e4e8ec"
OTHERS = "#cdd4da"  # methods that a panel compares its own with
LABELED, UNLABELED, NEW = "#0a5c9c", "#a9cfec", "#e69f00"
PALETTE = (
    *("#0072b2", "#d55e00", "#009e73", "#6b7683"),
    *("#cc79a7", "#b8860b", "#56b4e9", "#7a5195", "#8c564b", "#2f4b7c"),
)

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")

# These methods have reserved colors; all others share the rest of the palette.
_OWN_COLOR = ("xclp", "per_client_lp", "client_knn", "network", "pooled_lp")

LINE_STYLES = ("-", "--", ":", "-.")  # for lines of the same color
MOST_LINES = len(PALETTE) - len(_OWN_COLOR)  # most other methods with distinct colors

DPI = 160


def algorithm_styles(
    names: Sequence[str], algorithms: Mapping[str, str] = MappingProxyType({})
) -> dict[str, dict[str, Any]]:
    """Return color and marker of each method, in the given order.

    They are distinct within a plot and, as far as possible, equal in every plot. `algorithms` maps variants
    to their algorithm, which determines dashed lines (pooled data) and the line on top (XCLP).
    """
    looks = {name: (_OWN_COLOR.index(name),) * 2 for name in names if name in _OWN_COLOR}
    others = list(range(len(_OWN_COLOR), len(PALETTE)))
    unused = [slot for slot, name in enumerate(_OWN_COLOR) if name not in names]
    for name in sorted(set(names) - set(_OWN_COLOR)):
        # A digest of the name selects its slot; in a collision, the next free one, last those of methods
        # that are not in the plot. If all are taken, colors repeat with other markers.
        own = zlib.crc32(name.encode()) % len(others)
        ring = others[own:] + others[:own] + unused
        possible = [
            (slot, (slot + shift) % len(MARKERS)) for shift in range(len(MARKERS)) for slot in ring
        ]
        looks[name] = next((look for look in possible if look not in looks.values()), possible[0])
    return {
        name: {
            "color": PALETTE[looks[name][0]],
            "marker": MARKERS[looks[name][1]],
            "linestyle": "--" if declaration_of(algorithms.get(name, name)).pooled else "-",
            "zorder": 4 if algorithms.get(name, name) == "xclp" else 3,
        }
        for name in names
    }


def new_figure(width: float, height: float) -> Figure:
    """Return a figure (size in inches) with its own raster canvas, unknown to pyplot's global state."""
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor=BACKGROUND)
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    FigureCanvasAgg(figure)
    return figure


def dress(ax: Axes, *, title: str = "", xlabel: str = "", ylabel: str = "") -> None:
    """Apply the common style to axes."""
    ax.set_facecolor(BACKGROUND)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(MUTED)
        spine.set_linewidth(0.8)
    ax.grid(True, color=GRID, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.tick_params(which="both", colors=MUTED, labelsize=9, length=3, width=0.8)
    ax.tick_params(which="minor", length=0, labelbottom=False, labelleft=False)
    ax.set_xlabel(xlabel, color=INK, fontsize=10)
    ax.set_ylabel(textwrap.fill(ylabel, 38), color=INK, fontsize=10)
    if title:
        ax.set_title(title, color=INK, fontsize=11, fontweight="bold", loc="left", pad=10)


def legend(figure: Figure, ax: Axes, *, columns: int = 0) -> None:
    """Add a legend of `ax` above all axes, where it hides nothing; 0 columns are as many as fit.

    A long legend makes the figure higher; the axes keep their size.
    """
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        columns = min(columns, len(handles)) or _columns_that_fit(labels, figure.get_figwidth())
        more = max(0, math.ceil(len(handles) / columns) - _LEGEND_ROWS)
        figure.set_figheight(figure.get_figheight() + 1.6 * more * _LEGEND_SIZE / 72)
        figure.legend(
            handles,
            labels,
            loc="outside upper left",
            ncols=columns,
            frameon=False,
            fontsize=_LEGEND_SIZE,
            labelcolor=INK,
            handletextpad=0.5,
            columnspacing=1.4,
        )


_LEGEND_SIZE = 9  # points
_LEGEND_ROWS = 3  # rows that fit without making the figure higher


def _columns_that_fit(labels: Sequence[str], width: float) -> int:
    """Return the most columns of a legend, up to four, that fit into `width` inches."""
    inches = [text_width(label, _LEGEND_SIZE) for label in labels]
    beside = 4.2 * _LEGEND_SIZE / 72  # width of the line sample and the spaces around each text
    for columns in range(min(4, len(labels)), 1, -1):
        filled = np.array_split(inches, columns)  # as matplotlib fills them
        if sum(max(each) + beside for each in filled) <= width:
            return columns
    return 1


def text_width(text: str, size: float) -> float:
    """Return the width in inches of a text in a font of `size` points."""
    return float(TextPath((0, 0), plain(text), size).get_extents().width) / 72


def plain(text: str, most: int = 60) -> str:
    """Make a text from data safe for a figure: no math mode, one line, at most `most` characters."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    shown = shown if len(shown) <= most else f"{shown[: most - 1]}…"
    return shown.replace("$", r"\$")


def sequential(color: str) -> matplotlib.colors.Colormap:
    """Return a color map for counts, from the background to `color`."""
    return LinearSegmentedColormap.from_list("counts", [BACKGROUND, color])
