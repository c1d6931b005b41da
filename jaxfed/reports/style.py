"""One look for every plot and table: names, units, colors, axes, light and dark."""

import math
import zlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath

from jaxfed.experiment.records import Measurement
from jaxfed.federation.communication import bytes_unit


class Theme(NamedTuple):
    """The colors of a background and what stands on it."""

    background: str
    ink: str
    muted: str
    grid: str
    labeled: str
    unlabeled: str
    new: str
    palette: tuple[str, ...]


# Palettes after Okabe and Ito (Color Universal Design), lightened where the ground is dark.
LIGHT = Theme(
    background="#ffffff",
    ink="#1b2530",
    muted="#5b6875",
    grid="#e4e8ec",
    labeled="#0a5c9c",
    unlabeled="#a9cfec",
    new="#e69f00",
    palette=(
        *("#0072b2", "#d55e00", "#009e73", "#6b7683"),
        *("#cc79a7", "#b8860b", "#56b4e9", "#7a5195", "#8c564b", "#2f4b7c"),
    ),
)
DARK = Theme(
    background="#151b22",
    ink="#e8edf2",
    muted="#9aa7b4",
    grid="#2a333d",
    labeled="#6cb8f0",
    unlabeled="#27506f",
    new="#f0b73f",
    palette=(
        *("#56b4e9", "#ff8a3d", "#2fcf9f", "#a9b4bf"),
        *("#e39fc6", "#f0e442", "#9ad1f5", "#b89ad6", "#c49c94", "#8fa8dc"),
    ),
)

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")

_ALGORITHMS = {
    "xclp": "XCLP",
    "per_client_lp": "Per-client LP",
    "client_knn": "Client kNN",
    "network": "Trained network",
    "pooled_lp": "LP on pooled data",
    "fedavg": "FedAvg",
    "fedavg_xclp": "FedAvg + XCLP",
    "fedavg_xclp_prototypes": "FedAvg + XCLP of prototypes",
    "fedavg_per_client_lp": "FedAvg + per-client LP",
    "fedavg_network": "FedAvg + network",
    "fedsem": "FedSem",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "fixmatch": "FixMatch",
    "mixmatch": "MixMatch",
    "fedmatch": "FedMatch",
    "fedsiam": "FedSiam",
    "feddyn": "FedDyn",
    "protofssl": "ProtoFSSL",
    "fedrgd": "FedRGD",
    "semifl": "SemiFL",
    "fedct": "FedCT",
    "dp_fedavg": "DP-FedAvg, of clients",
    "dp_fedavg_records": "DP-FedAvg, of records",
    "local_learning": "Each client alone",
    "centralized": "All labels in one place",
    "distributed_distillation": "Distributed distillation",
    "fedmd": "FedMD",
    "pate": "PATE",
    "fixmatch_fedprox": "FixMatch-FedProx",
    "protofssl_fedprox": "ProtoFSSL-FedProx",
    # Variants by the names that they go by.
    "xclp_half_late": "XCLP, half of the points late",
    "xclp_late": "XCLP, unlabeled points late",
    "xclp_calibrated": "XCLP, calibrated",
    "pooled_lp_calibrated": "LP on pooled data, calibrated",
    "protofssl_mean": "ProtoFSSL, mean network",
    "protofssl_xclp": "ProtoFSSL + XCLP",
    "protofssl_clipped": "ProtoFSSL, embeddings clipped",
    "fedavgm": "FedAvgM",
    "fedadagrad": "FedAdagrad",
    "fedadam": "FedAdam",
    "fedyogi": "FedYogi",
    "dp_fedct": "DP-FedCT, bits",
    "dp_fedct_paper": "DP-FedCT, bits (paper)",
    "dp_fedct_answers": "DP-FedCT, answers",
}

# These have a color of their own; all others share the rest of the palette.
_OWN_COLOR = ("xclp", "per_client_lp", "client_knn", "network", "pooled_lp")

LINE_STYLES = ("-", "--", ":", "-.")  # of lines of one color
MOST_LINES = len(LIGHT.palette) - len(_OWN_COLOR)  # of other names that no two look alike

# These see every client's data in one place, which a federated method may not.
POOLED = frozenset({"pooled_lp", "centralized"})

