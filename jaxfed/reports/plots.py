"""Plots of results: functions from numbers to matplotlib Figures; no pyplot, no global state."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from jaxfed.errors import UsageError
from jaxfed.experiment.records import (
    Measurement,
    Run,
    measure,
    read_json,
    read_metrics,
    sort_algorithms,
)
from jaxfed.reports.curves import is_number
from jaxfed.reports.style import (
    LIGHT,
    Theme,
    algorithm_label,
    algorithm_styles,
    dress,
    is_accuracy,
    is_share,
    metric_label,
    new_figure,
    sequential,
    setting_label,
    setting_text,
)

Counts = npt.NDArray[np.int64]

# Clients times classes up to which a partition is drawn as bubbles; above, as heat maps.
_MAX_BUBBLES = 400
_MAX_NAMED_CLASSES = 25

# Plots of training runs, by what metrics.jsonl has of every round or of some.
_OVER_ROUNDS = {
    "validation": "validation_accuracy",
    "validation_balanced": "validation_balanced_accuracy",
    "pseudo_labeled": "pseudo_labeled",
    "pseudo_label_weight": "pseudo_label_weight",
}


def run_figures(run: Run, theme: Theme = LIGHT) -> dict[str, Figure]:
    """The plots that one run has data for, by file name without its ending."""
    return {name: draw(theme) for name, draw in run_plots(run).items()}


def run_plots(run: Run) -> dict[str, Callable[[Theme], Figure]]:
    """How to draw each plot that one run has data for; `run_figures` draws them."""
    drawings: dict[str, Callable[[Theme], Figure]] = {}
    metrics = [
        name
        for name in ("test_accuracy", "test_balanced_accuracy", "unlabeled_accuracy")
        if any(name in measurements for measurements in run.results.values())
    ]
    if metrics:
        drawings["algorithms"] = lambda theme: algorithms_figure(run.results, metrics, theme=theme)
    lines = read_metrics(run.workdir)
    for name, metric in {"rounds": (*metrics, "test_accuracy")[0], **_OVER_ROUNDS}.items():
        rounds = rounds_by_algorithm(lines, metric)
        if rounds:
            drawings[name] = partial(_rounds_of, rounds, metric)
    if (run.workdir / "partition.json").is_file():
        drawings["partition"] = partial(_partition_of, run.workdir / "partition.json")
    return drawings


def _partition_of(file: Path, theme: Theme) -> Figure:
    counts = read_json(file)
    try:
        return partition_figure(
            counts["labeled"],
            counts["unlabeled"],
            counts.get("new"),
            class_names=counts.get("class_names"),
            theme=theme,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{file} was not written by launch.run: {error!r}") from None


def _rounds_of(
    rounds: Mapping[str, Sequence[tuple[int, Measurement]]], metric: str, theme: Theme
) -> Figure:
    return rounds_figure(rounds, metric, theme=theme)


def draw_plots(run: Run, folder: Path) -> None:
    """Draw all that one run has data for, as PNG files in a folder."""
    for name, figure in run_figures(run).items():
        write(figure, folder / f"{name}.png")


def write(figure: Figure, path: Path) -> Path:
    """Saves a figure as PNG and makes the folder where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def algorithms_figure(
    results: Mapping[str, Mapping[str, Measurement]],
    metrics: Sequence[str],
    *,
    theme: Theme = LIGHT,
) -> Figure:
    """One row a method, one panel a metric: every repeat as a dot, mean and deviation over them."""
    algorithms = list(results)
    styles = algorithm_styles(algorithms, theme)
    figure = new_figure(max(5.0, 1.8 + 2.6 * len(metrics)), 1.3 + 0.42 * len(algorithms), theme)
    panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for ax, metric in zip(panels, metrics, strict=True):
        for row, algorithm in enumerate(algorithms):
            measurement = results[algorithm].get(metric)
            if measurement is None:
                continue
            color, marker = styles[algorithm]["color"], styles[algorithm]["marker"]
            scale = _scale(metric)
            if len(measurement.values) > 1:
                values = scale * np.asarray(measurement.values)
                ax.plot(values, [row] * len(values), ".", color=color, alpha=0.35, markersize=6)
            ax.errorbar(
                scale * measurement.mean,
                row,
                xerr=_error(measurement, scale),
                fmt=marker,
                color=color,
                markersize=7,
                capsize=3,
                linewidth=1.8,
            )
        dress(ax, theme, xlabel=metric_label(metric))
        ax.spines["left"].set_visible(False)
        ax.tick_params(axis="y", length=0)
        ax.grid(False, axis="x")
        ax.xaxis.set_major_locator(MaxNLocator(5))
        ax.margins(x=0.12)
        _end_at_limits(ax, metric, "x")
    panels[0].set_yticks(
        range(len(algorithms)), [algorithm_label(a) for a in algorithms], color=theme.ink
    )
    panels[0].set_ylim(len(algorithms) - 0.4, -0.6)
    return figure


