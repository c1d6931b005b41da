"""Reliability diagrams: accuracy of labels against their confidence.

DeGroot, Fienberg, "The Comparison and Evaluation of Forecasters", The Statistician 1983; bins as in
`jaxfed.federation.evaluate`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from jaxfed.experiment.store.manifest import read_predictions
from jaxfed.experiment.store.records import Run
from jaxfed.federation.evaluate import Reliability, reliability
from jaxfed.host.safe_files import guarded
from jaxfed.reports.figures.style import MUTED, algorithm_styles, dress, legend, new_figure
from jaxfed.reports.tables.method_names import USUAL, Methods

CALIBRATED = "calibration.sharpness"  # metric of a method with calibrated confidences
CAPTION = (
    "How often labels are right where a method is so sure of them, in bins of equally many points of all "
    "repeats; on the dashed line confidences are probabilities."
)
_ROLES = ("new", "test", "unlabeled")  # the first of these roles with predictions is used
_PERCENT = 100.0


def reliabilities(run: Run) -> dict[str, Reliability]:
    """Return method -> reliability bins over all repeats, of the points it was tested on.

    Empty if no method of the run has calibrated confidences. Methods without predictions are omitted.

    Raises:
        UsageError: a prediction file was not written by launch.run.
    """
    if not any(CALIBRATED in metrics for metrics in run.results.values()):
        return {}
    found = {}
    for method in run.results:
        tables = (read_predictions(run.workdir, method, each) for each in range(run.num_repeats))
        parts = [_judged(rows, run.workdir) for rows in tables if rows is not None]
        if parts and sum(len(confidence) for confidence, _ in parts):
            confidence, is_right = map(np.concatenate, zip(*parts, strict=True))
            found[method] = reliability(confidence, is_right)
    return found


def _judged(rows: Sequence[Mapping[str, str]], workdir: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return confidences float64 [n] and correctness bool [n] of the points of known class."""
    rows = [row for row in rows if row["truth"]]
    role = next((role for role in _ROLES if any(row["role"] == role for row in rows)), "")
    judged = [row for row in rows if row["role"] == role]
    with guarded(workdir / "predictions"):
        confidence = np.array([float(row["confidence"]) for row in judged], np.float64)
    return confidence, np.array([row["label"] == row["truth"] for row in judged], bool)


def reliability_figure(bins: Mapping[str, Reliability], methods: Methods = USUAL) -> Figure:
    """Plot a line for each method with a point for each bin; on the diagonal confidence equals accuracy.

    Args:
        bins: by method.
        methods: display names and algorithms of the methods.
    """
    figure = new_figure(5.2, 5.2)
    ax = figure.subplots()
    dress(ax, xlabel="Confidence [%]", ylabel="Right [%]")
    ax.plot([0, _PERCENT], [0, _PERCENT], color=MUTED, linewidth=1, linestyle="--")
    for method, style in algorithm_styles(list(bins), methods.algorithms).items():
        own = bins[method]
        ax.plot(
            _PERCENT * own.confidence,
            _PERCENT * own.accuracy,
            label=methods.name(method),
            linewidth=1.6,
            markersize=5,
            **style,
        )
    ax.set_xlim(0, _PERCENT)
    ax.set_ylim(0, _PERCENT)
    for line in ax.lines:
        line.set_clip_on(False)
    legend(figure, ax)
    return figure
