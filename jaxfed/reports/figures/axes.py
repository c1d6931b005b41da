"""Axes of plots: scales, ticks and limits chosen from the values."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from jaxfed.reports.tables.curves import is_number
from jaxfed.reports.tables.display_names import is_accuracy, is_share, setting_label, setting_text


def place_values(ax: Axes, key: str, values: Sequence[Any]) -> list[float]:
    """Choose the horizontal scale for swept values, set their ticks, and return their positions."""
    if not is_quantity(key, values):
        positions = [float(index) for index in range(len(values))]
        longest = max((len(setting_text(value)) for value in values), default=0)
        crowded = longest * len(values) > 60
        ax.set_xticks(
            positions,
            [setting_text(value) for value in values],
            rotation=30 if crowded else 0,
            ha="right" if crowded else "center",
        )
        ax.margins(x=0.08)
        return positions
    positions = [float(value) for value in values]
    scale = scale_for(positions)
    ax.set_xscale(scale)
    ax.set_xlim(*limits(positions, scale))
    texts = [setting_text(float(value)) for value in values]
    ax.xaxis.set_major_locator(FixedLocator(labeled(positions, scale, texts)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: setting_text(float(value))))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_minor_formatter(NullFormatter())
    return positions


def mark_above(
    ax: Axes, positions: Sequence[float], label: str, values: Sequence[float], *, color: str
) -> None:
    """Add a top axis that shows a second quantity at these positions."""
    digits = (setting_text(float(f"{value:.3g}")) for value in values)
    text = dict(zip(positions, digits, strict=True))
    shown = labeled(positions, ax.get_xscale(), list(text.values()))
    top = ax.secondary_xaxis("top")
    top.set_xlabel(label, color=color, fontsize=9)
    top.set_xticks(shown, [text[position] for position in shown])
    top.xaxis.set_minor_locator(NullLocator())
    top.tick_params(colors=color, labelsize=8)
    top.spines["top"].set_color(color)


def scale_for(values: Sequence[float]) -> str:
    """Return `log` for values over a decade or more, `logit` for shares close to 1, else `linear`."""
    low, high = min(values), max(values)
    if low > 0 and high / low >= 10:
        return "log"
    if low > 0 and 0.95 <= high < 1:
        return "logit"
    return "linear"


def spread(values: npt.ArrayLike, scale: str) -> npt.NDArray[np.float64]:
    """Return the positions of values on an axis, up to an affine map."""
    array = np.asarray(values, dtype=np.float64)
    if scale == "log":
        return np.log(array)
    return np.log(array / (1 - array)) if scale == "logit" else array


def limits(values: Sequence[float], scale: str) -> tuple[float, float]:
    """Return the limits of an axis with a margin around the values."""
    placed = spread(values, scale)
    margin = 0.06 * float(np.ptp(placed)) or 0.5
    low, high = float(placed.min()) - margin, float(placed.max()) + margin
    if scale == "log":
        return math.exp(low), math.exp(high)
    if scale == "logit":
        return 1 / (1 + math.exp(-low)), 1 / (1 + math.exp(-high))
    return low, high


def labeled(values: Sequence[float], scale: str, texts: Sequence[str] = ()) -> list[float]:
    """Return the values whose labels `texts` do not overlap the previous label."""
    placed = spread(values, scale)
    width = 0.015 * max(map(len, texts), default=0)  # of the longest, as a share of the axis
    apart = max(0.075, width) * float(np.ptp(placed))
    kept: list[int] = []
    for index in np.argsort(placed):
        if not kept or placed[index] - placed[kept[-1]] >= apart:
            kept.append(int(index))
    return [values[index] for index in kept]


def fit(ax: Axes, metric: str, axis: str, examples: int = 0) -> None:
    """Give an axis a sensible smallest span, so that noise looks like noise; end a share at its limits.

    The least span of an accuracy is eight standard errors, 8 sqrt(p (1 - p) / n), for p in the middle of the
    axis (within 0.1 and 0.9) and n = `examples` that it is measured on. A difference of one standard error,
    six images of 360, then takes an eighth of the axis. It is 5 points if n is unknown, 0.1 for other shares,
    and a tenth of the largest value for other metrics. Markers on a limit are drawn whole, error bars are
    clipped.
    """
    low, high = getattr(ax, f"get_{axis}lim")()
    top = 100.0 if is_accuracy(metric) else 1.0
    if is_accuracy(metric):
        p = min(max((low + high) / 2 / top, 0.1), 0.9)
        least = 8 * top * math.sqrt(p * (1 - p) / examples) if examples else 5.0
    else:
        least = 0.1 if is_share(metric) else 0.1 * max(abs(low), abs(high))
    wider = max(0.0, least - (high - low)) / 2
    low, high = low - wider, high + wider
    if is_share(metric):
        low, high = min(low, top - least), max(high, least)
        low, high = max(low, 0.0), min(high, top)
        bars = [each for each in ax.containers if isinstance(each, ErrorbarContainer)]
        for line in set(ax.lines) - {cap for bar in bars for cap in bar.lines[1]}:
            line.set_clip_on(False)
    getattr(ax, f"set_{axis}lim")(low, high)


def thin_log_ticks(ax: Axes) -> None:
    """Set few labels on a vertical logarithmic axis, as plain numbers."""
    low, high = ax.get_ylim()
    steps = (1, 2, 5) if high / low < 1000 else (1,)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ax.yaxis.set_major_locator(FixedLocator([s * 10.0**d for d in decades for s in steps]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_ylim(low, high)


def is_quantity(key: str, values: Sequence[Any]) -> bool:
    """True if values lie on a scale; the id of a left-out client is a number but no quantity."""
    names_a_client = key.endswith(("client", "client_id", "left_out"))
    return not names_a_client and all(is_number(value) for value in values)


def axis_label(key: str) -> str:
    """Return a setting's label with an upper-case first letter."""
    label = setting_label(key)
    return label[:1].upper() + label[1:]
