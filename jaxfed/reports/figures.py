"""Plots of results as functions from numbers to matplotlib Figures."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxfed.errors import UsageError
from jaxfed.experiment.store.data_form import is_network
from jaxfed.experiment.store.records import (
    Measurement,
    Run,
    measure,
    read_json,
    read_metrics,
    sort_algorithms,
)
from jaxfed.federation.evaluate import Reliability, reliability
from jaxfed.host.safe_files import guarded
from jaxfed.reports.comparison import Results, judged_rows
from jaxfed.reports.names import (
    USUAL,
    Methods,
    is_accuracy,
    is_number,
    measurement_text,
    methods_of,
    metric_label,
    setting_label,
    setting_text,
)
from jaxfed.reports.style import (
    BACKGROUND,
    INK,
    LABELED,
    MUTED,
    algorithm_styles,
    dress,
    fit,
    label_ticks,
    legend,
    new_figure,
    plain,
    scale_for,
    text_width,
    try_to_write,
)

# Metrics that are drawn over rounds, and how names of measures begin, those of own methods too.
_OVER_ROUNDS = (
    *("train_loss", "pseudo_labeled", "pseudo_label_weight"),
    *("consensus_change", "agreement", "round_consensus_accuracy"),
)
_MEASURES = ("validation_", "round_test_")
_OVER_TIME = ("round_test_accuracy", "validation_accuracy")  # over simulated time as well
# Plots of methods with per-client models: name -> metric of each client, metric of the mean.
_OVER_CLIENTS = {
    "clients": ("round_client_test_accuracy", "round_test_accuracy"),
    "clients_validation": ("client_validation_accuracy", "validation_accuracy"),
}
_CALIBRATED = "calibration.sharpness"  # metric of a method with calibrated confidences
_KINDS = {"labeled": "Labeled", "unlabeled": "Unlabeled", "new": "New, to be classified"}
_OF_CLIENTS = tuple(_KINDS.values())  # the others have a narrow panel without clients
_KINDS |= {"server": "Server", "public": "Public"}
_MOST_NAMED = 25  # clients and classes
_ROLES = ("new", "test", "unlabeled")  # the first of these with predictions is judged

Series = Mapping[str, Sequence[tuple[float, Measurement]]]  # method -> (x, measurement)


def run_plots(run: Run) -> dict[str, Callable[[], Figure]]:
    """Return file name -> a function that draws it, for each plot that one run has data for."""
    drawings: dict[str, Callable[[], Figure]] = {}
    methods, lines = methods_of([run]), read_metrics(run.workdir)
    measured = {metric for measurements in run.results.values() for metric in measurements}
    final = ("test_accuracy", "test_balanced_accuracy", "unlabeled_accuracy")
    first = next((metric for metric in final if metric in measured), "")
    if first:
        drawings["algorithms"] = partial(methods_figure, run.results, first, methods)
    seen = dict.fromkeys(name for line in lines for name in line)
    wanted = {first or "test_accuracy": "rounds"} | {
        name: name.removesuffix("_accuracy")
        for name in seen
        if name in _OVER_ROUNDS or name.startswith(_MEASURES)
    }
    times = over_rounds(lines, "simulated_seconds", methods)
    for metric, name in wanted.items():
        if rounds := over_rounds(lines, metric, methods):
            draw = partial(rounds_figure, metric=metric, methods=methods)
            drawings[name] = partial(draw, rounds)
            if times and metric in _OVER_TIME:
                timed = over_time(rounds, times)
                drawings[f"{name}_time"] = partial(draw, timed, xlabel="Simulated time [s]")
    for name, (each, mean) in _OVER_CLIENTS.items():
        if clients := over_clients(lines, each):
            means = over_rounds(lines, mean, methods)
            drawings[name] = partial(clients_figure, clients, means, mean, methods)
    if _CALIBRATED in measured and (bins := reliabilities(run)):
        drawings["reliability"] = partial(reliability_figure, bins, methods)
    if (run.workdir / "partition.json").exists() and not is_network(run.workdir):
        drawings["partition"] = partial(_partition_of, run.workdir)
    return drawings


def _partition_of(workdir: Path) -> Figure:
    with guarded(workdir / "partition.json"):
        return partition_figure(read_json(workdir, "partition.json"))


def partition_figure(counts: Mapping[str, Any]) -> Figure:
    """Plot the number of examples of each class at each client: a heat map for each kind of examples.

    `counts` is the content of partition.json: `labeled`, and where they exist `unlabeled` and `new`, int
    [num_clients, num_classes]; `server` and `public`, int [num_classes]; `class_names`; `client_names`;
    `every`, if only every such client is counted.
    """
    num_clients, num_classes = np.shape(counts["labeled"])
    kinds = {title: np.atleast_2d(counts[key]) for key, title in _KINDS.items() if key in counts}
    kinds = {title: held for title, held in kinds.items() if np.any(held)} or kinds
    widths = [1.0 if title in _OF_CLIENTS else 0.4 for title in kinds]
    height = float(np.clip(3.4 * num_classes / num_clients, 2.2, 5.0)) + 1.8
    figure = new_figure(1.2 + min(3.4, 11 / sum(widths)) * sum(widths), height)
    axes = figure.subplots(1, len(kinds), sharey=True, squeeze=False, width_ratios=widths)[0]
    for ax, (title, held) in zip(axes, kinds.items(), strict=True):
        image = ax.imshow(
            held.T,
            cmap=LinearSegmentedColormap.from_list("counts", [BACKGROUND, LABELED]),
            # Square roots: a few large counts must not make all small ones look empty.
            norm=PowerNorm(0.5, vmin=0, vmax=max(1, int(held.max(initial=0)))),
            aspect="auto",
            interpolation="nearest",
        )
        every = counts.get("every", 1)
        dress(ax, title=title, xlabel="Client" if every == 1 else f"Client, one in {every}")
        ax.grid(False)
        bar = figure.colorbar(image, ax=ax, orientation="horizontal", aspect=30, pad=0.04)
        bar.locator = MaxNLocator(4 if title in _OF_CLIENTS else 1, integer=True)
        bar.set_label(f"{int(held.sum()):,} examples", color=MUTED, fontsize=9)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if title not in _OF_CLIENTS:
            ax.set(xticks=[], xlabel="")
        elif num_clients <= _MOST_NAMED and (names := counts.get("client_names")):
            texts = [plain(name, 18) for name in names]
            ax.set_xticks(range(num_clients), texts, rotation=45, ha="right")
    names = counts.get("class_names") or range(num_classes)
    axes[0].yaxis.set_major_locator(MaxNLocator(10, integer=True))
    if num_classes <= _MOST_NAMED:
        axes[0].set_yticks(range(num_classes), [plain(str(name), 18) for name in names], color=INK)
    axes[0].set_ylabel("Class", color=INK, fontsize=10)
    return figure


def draw_plots(run: Run, folder: Path) -> None:
    """Draw all plots that one run has data for as PNG files in a folder; log a warning for each failure."""
    for name, draw in run_plots(run).items():
        file = folder / f"{name}.png"
        try:
            try_to_write(draw, file)
        except (OSError, UsageError) as error:  # the run's results are saved already
            logging.warning("%s: %s", file, error)


def methods_figure(results: Results, metric: str, methods: Methods = USUAL) -> Figure:
    """Plot a row for each method: repeats as dots, mean and deviation on top, its numbers beside its name."""
    drawn = {name: of[metric] for name, of in results.items() if metric in of}
    styles = algorithm_styles(list(drawn), methods.algorithms)
    labels = [f"{methods.name(m)}  {measurement_text(metric, value)}" for m, value in drawn.items()]
    widest = max(text_width(label, 9) for label in labels)
    figure = new_figure(3.8 + widest, 1.3 + 0.42 * len(drawn))
    ax = figure.subplots()
    for row, (name, measured) in enumerate(drawn.items()):
        color, marker = styles[name]["color"], styles[name]["marker"]
        values = [scale_of(metric) * value for value in measured.values]
        if len(values) > 1:
            ax.plot(values, [row] * len(values), ".", color=color, alpha=0.35, markersize=6)
        error = None if measured.std is None else scale_of(metric) * measured.std
        mean = scale_of(metric) * measured.mean
        ax.errorbar(mean, row, xerr=error, fmt=marker, color=color, markersize=7, capsize=3)
    dress(ax, xlabel=metric_label(metric))
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.grid(False, axis="y")
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.margins(x=0.12)
    fit(ax, metric, "x")
    ax.set_yticks(range(len(drawn)), [plain(label, 90) for label in labels], color=INK)
    ax.set_ylim(len(drawn) - 0.4, -0.6)
    return figure


def rounds_figure(
    rounds: Series, metric: str, methods: Methods = USUAL, xlabel: str = "Round"
) -> Figure:
    """Plot a metric over rounds, a line for each method; the band is one sample deviation over repeats."""
    figure, ax = _axes(xlabel, metric)
    for method, style in algorithm_styles(list(rounds), methods.algorithms).items():
        x = [number for number, _ in rounds[method]]
        mean = scale_of(metric) * np.array([m.mean for _, m in rounds[method]])
        deviation = scale_of(metric) * np.array([m.std or 0.0 for _, m in rounds[method]])
        band = (mean - deviation, mean + deviation)
        ax.fill_between(x, *band, color=style["color"], alpha=0.18, lw=0)
        ax.plot(x, mean, label=methods.name(method), linewidth=1.8, **{**style, "marker": ""})
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=xlabel == "Round"))
    fit(ax, metric, "y")
    legend(figure, ax)
    return figure


def curve_figure(
    key: str,
    values: Sequence[Any],
    series: Mapping[str, Sequence[Measurement | None]],
    metric: str,
    *,
    title: str = "",
    methods: Methods = USUAL,
) -> Figure:
    """Plot a metric against a swept value, a line for each method, error bars of one sample deviation.

    Quantities have a linear, log or logit scale, other values are evenly spaced, with the methods side by
    side. `title` has the fixed settings; a method's measurement is None where it is missing.
    """
    # The id of a left-out client is a number but no quantity.
    names_a_client = key.endswith(("client", "client_id", "left_out"))
    is_quantity = not names_a_client and all(map(is_number, values))
    positions = [float(value) for value in (values if is_quantity else range(len(values)))]
    step, label = 0.0 if is_quantity else 0.5 / len(series), setting_label(key)
    figure, ax = _axes(label[:1].upper() + label[1:], metric, title)
    for i, (method, style) in enumerate(algorithm_styles([*series], methods.algorithms).items()):
        shift = step * (i - (len(series) - 1) / 2)
        points = [(x + shift, m) for x, m in zip(positions, series[method], strict=True) if m]
        look: dict[str, Any] = {"linewidth": 1.8, "elinewidth": 1.2, "capsize": 3, "markersize": 6}
        look |= {**style, "label": methods.name(method)}
        look |= {} if is_quantity else {"linestyle": "none"}
        mean = [scale_of(metric) * m.mean for _, m in points]
        error = [scale_of(metric) * (m.std or 0.0) for _, m in points]
        ax.errorbar([x for x, _ in points], mean, yerr=error, **look)
    ax.margins(x=0.06)
    if is_quantity:
        ax.set_xscale(scale_for(positions))
        label_ticks(ax.xaxis, positions, [setting_text(position) for position in positions])
    else:
        texts = [setting_text(value) for value in values]
        is_crowded = max(map(len, texts)) * len(texts) > 60
        turned: dict[str, Any] = {"rotation": 30, "ha": "right"} if is_crowded else {}
        ax.set_xticks(positions, texts, **turned)
    fit(ax, metric, "y")
    legend(figure, ax)
    return figure


def _axes(xlabel: str, metric: str, title: str = "") -> tuple[Figure, Axes]:
    figure = new_figure(6.4, 4.2)
    ax = figure.subplots()
    dress(ax, title=title, xlabel=xlabel, ylabel=metric_label(metric))
    return figure, ax


def scale_of(metric: str) -> float:
    """Return what a metric is multiplied by in figures: accuracies are percentages."""
    return 100.0 if is_accuracy(metric) else 1.0


def over_rounds(
    lines: Sequence[Mapping[str, Any]], metric: str, methods: Methods = USUAL
) -> dict[str, list[tuple[float, Measurement]]]:
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
    series_of: dict[str, list[tuple[float, Measurement]]] = {
        method: [
            (number, measure(values))
            for number, values in sorted(gathered[method].items())
            if len(values) == len(repeats[method])
        ]
        for method in sort_algorithms(gathered, methods.algorithms)
    }
    return {method: series for method, series in series_of.items() if len(series) > 1}


def over_time(rounds: Series, times: Series) -> dict[str, list[tuple[float, Measurement]]]:
    """Return a metric by the simulated time of each round, the mean over repeats, and not by its number."""
    series_of = {}
    for method, series in rounds.items():
        ends = {0.0: 0.0, **{number: time.mean for number, time in times.get(method, ())}}
        series_of[method] = [(ends[number], m) for number, m in series if number in ends]
    return series_of


Clients = tuple[np.ndarray, np.ndarray]  # rounds [T]; accuracies [R, T, M] of R repeats, M clients


def over_clients(lines: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Clients]:
    """Return method -> client accuracies, for methods with at least two clients and two evaluated rounds.

    The metric's value is a list, one number for each client. Only rounds that were evaluated in every repeat
    are included. Missing values become NaN and are not drawn.
    """
    gathered: dict[str, dict[int, dict[int, list[float | None]]]] = {}
    for line in lines:
        if isinstance(line.get(metric), list) and len(line[metric]) > 1:
            repeats = gathered.setdefault(line["algorithm"], {})
            repeats.setdefault(line.get("repeat", 0), {})[line["round"]] = line[metric]
    clients_of = {}
    for method in sort_algorithms(gathered):
        repeats = gathered[method]
        rounds = sorted(set.intersection(*map(set, repeats.values())))
        values = [[judged[number] for number in rounds] for judged in repeats.values()]
        clients_of[method] = np.array(rounds), np.array(values, float)
    return {method: clients for method, clients in clients_of.items() if len(clients[0]) > 1}


def clients_figure(
    clients: Mapping[str, Clients], means: Series, metric: str, methods: Methods = USUAL
) -> Figure:
    """Plot clients' accuracies and their mean, below their deviation over clients (FedCT's Figures 2, 3, 7).

    `means` has the mean accuracy, whose name is `metric`, also of methods with one shared model (FedAvg).
    """
    figure = new_figure(6.4, 5.6)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    dress(above, ylabel=metric_label(metric))
    dress(below, xlabel="Round", ylabel="Deviation [%]")
    order = sort_algorithms({*means, *clients}, methods.algorithms)
    for method, style in algorithm_styles(order, methods.algorithms).items():
        look: dict[str, Any] = {**style, "marker": "", "linewidth": 1.8}
        if method in clients:
            rounds, accuracy = clients[method]
            above.plot(rounds, 100 * accuracy[0], color=style["color"], linewidth=0.7, alpha=0.45)
            deviation = 100 * np.std(accuracy, axis=2)  # over clients, with divisor M: [R, T]
            mean = deviation.mean(axis=0)
            spread = deviation.std(axis=0, ddof=1) if len(deviation) > 1 else 0 * mean
            band = (mean - spread, mean + spread)
            below.fill_between(rounds, *band, color=style["color"], alpha=0.18, lw=0)
            below.plot(rounds, mean, **look)
        if method in means:
            x, measured = zip(*means[method], strict=True)
            above.plot(x, [100 * m.mean for m in measured], label=methods.name(method), **look)
    fit(above, metric, "y")
    below.set_ylim(bottom=0)
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(figure, above)
    return figure


def reliabilities(run: Run) -> dict[str, Reliability]:
    """Return method -> reliability bins over all repeats, of the points that it was tested on.

    Raises:
        UsageError: a prediction file was not written by launch.run.
    """
    of_method = {}
    for method in run.results:
        each = [judged_rows(run.workdir, method, r, _ROLES) for r in range(run.num_repeats)]
        if rows := [part for part in each if part is not None]:
            is_right = np.concatenate([part.label == part.truth for part in rows])
            of_method[method] = reliability(np.concatenate([r.confidence for r in rows]), is_right)
    return of_method


def reliability_figure(bins: Mapping[str, Reliability], methods: Methods = USUAL) -> Figure:
    """Plot the accuracy of labels against their confidence; on the diagonal they are equal.

    DeGroot, Fienberg, "The Comparison and Evaluation of Forecasters", The Statistician 1983; bins as in
    `jaxfed.federation.evaluate`.
    """
    figure = new_figure(5.2, 5.2)
    ax = figure.subplots()
    dress(ax, xlabel="Confidence [%]", ylabel="Right [%]")
    ax.plot([0, 100], [0, 100], color=MUTED, linewidth=1, linestyle="--")
    for method, style in algorithm_styles(list(bins), methods.algorithms).items():
        x, y = 100 * bins[method].confidence, 100 * bins[method].accuracy
        ax.plot(x, y, label=methods.name(method), linewidth=1.6, markersize=5, **style)
    ax.set(xlim=(0, 100), ylim=(0, 100))
    for line in ax.lines:
        line.set_clip_on(False)
    legend(figure, ax)
    return figure
