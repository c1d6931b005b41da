"""Plots of results as functions from numbers to matplotlib Figures, without pyplot or global state."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from absl import logging
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxfed.errors import UsageError
from jaxfed.experiment.store.records import (
    Measurement,
    Run,
    measure,
    read_json,
    read_metrics,
    sort_algorithms,
)
from jaxfed.reports.figures.axes import (
    axis_label,
    fit,
    is_quantity,
    mark_above,
    place_values,
    thin_log_ticks,
)
from jaxfed.reports.figures.clients_figure import accuracies_of_clients, clients_figure
from jaxfed.reports.figures.partition_figure import partition_figure
from jaxfed.reports.figures.png import try_to_write
from jaxfed.reports.figures.reliability_figure import reliabilities, reliability_figure
from jaxfed.reports.figures.style import (
    INK,
    MUTED,
    algorithm_styles,
    dress,
    legend,
    new_figure,
    text_width,
)
from jaxfed.reports.tables.display_names import is_accuracy, metric_label
from jaxfed.reports.tables.method_names import USUAL, Methods, methods_of

# Plots of training runs: name -> metric in the lines of metrics.jsonl.
_OVER_ROUNDS = {
    "train_loss": "train_loss",
    "round_test": "round_test_accuracy",
    "round_test_balanced": "round_test_balanced_accuracy",
    "validation": "validation_accuracy",
    "validation_balanced": "validation_balanced_accuracy",
    "pseudo_labeled": "pseudo_labeled",
    "pseudo_label_weight": "pseudo_label_weight",
    "consensus_change": "consensus_change",
    "agreement": "agreement",
    "consensus_accuracy": "round_consensus_accuracy",
}
_MEASURES = ("validation_", "round_test_")  # names of measures begin so, those of own methods too
_OVER_TIME = ("round_test", "validation")  # drawn over simulated time as well, with a clock
# Plots of methods with per-client models: name -> metric of each client, metric of the mean.
_OVER_CLIENTS = {
    "clients": ("round_client_test_accuracy", "round_test_accuracy"),
    "clients_validation": ("client_validation_accuracy", "validation_accuracy"),
}


def run_plots(run: Run) -> dict[str, Callable[[], Figure]]:
    """Return file name -> a function that draws it, for each plot that one run has data for."""
    drawings: dict[str, Callable[[], Figure]] = {}
    methods = methods_of([run])
    metrics = [
        name
        for name in ("test_accuracy", "test_balanced_accuracy", "unlabeled_accuracy")
        if any(name in measurements for measurements in run.results.values())
    ]
    if metrics:
        drawings["algorithms"] = partial(
            algorithms_figure,
            run.results,
            metrics,
            methods,
            {metric: run.num_examples(metric) for metric in metrics},
        )
    lines = read_metrics(run.workdir)
    seen = {name for line in lines for name in line if name.startswith(_MEASURES)}
    others = {name: name for name in sorted(seen.difference(_OVER_ROUNDS.values()))}
    known = {"rounds": (*metrics, "test_accuracy")[0], **_OVER_ROUNDS}
    for name, metric in {**known, **others}.items():
        rounds = rounds_by_algorithm(lines, metric, methods.algorithms)
        if rounds:
            drawings[name] = partial(
                rounds_figure, rounds, metric, methods, run.num_examples(metric)
            )
            times = rounds_by_algorithm(lines, "simulated_seconds", methods.algorithms)
            if times and name in _OVER_TIME:
                drawings[f"{name}_time"] = partial(
                    rounds_figure,
                    over_time(rounds, times),
                    metric,
                    methods,
                    run.num_examples(metric),
                    xlabel="Simulated time [s]",
                )
    for name, (each, mean) in _OVER_CLIENTS.items():
        clients = accuracies_of_clients(lines, each)
        if clients:
            means = rounds_by_algorithm(lines, mean, methods.algorithms)
            drawings[name] = partial(
                clients_figure, clients, means, mean, methods, run.num_examples(mean)
            )
    bins = reliabilities(run)
    if bins:
        drawings["reliability"] = partial(reliability_figure, bins, methods)
    if (run.workdir / "partition.json").is_file():
        drawings["partition"] = partial(_partition_of, run.workdir / "partition.json")
    return drawings


def _partition_of(file: Path) -> Figure:
    counts = read_json(file)
    try:
        return partition_figure(
            counts["labeled"],
            counts["unlabeled"],
            counts.get("new"),
            apart={whose: counts[whose] for whose in ("server", "public") if whose in counts},
            class_names=counts.get("class_names"),
            client_names=counts.get("client_names"),
            every=int(counts.get("every", 1)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{file} was not written by launch.run: {error!r}") from None


def draw_plots(run: Run, folder: Path) -> None:
    """Draw all plots that one run has data for as PNG files in a folder; log a warning for each failure."""
    for name, draw in run_plots(run).items():
        file = folder / f"{name}.png"
        try:
            try_to_write(draw, file)
        except (OSError, UsageError) as error:  # the run's results are saved already
            logging.warning("%s: %s", file, error)


def algorithms_figure(
    results: Mapping[str, Mapping[str, Measurement]],
    metrics: Sequence[str],
    methods: Methods = USUAL,
    examples: Mapping[str, int] = MappingProxyType({}),
) -> Figure:
    """Plot a row for each method and a panel for each metric: repeats as dots, mean and deviation on top.

    `examples`: metric -> the number of examples it is measured on (`jaxfed.reports.figures.axes.fit`).
    """
    algorithms = list(results)
    styles = algorithm_styles(algorithms, methods.algorithms)
    labels = [methods.name(algorithm) for algorithm in algorithms]
    room = max(0.0, max(text_width(label, 9) for label in labels) - 2.0)  # that long names need
    width, height = max(5.0, 1.8 + 2.6 * len(metrics)) + room, 1.3 + 0.42 * len(algorithms)
    figure = new_figure(width, height)
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
                xerr=None if measurement.std is None else scale * measurement.std,
                fmt=marker,
                color=color,
                markersize=7,
                capsize=3,
                linewidth=1.8,
            )
        dress(ax, xlabel=metric_label(metric))
        ax.spines["left"].set_visible(False)
        ax.tick_params(axis="y", length=0)
        ax.grid(False, axis="x")
        ax.xaxis.set_major_locator(MaxNLocator(5))
        ax.margins(x=0.12)
        fit(ax, metric, "x", examples.get(metric, 0))
    panels[0].set_yticks(
        range(len(algorithms)),
        labels,
        color=INK,
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
    above: tuple[str, Sequence[float]] | None = None,
    methods: Methods = USUAL,
    examples: int = 0,
) -> Figure:
    """Plot a metric against a swept value, a line for each method, error bars of one sample deviation.

    Args:
        key: the config key that is swept.
        values: its values in order; quantities have a linear, log or logit scale, other values are evenly
            spaced.
        series: for each method its measurement at every value, None where it is missing.
        metric: name of the metric; accuracies are shown in percent.
        title: the fixed settings, if any.
        above: label and values of a second quantity, shown on a top axis.
        methods: display names and algorithms of the methods.
        examples: number of examples that the metric is measured on (`jaxfed.reports.figures.axes.fit`).
    """
    figure = new_figure(6.4, 4.2)
    ax = figure.subplots()
    dress(ax, title=title, xlabel=axis_label(key), ylabel=metric_label(metric))
    positions = place_values(ax, key, values)
    if above is not None:
        mark_above(ax, positions, *above, color=MUTED)
    joined = is_quantity(key, values)
    _draw_series(ax, positions, series, _scale(metric), methods, joined=joined)
    fit(ax, metric, "y", examples)
    legend(figure, ax)
    return figure


def cosine_error_figure(
    values: Sequence[int],
    measured: Sequence[Measurement | None],
    theory: Sequence[Measurement | None],
    *,
    key: str = "xclp.num_bits",
) -> Figure:
    """Plot the root mean squared error of cos(pi h / L) against L, measured and expected by theory."""
    figure = new_figure(6.4, 4.2)
    ax = figure.subplots()
    dress(ax, xlabel=axis_label(key), ylabel=metric_label("cosine_rmse"))
    positions = place_values(ax, key, values)
    kept = [(x, t.mean) for x, t in zip(positions, theory, strict=True) if t is not None]
    ax.plot(
        [x for x, _ in kept],
        [y for _, y in kept],
        color=MUTED,
        linestyle="--",
        linewidth=1.6,
        label="Theory",
        zorder=2,
    )
    _draw_series(ax, positions, {"xclp": measured}, 1.0, Methods({"xclp": "Measured"}))
    ax.set_yscale("log")
    thin_log_ticks(ax)
    legend(figure, ax)
    return figure


def rounds_by_algorithm(
    lines: Sequence[Mapping[str, Any]],
    metric: str,
    algorithms: Mapping[str, str] = USUAL.algorithms,
) -> dict[str, list[tuple[int, Measurement]]]:
    """Return method -> (round, metric over repeats), for methods with several rounds.

    Only rounds in which every repeat of the method has the metric are included: after a repeat has diverged,
    the mean of the others is no continuation of the curve.
    """
    gathered: dict[str, dict[int, list[float]]] = {}
    repeats: dict[str, set[int]] = {}
    for line in lines:
        repeats.setdefault(line["algorithm"], set()).add(line.get("repeat", 0))
        if isinstance(line.get(metric), int | float):
            by_round = gathered.setdefault(line["algorithm"], {})
            by_round.setdefault(line["round"], []).append(line[metric])
    found = {
        algorithm: [
            (number, measure(values))
            for number, values in sorted(gathered[algorithm].items())
            if len(values) == len(repeats[algorithm])
        ]
        for algorithm in sort_algorithms(gathered, algorithms)
    }
    return {algorithm: series for algorithm, series in found.items() if len(series) > 1}


def over_time(
    rounds: Mapping[str, Sequence[tuple[int, Measurement]]],
    times: Mapping[str, Sequence[tuple[int, Measurement]]],
) -> dict[str, list[tuple[float, Measurement]]]:
    """Return a metric by the simulated time of each round, the mean over repeats, and not by its number."""
    found = {}
    for algorithm, series in rounds.items():
        ends = {0: 0.0, **{number: time.mean for number, time in times.get(algorithm, ())}}
        found[algorithm] = [(ends[number], m) for number, m in series if number in ends]
    return found


def rounds_figure(
    rounds: Mapping[str, Sequence[tuple[float, Measurement]]],
    metric: str,
    methods: Methods = USUAL,
    examples: int = 0,
    xlabel: str = "Round",
) -> Figure:
    """Plot a metric over rounds, a line for each method; the band is one sample deviation over repeats."""
    figure = new_figure(6.4, 4.2)
    ax = figure.subplots()
    dress(ax, xlabel=xlabel, ylabel=metric_label(metric))
    scale = _scale(metric)
    for algorithm, style in algorithm_styles(list(rounds), methods.algorithms).items():
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
            label=methods.name(algorithm),
            zorder=style["zorder"],
        )
    ax.xaxis.set_major_locator(MaxNLocator(integer=xlabel == "Round"))
    fit(ax, metric, "y", examples)
    legend(figure, ax)
    return figure


def _draw_series(
    ax: Axes,
    positions: Sequence[float],
    series: Mapping[str, Sequence[Measurement | None]],
    scale: float,
    methods: Methods,
    *,
    joined: bool = True,
) -> None:
    # At categorical values, methods are shifted side by side; on a numeric scale they must not be.
    step = 0.0 if joined else 0.5 / len(series)
    styles = algorithm_styles(list(series), methods.algorithms)
    for index, (algorithm, style) in enumerate(styles.items()):
        kept = [(x, m) for x, m in zip(positions, series[algorithm], strict=True) if m is not None]
        if not kept:
            continue
        shift = step * (index - (len(series) - 1) / 2)
        ax.errorbar(
            [x + shift for x, _ in kept],
            [scale * m.mean for _, m in kept],
            yerr=[scale * (m.std or 0.0) for _, m in kept],
            label=methods.name(algorithm),
            linewidth=1.8,
            elinewidth=1.2,
            markersize=6,
            capsize=3,
            **(style if joined else style | {"linestyle": "none"}),
        )


def _scale(metric: str) -> float:
    return 100.0 if is_accuracy(metric) else 1.0