_METRICS = {
    "test_accuracy": "Test accuracy",
    "test_balanced_accuracy": "Balanced test accuracy",
    "unlabeled_accuracy": "Accuracy on unlabeled data",
    "validation_accuracy": "Validation accuracy",
    "selected_validation_accuracy": "Validation accuracy",
    "validation_balanced_accuracy": "Balanced validation accuracy",
    "round_test_accuracy": "Test accuracy of each round's state",
    "round_test_balanced_accuracy": "Balanced test accuracy of each round's state",
    "worst_client_test_accuracy": "Test accuracy of the worst client",
    "worst_client_unlabeled_accuracy": "Accuracy on its unlabeled data, worst client",
    "train_loss": "Training loss",
    "epsilon": "Epsilon of all rounds together",
    "epsilon_if_stable": "Epsilon of all rounds together, if learners are as stable as is said",
    "epsilon_given_bound": "Epsilon of all rounds together, given the bound that clipping has adapted",
    "epsilon_estimated": "Estimate of epsilon, of all rounds together; no promise",
    "prototype_epsilon": "Epsilon of shared prototypes, given the networks",
    "pseudo_labeled": "Share of unlabeled examples with a pseudo-label",
    "pseudo_label_weight": "Mean weight of pseudo-labels",
    "consensus_change": "Share of public examples whose label changed",
    "agreement": "Share of votes that a label has, mean",
    "round_consensus_accuracy": "Accuracy of each round's labels of public examples",
    "test_expected_calibration_error": "Expected calibration error",
    "unlabeled_expected_calibration_error": "Expected calibration error on unlabeled data",
    "unreached": "Points no label reaches",
    "cosine_rmse": "RMSE of the cosine estimate",
    "cosine_rmse_theory": "RMSE of the cosine estimate, theory",
    "seconds": "Time",
    "communication.upload_bytes": "Upload",
    "communication.download_bytes": "Download",
}

_SHARES = (
    *("pseudo_labeled", "pseudo_label_weight"),
    *("consensus_change", "agreement", "abstained"),
)

_SETTINGS = {
    "num_bits": "LSH bits L",
    "num_neighbors": "neighbors k",
    "alpha": "propagation alpha",
    "feddyn.alpha": "regularization alpha",
    "num_clients": "clients",
    "labeled_fraction": "labeled fraction",
    "bit_epsilon": "epsilon of each LSH bit",
    "label_epsilon": "epsilon of a label",
    "dp_fedct.epsilon": "epsilon of one communication",
    "target_epsilon": "epsilon of a whole run",
    "num_helpers": "helpers",
    "unlabeled_query": "unlabeled examples of an episode",
    "cohort_size": "clients a round",
    "labeled_per_class": "labels of a class, a client",
    "dirichlet_alpha": "Dirichlet alpha (small: unlike clients)",
    "dataset.name": "data set",
    "learner.name": "learner",
    "learner.names": "learners, in turn",
    "model.name": "network",
    "baselines": "other methods",
    "num_repeats": "repeats",
    "preprocessing.kind": "preprocessing",
}

DPI = 160


def algorithm_label(name: str) -> str:
    """The name of a method as people write it."""
    return _ALGORITHMS.get(name, name)


def metric_label(name: str) -> str:
    """The name of a metric as people write it, with its unit where values are printed without."""
    label = _METRICS.get(name, name.replace("_", " ").replace(".", ", "))
    return f"{label} [%]" if is_accuracy(name) else label


def setting_label(key: str) -> str:
    """The name of a config key as people write it; of a method's own keyword with the method's name."""
    section, _, leaf = key.rpartition(".")
    method = section.removesuffix(".training")
    owner = f" of {algorithm_label(method)}" if method in _ALGORITHMS else ""
    known = _SETTINGS.get(key, _SETTINGS.get(leaf))
    return known or f"{leaf.replace('_', ' ')}{owner}"


def setting_labels(keys: Sequence[str]) -> list[str]:
    """The names of several keys, those that would be alike with their sections."""
    labels = [setting_label(key) for key in keys]
    return [
        f"{label} ({key.rpartition('.')[0]})" if labels.count(label) > 1 and "." in key else label
        for key, label in zip(keys, labels, strict=True)
    ]


def setting_text(value: Any, key: str = "", names: Mapping[str, str] = MappingProxyType({})) -> str:
    """A value, of the config's `key` if given, as it is printed in a row or on an axis.

    Methods have the names given here, else their usual ones.
    """
    if key in ("algorithm", "baselines") and value:
        methods = [value] if isinstance(value, str) else map(str, value)
        return ", ".join(names.get(method, algorithm_label(method)) for method in methods)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(setting_text(entry) for entry in value)
    if value in ("", None):
        return "none"
    return str(value)


def is_share(metric: str) -> bool:
    """Whether a metric lies in [0, 1]."""
    return is_accuracy(metric) or metric in _SHARES


def is_accuracy(metric: str) -> bool:
    """Whether a metric is a share of right answers: in [0, 1], more is better, shown in percent."""
    return metric.endswith("accuracy")


