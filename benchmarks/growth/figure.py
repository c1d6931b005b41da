"""Figure of a task's run time against its number of points: ours, peers', and the machine's limits."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

from jaxfed.reports.style import (
    BACKGROUND,
    INK,
    MARKERS,
    MUTED,
    PALETTE,
    dress,
    label_ticks,
    legend,
    new_figure,
)

# Display names of a machine's rates, and their units.
_RESOURCES = {
    "bytes": ("memory", "B/s"),
    "popcount_bits": ("popcount units", "bit/s"),
    "matmul_f32_flops": ("float32 products", "FLOP/s"),
    "matmul_bf16_flops": ("bfloat16 products", "FLOP/s"),
    "matmul_int8_ops": ("int8 products", "OP/s"),
}
_LINE_STYLES = ("--", ":", "-.")  # of limits
_SCALED, _DOUBTFUL = "scaled up from a part", "in doubt: growth.csv says why"


class Timing(NamedTuple):
    """Seconds of one contestant at n points: median, fastest and slowest of several rounds.

    Fields:
        part: the share of the task that was measured and extrapolated, or None.
        doubt: the reason why the number is unreliable, or None.
    """

    n: int
    seconds: float
    fastest: float
    slowest: float
    part: float | None = None
    doubt: str | None = None


class Limit(NamedTuple):
    """Lower bounds (n, seconds) on a task's time, at the machine's rate per second for one resource."""

    resource: str
    rate: float
    times: Sequence[tuple[int, float]]


class Growth(NamedTuple):
    """Measurements of a task in one case.

    Fields:
        timings: by contestant, n ascending; ours is the first.
        limits: of the machine.
        left_out: by contestant, (n, expected seconds) where it was skipped because it takes too long.
    """

    task: str
    case: str
    timings: Mapping[str, Sequence[Timing]]
    limits: Sequence[Limit]
    left_out: Mapping[str, Sequence[tuple[int, float]]]


def growth_figure(growth: Growth) -> Figure:
    """Plot medians as lines, the range of rounds as bands, and limits as dashed lines.

    A peer's line ends where it would take too long. Hollow markers are extrapolated from a part of the task;
    crossed-out ones are unreliable.
    """
    figure = new_figure(6.4, 4.6)
    ax = figure.subplots()
    xlabel = f"Points n ({growth.case})" if growth.case else "Points n"
    title = growth.task[:1].upper() + growth.task[1:]
    dress(ax, title=title, xlabel=xlabel, ylabel="Time")
    ax.set(xscale="log", yscale="log")
    ax.margins(x=0.06)
    for index, (name, timings) in enumerate(growth.timings.items()):
        color = PALETTE[index % len(PALETTE)]
        _draw(ax, timings, _label(name, growth.left_out.get(name, ())), color, index)
    for index, (resource, rate, times) in enumerate(growth.limits):
        name, unit = _RESOURCES.get(resource, (resource, "/s"))
        ax.plot(
            *zip(*times, strict=True),
            color=INK,
            linestyle=_LINE_STYLES[index % len(_LINE_STYLES)],
            linewidth=1.4,
            label=f"Limit: {name}, {EngFormatter(unit, places=1)(rate)}",
            zorder=2,
        )
    for label, marker in _notes(growth):
        ax.plot([], [], marker, color=MUTED, markerfacecolor="none", markersize=6, label=label)
    sizes = sorted({t.n for timings in growth.timings.values() for t in timings})
    label_ticks(ax.xaxis, sizes, [f"{n:,}" for n in sizes])
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(EngFormatter("s"))
    legend(figure, ax)
    return figure


def _draw(ax: Axes, timings: Sequence[Timing], label: str, color: str, index: int) -> None:
    n = [timing.n for timing in timings]
    ax.fill_between(
        n,
        [timing.fastest for timing in timings],
        [timing.slowest for timing in timings],
        color=color,
        alpha=0.18,
        lw=0,
    )
    (line,) = ax.plot(
        n,
        [timing.seconds for timing in timings],
        color=color,
        marker=MARKERS[index % len(MARKERS)],
        markersize=6,
        linewidth=1.8,
        label=label,
        zorder=4 - min(index, 1),
    )
    for timing in timings:
        at = [timing.n], [timing.seconds]
        if timing.part is not None:
            ax.plot(
                *at,
                marker=line.get_marker(),
                markersize=6,
                color=color,
                markerfacecolor=BACKGROUND,
                zorder=5,
            )
        if timing.doubt is not None:
            ax.plot(*at, "x", color=INK, markersize=8, zorder=6)


def _label(name: str, left_out: Sequence[tuple[int, float]]) -> str:
    if not left_out:
        return name
    n, seconds = left_out[0]
    return f"{name} (left out from {n:,} on: {EngFormatter('s', places=0)(seconds)})"


def _notes(growth: Growth) -> list[tuple[str, str]]:
    """Return legend entries (label, marker) for the special markers that occur."""
    timings = [timing for line in growth.timings.values() for timing in line]
    signs = (
        (_SCALED, "o", any(timing.part is not None for timing in timings)),
        (_DOUBTFUL, "x", any(timing.doubt is not None for timing in timings)),
    )
    return [(label, marker) for label, marker, is_there in signs if is_there]
