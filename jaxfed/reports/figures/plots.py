"""Plots of results as functions from numbers to matplotlib Figures, without pyplot or global state."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from absl import logging
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxfed.errors import UsageError
from jaxfed.experiment.store.manifest import read_json
from jaxfed.experiment.store.network_run import is_network
from jaxfed.experiment.store.records import Measurement, Run, measure, read_metrics, sort_algorithms
from jaxfed.host.safe_files import guarded
from jaxfed.reports.figures.axes import fit
from jaxfed.reports.figures.clients_figure import accuracies_of_clients, clients_figure
from jaxfed.reports.figures.line_figures import rounds_figure, scale_of
from jaxfed.reports.figures.partition_figure import partition_figure
from jaxfed.reports.figures.png import try_to_write
from jaxfed.reports.figures.reliability_figure import reliabilities, reliability_figure
from jaxfed.reports.figures.style import INK, algorithm_styles, dress, new_figure, text_width
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
_OVER_TIME = ("round_test", "validation")  # drawn over simulated time as well, where there is one
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
    if (run.workdir / "partition.json").exists() and not is_network(run.workdir):
        drawings["partition"] = partial(_partition_of, run.workdir)
    return drawings


def _partition_of(workdir: Path) -> Figure:
    counts = read_json(workdir, "partition.json")
    with guarded(workdir / "partition.json"):
        return partition_figure(
            counts["labeled"],
            counts["unlabeled"],
            counts.get("new"),
            apart={whose: counts[whose] for whose in ("server", "public") if whose in counts},
            class_names=counts.get("class_names"),
            client_names=counts.get("client_names"),
            every=int(counts.get("every", 1)),
        )


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
            scale = scale_of(metric)
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
    if all(map(is_accuracy, metrics)):  # one scale
        ends = np.array([ax.get_xlim() for ax in panels])
        for ax in panels:
            ax.set_xlim(ends[:, 0].min(), ends[:, 1].max())
    panels[0].set_yticks(
        range(len(algorithms)),
        labels,
        color=INK,
    )
    panels[0].set_ylim(len(algorithms) - 0.4, -0.6)
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