def curve_figure(
    key: str,
    values: Sequence[Any],
    series: Mapping[str, Sequence[Measurement | None]],
    metric: str,
    *,
    title: str = "",
    theme: Theme = LIGHT,
) -> Figure:
    """A metric against a swept value, one line a method, error bars of one sample deviation.

    Args:
        key: the config key that is swept.
        values: its values in order; quantities are spaced as they read best (linear, log, logit),
            anything else evenly.
        series: for each method its measurement at every value, None where it has none.
        metric: name of the metric; accuracies are shown in percent.
        title: what is held fixed, where that needs saying.
        theme: light or dark.
    """
    figure = new_figure(6.4, 4.2, theme)
    ax = figure.subplots()
    dress(ax, theme, title=title, xlabel=_axis_label(key), ylabel=metric_label(metric))
    positions = _place_values(ax, key, values)
    _draw_series(ax, positions, series, _scale(metric), theme, joined=_is_quantity(key, values))
    _end_at_limits(ax, metric, "y")
    _legend(figure, ax, theme)
    return figure


def cosine_error_figure(
    values: Sequence[int],
    measured: Sequence[Measurement | None],
    theory: Sequence[Measurement | None],
    *,
    key: str = "xclp.num_bits",
    theme: Theme = LIGHT,
) -> Figure:
    """The root mean squared error of cos(pi h / L) against L, and what theory expects of it."""
    figure = new_figure(6.4, 4.2, theme)
    ax = figure.subplots()
    dress(ax, theme, xlabel=_axis_label(key), ylabel=metric_label("cosine_rmse"))
    positions = _place_values(ax, key, values)
    kept = [(x, t.mean) for x, t in zip(positions, theory, strict=True) if t is not None]
    ax.plot(
        [x for x, _ in kept],
        [y for _, y in kept],
        color=theme.muted,
        linestyle="--",
        linewidth=1.6,
        label="Theory",
        zorder=2,
    )
    _draw_series(ax, positions, {"xclp": measured}, 1.0, theme, labels={"xclp": "Measured"})
    ax.set_yscale("log")
    _thin_log_ticks(ax)
    _legend(figure, ax, theme)
    return figure


def rounds_by_algorithm(
    lines: Sequence[Mapping[str, Any]], metric: str
) -> dict[str, list[tuple[int, Measurement]]]:
    """Method -> (round, metric over repeats), for the methods that have several rounds."""
    gathered: dict[str, dict[int, list[float]]] = {}
    for line in lines:
        if isinstance(line.get(metric), int | float):
            by_round = gathered.setdefault(line["algorithm"], {})
            by_round.setdefault(line["round"], []).append(line[metric])
    return {
        algorithm: [(number, measure(gathered[algorithm][number])) for number in sorted(by_round)]
        for algorithm in sort_algorithms(gathered)
        if len(by_round := gathered[algorithm]) > 1
    }