def measurement_text(metric: str, measurement: Measurement | None) -> str:
    """`mean ± deviation` in the metric's unit; no deviation for one repeat, a dash for nothing."""
    if measurement is None:
        return "–"
    if is_accuracy(metric):
        texts = [f"{100 * v:.2f}" for v in measurement[:2] if v is not None]
        return " ± ".join(texts)
    unit, scale = "", 1.0
    if metric.endswith("bytes"):
        unit, scale = bytes_unit(abs(measurement.mean))
    elif metric == "seconds":
        unit = " s"
    digits = _digits(measurement.mean / scale)
    texts = [f"{v / scale:.{digits}f}" for v in measurement[:2] if v is not None]
    return " ± ".join(texts) + unit


def difference_text(measurement: Measurement) -> str:
    """A difference of accuracies in percentage points, with its sign."""
    text = f"{100 * measurement.mean:+.2f}".replace("-", "−")
    return text if measurement.std is None else f"{text} ± {100 * measurement.std:.2f}"


def _digits(size: float) -> int:
    """Decimals that leave three significant digits, at most six."""
    if size == 0 or float(size).is_integer():
        return 0
    return min(6, max(0, 2 - math.floor(math.log10(abs(size)))))


def algorithm_styles(
    names: Sequence[str], theme: Theme, algorithms: Mapping[str, str] = MappingProxyType({})
) -> dict[str, dict[str, Any]]:
    """Color and marker of each method, in their order: the same in every plot, different within this one.

    `algorithms` says of variants which algorithm they are: that decides which lines are broken and on top.
    """
    looks = {name: (_OWN_COLOR.index(name),) * 2 for name in names if name in _OWN_COLOR}
    others = list(range(len(_OWN_COLOR), len(theme.palette)))
    for name in sorted(set(names) - set(_OWN_COLOR)):
        # A name's own slot, by a digest of it; the next free one where two names meet. Where all are taken,
        # colors come again with other markers.
        own = zlib.crc32(name.encode()) % len(others)
        ring = others[own:] + others[:own]
        possible = [
            (slot, (slot + shift) % len(MARKERS)) for shift in range(len(MARKERS)) for slot in ring
        ]
        looks[name] = next((look for look in possible if look not in looks.values()), possible[0])
    return {
        name: {
            "color": theme.palette[looks[name][0]],
            "marker": MARKERS[looks[name][1]],
            "linestyle": "--" if algorithms.get(name, name) in POOLED else "-",
            "zorder": 4 if algorithms.get(name, name) == "xclp" else 3,
        }
        for name in names
    }


def new_figure(width: float, height: float, theme: Theme) -> Figure:
    """A figure (inches) with a raster canvas of its own; nothing global knows of it."""
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor=theme.background)
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    FigureCanvasAgg(figure)
    return figure


def dress(ax: Axes, theme: Theme, *, title: str = "", xlabel: str = "", ylabel: str = "") -> None:
    """Gives axes the common look."""
    ax.set_facecolor(theme.background)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.muted)
        spine.set_linewidth(0.8)
    ax.grid(True, color=theme.grid, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.tick_params(which="both", colors=theme.muted, labelsize=9, length=3, width=0.8)
    ax.tick_params(which="minor", length=0, labelbottom=False, labelleft=False)
    ax.set_xlabel(xlabel, color=theme.ink, fontsize=10)
    ax.set_ylabel(ylabel, color=theme.ink, fontsize=10)
    if title:
        ax.set_title(title, color=theme.ink, fontsize=11, fontweight="bold", loc="left", pad=10)


def legend(figure: Figure, ax: Axes, theme: Theme, *, columns: int = 0) -> None:
    """What the lines of `ax` are, above all axes, where it hides nothing; 0 columns are as many as fit.

    A long one makes the figure higher, so that the axes stay as they are.
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
            labelcolor=theme.ink,
            handletextpad=0.5,
            columnspacing=1.4,
        )


_LEGEND_SIZE = 9  # points
_LEGEND_ROWS = 3  # that a figure has room for


def _columns_that_fit(labels: Sequence[str], width: float) -> int:
    """The most columns of a legend, up to four, that are not wider than a figure of so many inches."""
    inches = [text_width(label, _LEGEND_SIZE) for label in labels]
    beside = 4.2 * _LEGEND_SIZE / 72  # of each text: its line, and the spaces around
    for columns in range(min(4, len(labels)), 1, -1):
        filled = np.array_split(inches, columns)  # as matplotlib fills them
        if sum(max(each) + beside for each in filled) <= width:
            return columns
    return 1


def text_width(text: str, size: float) -> float:
    """How wide a text is, in inches, in letters of so many points."""
    return float(TextPath((0, 0), text, size).get_extents().width) / 72


def sequential(theme: Theme, color: str) -> matplotlib.colors.Colormap:
    """From the background to `color`, for counts."""
    return LinearSegmentedColormap.from_list("counts", [theme.background, color])
