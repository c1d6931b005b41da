"""Display names and units of methods, metrics, settings and values in reports."""

import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jaxfed.algorithms import ALGORITHMS, declaration_of
from jaxfed.experiment.store.records import Measurement
from jaxfed.federation.communication import bytes_unit

# Variants that shipped configs define; a method has its title from `@method(title=)`.
_VARIANTS = {
    "fixmatch_fedprox": "FixMatch-FedProx",
    "protofssl_fedprox": "ProtoFSSL-FedProx",
    "xclp_half_late": "XCLP, half of the points late",
    "xclp_late": "XCLP, unlabeled points late",
    "xclp_calibrated": "XCLP, calibrated",
    "pooled_lp_calibrated": "LP on pooled data, calibrated",
    "protofssl_mean": "ProtoFSSL, mean network",
    "protofssl_xclp": "ProtoFSSL + XCLP",
    "protofssl_clipped": "ProtoFSSL, embeddings clipped",
    "fixmatch_gpl": "FixMatch, received model",
    "flexmatch": "FixMatch, FlexMatch thresholds",
    "freematch": "FixMatch, FreeMatch thresholds",
    "fedavgm": "FedAvgM",
    "fedadagrad": "FedAdagrad",
    "fedadam": "FedAdam",
    "fedyogi": "FedYogi",
    "dp_fedct": "DP-FedCT, bits",
    "dp_fedct_paper": "DP-FedCT, bits (paper)",
    "dp_fedct_answers": "DP-FedCT, answers",
}

_METRICS = {
    "test_accuracy": "Test accuracy",
    "test_balanced_accuracy": "Balanced test accuracy",
    "unlabeled_accuracy": "Accuracy on unlabeled data",
    "validation_accuracy": "Validation accuracy",
    "selected_validation_accuracy": "Validation accuracy",
    "validation_balanced_accuracy": "Balanced validation accuracy",
    "selected_validation_balanced_accuracy": "Balanced validation accuracy",
    "selected_validation_auroc": "Validation AUROC",
    "round_test_accuracy": "Test accuracy of each round's state",
    "round_test_balanced_accuracy": "Balanced test accuracy of each round's state",
    "worst_client_test_accuracy": "Test accuracy of the worst client",
    "worst_client_unlabeled_accuracy": "Accuracy on its unlabeled data, worst client",
    "train_loss": "Training loss",
    "epsilon": "Epsilon of all rounds together",
    "epsilon_sampled": "Epsilon of all rounds together, if nobody knows who was drawn",
    "delta": "Delta of epsilon",
    "noise_multiplier": "Noise z, in units of the clip",
    "clip": "Clip, the largest norm",
    "sampling_rate": "Sampling rate",
    "epsilon_if_stable": "Epsilon of all rounds together, if learners are as stable as is said",
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
    "simulated_seconds": "Simulated time",
    "lost_share": "Share of drawn clients whose work is lost",
    "staleness": "Server steps since clients began, mean",
    "communication.upload_bytes": "Upload",
    "communication.download_bytes": "Download",
}

_SHARES = (
    *("pseudo_labeled", "pseudo_label_weight"),
    *("consensus_change", "agreement", "abstained", "lost_share"),
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


# Spaces around ±, around =, and before a unit or a mark: a line must not break there.
_JOINTS = re.compile(
    r" (?=[±=])|(?<=[±=]) |(?<=\d) (?=to \d)|(?<= to) (?=\d)"
    r"|(?<=[\d)]) (?=(?:[kMG]?B|s|%|points?|[†‡])(?!\w))"
)


def unbroken(text: str) -> str:
    """Join numbers to their ± and units with no-break spaces."""
    return _JOINTS.sub("\xa0", text)


_OF_MARKDOWN = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": r"\|", "`": r"\`", "\n": " "}
)


def markdown_text(text: str) -> str:
    """Escape a text for Markdown: no HTML, no links, no table cells, no line that ends before a unit."""
    return unbroken(text).translate(_OF_MARKDOWN).replace("](", r"]\(")


def algorithm_label(name: str) -> str:
    """Return the display name of a method."""
    return _VARIANTS.get(name) or declaration_of(name).title


def metric_label(name: str) -> str:
    """Return the display name of a metric, with [%] for accuracies, whose values are printed without unit."""
    label = _METRICS.get(name, name.replace("_", " ").replace(".", ", "))
    return f"{label} [%]" if is_accuracy(name) else label


def setting_label(key: str) -> str:
    """Return the display name of a config key; a method's own key includes the method's name."""
    section, _, leaf = key.rpartition(".")
    method = section.removesuffix(".training")
    owner = f" of {algorithm_label(method)}" if method in {*ALGORITHMS, *_VARIANTS} else ""
    known = _SETTINGS.get(key, _SETTINGS.get(leaf))
    return known or f"{leaf.replace('_', ' ')}{owner}"


def setting_labels(keys: Sequence[str]) -> list[str]:
    """Return the display names of several keys; equal ones include their sections."""
    labels = [setting_label(key) for key in keys]
    return [
        f"{label} ({key.rpartition('.')[0]})" if labels.count(label) > 1 and "." in key else label
        for key, label in zip(keys, labels, strict=True)
    ]


def setting_text(value: Any, key: str = "", names: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a value as printed in a row or on an axis; `key` is its config key, if known.

    Methods are printed with `names`, else with their default display names.
    """
    if key in ("algorithm", "baselines") and value:
        methods = [value] if isinstance(value, str) else map(str, value)
        return ", ".join(names.get(method, algorithm_label(method)) for method in methods)
    if isinstance(value, float):
        return f"{value:zg}"
    if isinstance(value, list | tuple):
        return ", ".join(setting_text(entry) for entry in value)
    if value in ("", None):
        return "none"
    return str(value)


def is_share(metric: str) -> bool:
    """True if a metric lies in [0, 1]."""
    return is_accuracy(metric) or metric in _SHARES


def is_accuracy(metric: str) -> bool:
    """True if a metric is an accuracy: in [0, 1], higher is better, shown in percent."""
    return metric.endswith("accuracy")


def measurement_text(metric: str, measurement: Measurement | None) -> str:
    """Return `mean ± deviation` in the metric's unit; no deviation for one repeat, a dash for None."""
    if measurement is None:
        return "–"
    if is_accuracy(metric):
        texts = [f"{100 * v:z.2f}" for v in measurement[:2] if v is not None]
        return " ± ".join(texts)
    unit, scale = "", 1.0
    if metric.endswith("bytes"):
        unit, scale = bytes_unit(abs(measurement.mean))
    elif metric in ("seconds", "simulated_seconds"):
        unit = " s"
    digits = _digits(measurement.mean / scale)
    texts = [f"{v / scale:z.{digits}f}" for v in measurement[:2] if v is not None]
    return " ± ".join(texts) + unit


def difference_text(measurement: Measurement) -> str:
    """Return a difference of accuracies in percentage points, with its sign unless it rounds to 0."""
    text = f"{100 * measurement.mean:+z.2f}".replace("-", "−").replace("+0.00", "0.00")
    return text if measurement.std is None else f"{text} ± {100 * measurement.std:.2f}"


def _digits(size: float) -> int:
    """Return the number of decimals for three significant digits, at most six."""
    if size == 0 or float(size).is_integer():
        return 0
    return min(6, max(0, 2 - math.floor(math.log10(abs(size)))))