def rounds_figure(
    rounds: Mapping[str, Sequence[tuple[int, Measurement]]], metric: str, *, theme: Theme = LIGHT
) -> Figure:
    """A metric over rounds, one line a method; the band is one sample deviation over repeats."""
    figure = new_figure(6.4, 4.2, theme)
    ax = figure.subplots()
    dress(ax, theme, xlabel="Round", ylabel=metric_label(metric))
    scale = _scale(metric)
    for algorithm, style in algorithm_styles(list(rounds), theme).items():
        numbers = np.array([number for number, _ in rounds[algorithm]])
        mean = scale * np.array([m.mean for _, m in rounds[algorithm]])
        deviation = scale * np.array([m.std or 0.0 for _, m in rounds[algorithm]])
        color = style["color"]
        ax.fill_between(numbers, mean - deviation, mean + deviation, color=color, alpha=0.18, lw=0)
        ax.plot(
            numbers,
            mean,
            color=color,
            linestyle=style["linestyle"],
            linewidth=1.8,
            label=algorithm_label(algorithm),
            zorder=style["zorder"],
        )
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    _end_at_limits(ax, metric, "y")
    _legend(figure, ax, theme)
    return figure


def partition_plot(
    labeled: npt.ArrayLike,
    unlabeled: npt.ArrayLike,
    new: npt.ArrayLike | None = None,
    *,
    path: str | os.PathLike[str],
    class_names: Sequence[str] | None = None,
) -> Path:
    """Writes `partition_figure` as PNG to `path`."""
    figure = partition_figure(labeled, unlabeled, new, class_names=class_names)
    return write(figure, Path(path))


def partition_figure(
    labeled: npt.ArrayLike,
    unlabeled: npt.ArrayLike,
    new: npt.ArrayLike | None = None,
    *,
    class_names: Sequence[str] | None = None,
    theme: Theme = LIGHT,
) -> Figure:
    """How many examples of each class each client has, labeled and unlabeled (and new) told apart.

    Few clients and classes are drawn as bubbles, whose areas are proportional to counts: the
    unlabeled around the labeled. Many are drawn as heat maps, one for each kind of data.

    Args:
        labeled: counts, int [num_clients, num_classes].
        unlabeled: counts of the clients' training data without labels, same shape.
        new: counts of the data that clients want classified, same shape; None if there are none.
        class_names: one name a class; numbers where not given.
        theme: light or dark.

    Raises:
        ValueError: the shapes differ or are not two-dimensional.
    """
    kinds = {"labeled": _counts(labeled), "unlabeled": _counts(unlabeled)}
    if new is not None and _counts(new).any():
        kinds["new"] = _counts(new)
    shapes = {counts.shape for counts in kinds.values()}
    if len(shapes) != 1:
        raise ValueError(f"counts must have one shape [num_clients, num_classes], got {shapes}")
    num_clients, num_classes = shapes.pop()
    names = [str(name) for name in class_names or range(num_classes)]
    if len(names) != num_classes:
        raise ValueError(f"{len(names)} class names for {num_classes} classes")
    if num_clients * num_classes <= _MAX_BUBBLES:
        return _bubbles(kinds, names, theme)
    return _heat_maps(kinds, names, theme)


def _counts(counts: npt.ArrayLike) -> Counts:
    array = np.asarray(counts, dtype=np.int64)
    if array.ndim != 2:
        raise ValueError(f"counts must be [num_clients, num_classes], got shape {array.shape}")
    return array


def _bubbles(kinds: Mapping[str, Counts], class_names: Sequence[str], theme: Theme) -> Figure:
    training = kinds["labeled"] + kinds["unlabeled"]
    num_clients, num_classes = training.shape
    most = max(1, int(training.max(initial=0)), int(kinds.get("new", training).max(initial=0)))
    cell = min(0.5, 5.5 / max(1, num_clients), 7.0 / max(1, num_classes))  # to fit on a page
    panels = 2 if "new" in kinds else 1
    figure = new_figure(
        max(4.6, panels * max(2.7, cell * num_clients + 0.3) + 1.5),
        max(2.6, cell * num_classes + 1.7),
        theme,
    )
    axes = figure.subplots(1, panels, sharey=True, squeeze=False)[0]
    full = (0.92 * cell * 72) ** 2  # The largest bubble's area in points squared.

    def draw(ax: Axes, counts: Counts, color: str) -> None:
        client, label = np.nonzero(counts)
        ax.scatter(client, label, s=full * counts[client, label] / most, color=color, linewidths=0)

    draw(axes[0], training, theme.unlabeled)
    draw(axes[0], kinds["labeled"], theme.labeled)
    if "new" in kinds:
        draw(axes[1], kinds["new"], theme.new)
    titles = ("Training data", "New data, to be classified")
    for ax, title in zip(axes, titles, strict=False):
        dress(ax, theme, title=title, xlabel="Client")
        ax.set_xlim(-0.6, num_clients - 0.4)
        ax.set_ylim(num_classes - 0.4, -0.6)
        ax.set_xticks(range(0, num_clients, math.ceil(num_clients / 10)))
        for side in ("left", "bottom"):
            ax.spines[side].set_visible(False)
        ax.tick_params(length=0)
    _name_classes(axes[0], class_names, theme)
    _partition_legend(figure, kinds, f"largest bubble: {most} examples", theme)
    return figure


