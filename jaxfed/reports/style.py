"""Style of all plots: colors, axes, legends, and PNG files, without pyplot or global state."""

import math
import textwrap
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from absl import logging
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath
from matplotlib.ticker import NullLocator

from jaxfed.algorithms import declaration_of
from jaxfed.errors import UsageError
from jaxfed.reports.names import is_accuracy, is_share

# Colors of a plot: background, text, grid, kinds of data, and lines (a palette after Okabe and Ito, Color
# Universal Design).
BACKGROUND, INK, MUTED, GRID = "#ffffff", "#1b2530", "#5b6875", "#e4e8ec"
LABELED = "#0a5c9c"
PALETTE = (
    *("#0072b2", "#d55e00", "#009e73", "#6b7683"),
    *("#cc79a7", "#b8860b", "#56b4e9", "#7a5195", "#8c564b", "#2f4b7c"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
_SOLID = ("-", ":", "-.")  # of methods on clients' own data, by how often their color is taken
DPI = 160
_LEGEND_SIZE = 9  # points


def algorithm_styles(
    names: Sequence[str], algorithms: Mapping[str, str] = MappingProxyType({})
) -> dict[str, dict[str, Any]]:
    """Return color, marker, line style and layer of each method, as matplotlib's keywords.

    They are distinct within a plot and, as far as possible, equal in every plot: a digest of the name selects
    the color, in a collision the next free one. `algorithms` maps variants to their algorithm, which
    determines dashed lines (pooled data) and the line on top (XCLP).
    """
    slots: dict[str, int] = {}
    for name in sorted(set(names), key=lambda name: (name != "xclp", name)):
        slot = 0 if name == "xclp" else zlib.crc32(name.encode()) % len(PALETTE)
        free = [*range(slot, len(PALETTE)), *range(slot), *range(len(PALETTE), 100)]
        slots[name] = next((slot for slot in free if slot not in slots.values()), slot)
    return {
        name: {
            "color": PALETTE[slots[name] % len(PALETTE)],
            "marker": MARKERS[sum(divmod(slots[name], len(PALETTE))) % len(MARKERS)],
            "linestyle": "--"
            if declaration_of(algorithms.get(name, name)).pooled
            else _SOLID[slots[name] // len(PALETTE) % 3],
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
    ax.set_title(title, color=INK, fontsize=11, fontweight="bold", loc="left", pad=10)


def legend(figure: Figure, ax: Axes) -> None:
    """Add a legend of `ax` above all axes, where it hides nothing; from four rows on the figure grows."""
    handles, labels = ax.get_legend_handles_labels()
    if not handles:
        return
    widest = max(text_width(label, _LEGEND_SIZE) for label in labels) + 0.55
    columns = min(4, len(labels), max(1, int(figure.get_figwidth() / widest)))
    more = max(0, math.ceil(len(labels) / columns) - 3)
    figure.set_figheight(figure.get_figheight() + 0.2 * more)
    where: dict[str, Any] = {"loc": "outside upper left", "ncols": columns, "columnspacing": 1.4}
    look = {"fontsize": _LEGEND_SIZE, "labelcolor": INK, "handletextpad": 0.5, **where}
    figure.legend(handles, labels, frameon=False, **look)


def text_width(text: str, size: float) -> float:
    """Return the width in inches of a text in a font of `size` points."""
    return float(TextPath((0, 0), plain(text), size).get_extents().width) / 72


def plain(text: str, most: int = 60) -> str:
    """Make a text from data safe for a figure: no math mode, one line, at most `most` characters."""
    shown = "".join(character if character.isprintable() else " " for character in text)
    shown = shown if len(shown) <= most else f"{shown[: most - 1]}…"
    return shown.replace("$", r"\$")


def scale_for(values: Sequence[float]) -> str:
    """Return `log` for values over a decade or more, `logit` for shares close to 1, else `linear`."""
    low, high = min(values), max(values)
    if low > 0 and high / low >= 10:
        return "log"
    return "logit" if low > 0 and 0.95 <= high < 1 else "linear"


def label_ticks(axis: Axis, values: Sequence[float], texts: Sequence[str]) -> None:
    """Set ticks at those values whose labels do not overlap the one before."""
    placed = axis.get_transform().transform(np.asarray(values, float))
    apart = max(0.075, 0.015 * max(map(len, texts))) * float(np.ptp(placed))
    kept: list[int] = []
    for index in np.argsort(placed):
        if not kept or placed[index] - placed[kept[-1]] >= apart:
            kept.append(int(index))
    axis.set_ticks([values[index] for index in kept], [texts[index] for index in kept])
    axis.set_minor_locator(NullLocator())


def fit(ax: Axes, metric: str, axis: str) -> None:
    """Give an axis a smallest span, so that noise looks like noise; end a share at its limits.

    The least span is 5 points of an accuracy, 0.1 of other shares, and a tenth of the largest value of other
    metrics. Markers on a limit are drawn whole.
    """
    low, high = getattr(ax, f"get_{axis}lim")()
    top = 100.0 if is_accuracy(metric) else 1.0
    others = 0.1 if is_share(metric) else 0.1 * max(abs(low), abs(high))
    least = 5.0 if is_accuracy(metric) else others
    wider = max(0.0, least - (high - low)) / 2
    low, high = low - wider, high + wider
    if is_share(metric):
        low, high = max(min(low, top - least), 0.0), min(max(high, least), top)
        for line in ax.lines:
            line.set_clip_on(line.get_marker() in ("|", "_"))  # caps of error bars
    getattr(ax, f"set_{axis}lim")(low, high)


def write(figure: Figure, path: Path, formats: Sequence[str] = ()) -> Path:
    """Save a figure as PNG, and beside it in these formats; create the folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # shown as boxes
        for suffix in (path.suffix, *(f".{each}" for each in formats)):
            figure.savefig(path.with_suffix(suffix))
    return path


def try_to_write(draw: Callable[[], Figure], path: Path, formats: Sequence[str] = ()) -> None:
    """Draw and save a picture; if drawing fails, log a warning and remove an earlier file.

    Raises:
        OSError: the file cannot be written.
        UsageError: an input file is invalid.
    """
    try:
        write(draw(), path, formats)
    except (OSError, UsageError):
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        logging.warning("%s: cannot be drawn (%s: %s)", path, type(error).__name__, text)
        path.unlink(missing_ok=True)
