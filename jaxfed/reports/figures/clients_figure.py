"""Accuracy of each client's model over rounds, and its deviation over clients (FedCT's Figures 2, 3, 7)."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxfed.experiment.store.records import Measurement, sort_algorithms
from jaxfed.reports.figures.axes import fit
from jaxfed.reports.figures.style import algorithm_styles, dress, legend, new_figure
from jaxfed.reports.tables.display_names import metric_label
from jaxfed.reports.tables.method_names import USUAL, Methods

_PERCENT = 100.0


class ClientAccuracies(NamedTuple):
    """Client accuracies of one method: rounds int [T]; accuracy float [R, T, M], R repeats and M clients."""

    rounds: npt.NDArray[np.int64]
    accuracy: npt.NDArray[np.float64]

    @property
    def deviation(self) -> npt.NDArray[np.float64]:
        """Standard deviation over clients (divisor M), float [R, T]."""
        return np.asarray(np.std(self.accuracy, axis=2))


def accuracies_of_clients(
    lines: Sequence[Mapping[str, Any]], metric: str
) -> dict[str, ClientAccuracies]:
    """Return method -> client accuracies, for methods with at least two clients and two evaluated rounds.

    Args:
        lines: of metrics.jsonl.
        metric: name of a metric whose value is a list, one number for each client.

    Only rounds that were evaluated in every repeat are included. Missing values become NaN and are not drawn.
    """
    gathered: dict[str, dict[int, dict[int, list[float | None]]]] = {}
    for line in lines:
        if isinstance(line.get(metric), list) and len(line[metric]) > 1:
            repeats = gathered.setdefault(line["algorithm"], {})
            repeats.setdefault(line.get("repeat", 0), {})[line["round"]] = line[metric]
    found = {}
    for algorithm in sort_algorithms(gathered):
        repeats = gathered[algorithm]
        rounds = sorted(set.intersection(*map(set, repeats.values())))
        if len(rounds) > 1:
            values = [[judged[number] for number in rounds] for judged in repeats.values()]
            found[algorithm] = ClientAccuracies(np.array(rounds), np.array(values, np.float64))
    return found


def clients_figure(
    clients: Mapping[str, ClientAccuracies],
    means: Mapping[str, Sequence[tuple[int, Measurement]]],
    metric: str,
    methods: Methods = USUAL,
    examples: int = 0,
) -> Figure:
    """Plot clients' accuracies and their mean above, and their deviation over clients below.

    Args:
        clients: by method.
        means: mean accuracy by method, including methods with one shared model (FedAvg).
        metric: name of the mean accuracy.
        methods: display names and algorithms of the methods.
        examples: number of examples that the metric is measured on (`jaxfed.reports.figures.axes.fit`).
    """
    figure = new_figure(6.4, 5.6)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    dress(above, ylabel=metric_label(metric))
    dress(below, xlabel="Round", ylabel="Deviation [%]")
    order = sort_algorithms({*means, *clients}, methods.algorithms)
    for algorithm, style in algorithm_styles(order, methods.algorithms).items():
        color, line = style["color"], style["linestyle"]
        if algorithm in clients:
            rounds, accuracy = clients[algorithm]
            above.plot(rounds, _PERCENT * accuracy[0], color=color, linewidth=0.7, alpha=0.45)
            deviation = _PERCENT * clients[algorithm].deviation
            mean = deviation.mean(axis=0)
            spread = deviation.std(axis=0, ddof=1) if len(deviation) > 1 else np.zeros_like(mean)
            below.fill_between(rounds, mean - spread, mean + spread, color=color, alpha=0.18, lw=0)
            below.plot(rounds, mean, color=color, linestyle=line, linewidth=1.8)
        if algorithm in means:
            above.plot(
                [number for number, _ in means[algorithm]],
                [_PERCENT * measured.mean for _, measured in means[algorithm]],
                color=color,
                linestyle=line,
                linewidth=1.8,
                label=methods.name(algorithm),
                zorder=style["zorder"],
            )
    fit(above, metric, "y", examples)
    below.set_ylim(bottom=0)
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(figure, above)
    return figure