def _heat_maps(kinds: Mapping[str, Counts], class_names: Sequence[str], theme: Theme) -> Figure:
    colors = {"labeled": theme.labeled, "unlabeled": theme.labeled, "new": theme.new}
    titles = {"labeled": "Labeled", "unlabeled": "Unlabeled", "new": "New, to be classified"}
    num_clients, num_classes = kinds["labeled"].shape
    panel = 3.4
    height = float(np.clip(panel * num_classes / num_clients, 2.2, 6.0))
    figure = new_figure(panel * len(kinds) + 1.2, height + 1.5, theme)
    axes = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for ax, (kind, counts) in zip(axes, kinds.items(), strict=True):
        image = ax.imshow(
            counts.T,
            cmap=sequential(theme, colors[kind]),
            # Square roots: a few large counts must not make all small ones look empty.
            norm=PowerNorm(0.5, vmin=0, vmax=max(1, int(counts.max(initial=0)))),
            aspect="auto",
            interpolation="nearest",
        )
        dress(ax, theme, title=titles[kind], xlabel="Client")
        ax.grid(False)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        bar = figure.colorbar(
            image, ax=ax, orientation="horizontal", shrink=0.9, aspect=30, pad=0.04
        )
        bar.outline.set_visible(False)
        bar.locator = MaxNLocator(4, integer=True)
        bar.update_ticks()
        bar.ax.tick_params(colors=theme.muted, labelsize=9, length=2)
        bar.set_label("examples", color=theme.muted, fontsize=9)
    _name_classes(axes[0], class_names, theme)
    return figure


def _name_classes(ax: Axes, names: Sequence[str], theme: Theme) -> None:
    if len(names) <= _MAX_NAMED_CLASSES:
        shortened = [name if len(name) <= 18 else name[:17] + "…" for name in names]
        ax.set_yticks(range(len(names)), shortened, color=theme.ink)
    else:
        ax.yaxis.set_major_locator(MaxNLocator(10, integer=True))
    ax.set_ylabel("Class", color=theme.ink, fontsize=10)


def _partition_legend(
    figure: Figure, kinds: Mapping[str, Counts], scale: str, theme: Theme
) -> None:
    colors = {"labeled": theme.labeled, "unlabeled": theme.unlabeled, "new": theme.new}
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
        labelcolor=theme.ink,
        handletextpad=0.3,
        columnspacing=1.4,
    )


def _draw_series(
    ax: Axes,
    positions: Sequence[float],
    series: Mapping[str, Sequence[Measurement | None]],
    scale: float,
    theme: Theme,
    *,
    joined: bool = True,
    labels: Mapping[str, str] | None = None,
) -> None:
    # Names stand apart, so methods can stand side by side at each; on a scale they cannot.
    step = 0.0 if joined else 0.5 / len(series)
    for index, (algorithm, style) in enumerate(algorithm_styles(list(series), theme).items()):
        kept = [(x, m) for x, m in zip(positions, series[algorithm], strict=True) if m is not None]
        if not kept:
            continue
        shift = step * (index - (len(series) - 1) / 2)
        ax.errorbar(
            [x + shift for x, _ in kept],
            [scale * m.mean for _, m in kept],
            yerr=[scale * (m.std or 0.0) for _, m in kept],
            label=(labels or {}).get(algorithm, algorithm_label(algorithm)),
            linewidth=1.8,
            elinewidth=1.2,
            markersize=6,
            capsize=3,
            **(style if joined else style | {"linestyle": "none"}),
        )


def _place_values(ax: Axes, key: str, values: Sequence[Any]) -> list[float]:
    """Chooses the horizontal scale for swept values, marks them on it, returns their positions."""
    if not _is_quantity(key, values):
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
    ax.set_xlim(*_limits(positions, scale))
    ax.xaxis.set_major_locator(FixedLocator(_labeled(positions, scale)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: setting_text(float(value))))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_minor_formatter(NullFormatter())
    return positions


def scale_for(values: Sequence[float]) -> str:
    """`log` for values over a decade or more, `logit` for shares that close in on 1, or `linear`."""
    low, high = min(values), max(values)
    if low > 0 and high / low >= 10:
        return "log"
    if low > 0 and 0.95 <= high < 1:
        return "logit"
    return "linear"


def _spread(values: npt.ArrayLike, scale: str) -> npt.NDArray[np.float64]:
    """Where values lie on an axis, up to shift and stretch."""
    array = np.asarray(values, dtype=np.float64)
    if scale == "log":
        return np.log(array)
    return np.log(array / (1 - array)) if scale == "logit" else array


def _limits(values: Sequence[float], scale: str) -> tuple[float, float]:
    spread = _spread(values, scale)
    margin = 0.06 * float(np.ptp(spread)) or 0.5
    low, high = float(spread.min()) - margin, float(spread.max()) + margin
    if scale == "log":
        return math.exp(low), math.exp(high)
    if scale == "logit":
        return 1 / (1 + math.exp(-low)), 1 / (1 + math.exp(-high))
    return low, high


def _labeled(values: Sequence[float], scale: str) -> list[float]:
    """The values whose labels do not run into the one before."""
    spread = _spread(values, scale)
    apart = 0.075 * float(np.ptp(spread))
    kept: list[int] = []
    for index in np.argsort(spread):
        if not kept or spread[index] - spread[kept[-1]] >= apart:
            kept.append(int(index))
    return [values[index] for index in kept]


def _thin_log_ticks(ax: Axes) -> None:
    low, high = ax.get_ylim()
    steps = (1, 2, 5) if high / low < 1000 else (1,)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ax.yaxis.set_major_locator(FixedLocator([s * 10.0**d for d in decades for s in steps]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_ylim(low, high)


def _is_quantity(key: str, values: Sequence[Any]) -> bool:
    """Whether values lie on a scale; a client that is left out is a number but no quantity."""
    names_a_client = key.endswith(("client", "client_id", "left_out"))
    return not names_a_client and all(is_number(value) for value in values)


def _axis_label(key: str) -> str:
    label = setting_label(key)
    return label[:1].upper() + label[1:]


def _scale(metric: str) -> float:
    return 100.0 if is_accuracy(metric) else 1.0


def _end_at_limits(ax: Axes, metric: str, axis: str) -> None:
    """End the axis of a share where shares end, and bars with it; points on the limit are drawn whole."""
    if not is_share(metric):
        return
    low, high = getattr(ax, f"get_{axis}lim")()
    getattr(ax, f"set_{axis}lim")(max(low, 0.0), min(high, _scale(metric)))
    bars = [container for container in ax.containers if isinstance(container, ErrorbarContainer)]
    ends_of_bars = {cap for bar in bars for cap in bar.lines[1]}
    for line in set(ax.lines) - ends_of_bars:
        line.set_clip_on(False)


def _error(measurement: Measurement, scale: float) -> float | None:
    return None if measurement.std is None else scale * measurement.std


def _legend(figure: Figure, ax: Axes, theme: Theme) -> None:
    """Above the axes, where it hides nothing."""
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles,
            labels,
            loc="outside upper left",
            ncols=min(4, len(handles)),
            frameon=False,
            fontsize=9,
            labelcolor=theme.ink,
            handletextpad=0.5,
            columnspacing=1.4,
        )
