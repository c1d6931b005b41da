"""Display names and units of methods, metrics, settings and values in reports."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxfed.algorithms import ALGORITHMS, declaration_of
from jaxfed.experiment.store.records import Measurement, Run, algorithms_of
from jaxfed.federation.communication import bytes_unit

_LABELERS = {
    "xclp": "XCLP",
    "xclp_head": "XCLP and a head",
    "xclp_prototypes": "XCLP of prototypes",
    "per_client_lp": "per-client LP",
    "network": "network",
}
REMARK = " ‡"

# Metrics and settings whose own name does not say enough.
_METRICS = {
    "epsilon": "Epsilon of all rounds together",
    "epsilon_sampled": "Epsilon of all rounds together, if nobody knows who was drawn",
    "epsilon_if_stable": "Epsilon of all rounds together, if learners are as stable as is said",
    "epsilon_estimated": "Estimate of epsilon, of all rounds together; no promise",
    "prototype_epsilon": "Epsilon of shared prototypes, given the networks",
    "consensus_change": "Share of public examples whose label changed",
    "seconds": "Time",
    "communication.upload_bytes": "Upload",
    "communication.download_bytes": "Download",
}
_SETTINGS = {
    "xclp.num_bits": "LSH bits L",
    "xclp.num_neighbors": "neighbors k",
    "xclp.alpha": "propagation alpha",
    "federation.num_clients": "clients",
    "cohort_size": "clients a round",
    "dataset.name": "data set",
    "learner.name": "learner",
    "model.name": "network",
    "baselines": "other methods",
}
_SHARES = (
    *("pseudo_labeled", "pseudo_label_weight"),
    *("consensus_change", "agreement", "abstained"),
)


@dataclass(frozen=True)
class Methods:
    """Display names of methods where they are not the default ones, and algorithms of variants."""

    names: Mapping[str, str] = field(default_factory=dict)
    algorithms: Mapping[str, str] = field(default_factory=dict)

    def name(self, method: str) -> str:
        """Return the display name of a method."""
        return self.names.get(method, algorithm_label(method))


USUAL = Methods()


def methods_of(runs: Sequence[Run]) -> Methods:
    """Return names and algorithms of all methods with results.

    A method with pseudo-labels of XCLP in all runs is `FedProx + XCLP`; a variant without a title of its own
    has that of its algorithm, and the config's name: `XCLP (again)`.
    """
    algorithms, names = algorithms_of(runs), {}
    for method, algorithm in algorithms.items():
        is_untitled = method != algorithm and method == algorithm_label(method)
        name = algorithm_label(algorithm if is_untitled else method)
        labelers = {_labeler(run, method) for run in runs if method in run.results}
        if len(labelers) == 1 and "none" not in labelers and " + " not in name:
            labeler = labelers.pop()
            name = f"{name} + {_LABELERS.get(labeler, labeler)}"
        names[method] = f"{name} ({method})" if is_untitled else name
    return Methods(names, algorithms)


def _labeler(run: Run, method: str) -> str:
    keys = (f"{section}.pseudo_label" for section in (method, run.algorithm_of(method)))
    return next((str(run.settings[key]) for key in keys if key in run.settings), "none")


def mark(run: Run | None, method: str) -> str:
    """Return the mark of a method that the run, or the one that stands for it, has a remark on, else ""."""
    remarks = run.reused.get(method, run).entry("remarks", ()) if run else ()
    return REMARK * any(line.startswith(f"{method} in ") for line in remarks)


def marked(run: Run) -> dict[str, str]:
    """Return the display name of each method with its mark, for tables in a terminal or notebook."""
    methods = methods_of([run])
    return {method: methods.name(method) + mark(run, method) for method in run.results}


def algorithm_label(name: str) -> str:
    """Return the display name of a method."""
    return declaration_of(name).title


def metric_label(name: str) -> str:
    """Return the display name of a metric, with [%] for accuracies, whose values are printed without unit."""
    text = name.replace("_", " ").replace(".", ", ")
    label = _METRICS.get(name, text[:1].upper() + text[1:])
    return f"{label} [%]" if is_accuracy(name) else label


def lower(label: str) -> str:
    """Return a label for the middle of a title."""
    return label[:1].lower() + label[1:]


def setting_label(key: str) -> str:
    """Return the display name of a config key; a method's own key includes the method's name."""
    section, _, leaf = key.rpartition(".")
    method = section.removesuffix(".training")
    owner = f" of {algorithm_label(method)}" if method in ALGORITHMS else ""
    return _SETTINGS.get(key) or f"{leaf.replace('_', ' ')}{owner}"


def setting_labels(keys: Sequence[str]) -> list[str]:
    """Return the display names of several keys; equal ones include their sections."""
    labels = [setting_label(key) for key in keys]
    return [
        f"{label} ({key.rpartition('.')[0]})" if labels.count(label) > 1 and "." in key else label
        for key, label in zip(keys, labels, strict=True)
    ]


def setting_text(value: Any, key: str = "", methods: Methods = USUAL) -> str:
    """Return a value as printed in a row or on an axis; `key` is its config key, if known."""
    if key in ("algorithm", "baselines") and value:
        return ", ".join(map(methods.name, [value] if isinstance(value, str) else value))
    if isinstance(value, float):
        return f"{value:zg}"
    if isinstance(value, list | tuple):
        return ", ".join(setting_text(entry) for entry in value)
    return "none" if value in ("", None) else str(value)


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
        return " ± ".join(f"{100 * v:z.2f}" for v in measurement[:2] if v is not None)
    unit, scale = " s" if metric in ("seconds", "simulated_seconds") else "", 1.0
    if metric.endswith("bytes"):
        unit, scale = bytes_unit(abs(measurement.mean))
    size = abs(measurement.mean / scale)
    is_whole = size == 0 or float(size).is_integer()
    # Three significant digits, at most six decimals.
    digits = 0 if is_whole else min(6, max(0, 2 - math.floor(math.log10(size))))
    texts = [f"{v / scale:z.{digits}f}" for v in measurement[:2] if v is not None]
    return " ± ".join(texts) + unit


def difference_text(measurement: Measurement | None) -> str:
    """Return a difference in percentage points, with its sign unless it rounds to 0; a dash for None."""
    if measurement is None:
        return "–"
    text = f"{100 * measurement.mean:+z.2f}".replace("-", "−").replace("+0.00", "0.00")
    return text if measurement.std is None else f"{text} ± {100 * measurement.std:.2f}"


# Spaces around ±, around =, and before a unit or a mark: a line must not break there.
_JOINTS = re.compile(
    r" (?=[±=])|(?<=[±=]) |(?<=\d) (?=to \d)|(?<= to) (?=\d)"
    r"|(?<=[\d)]) (?=(?:[kMG]?B|s|%|points?|[†‡])(?!\w))"
)
_OF_MARKDOWN = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": r"\|", "`": r"\`", "*": r"\*", "\\": r"\\"}
    | dict.fromkeys("\r\n", " ")
)
_EDGE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")  # an underscore that would make a text slanted
_OF_LATEX = str.maketrans(
    {"−": "$-$", "±": r"$\pm$", "†": r"\dag{}", "‡": r"\ddag{}", "–": "--", "√": r"$\surd$"}
    | {"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
    | {character: rf"\{character}" for character in "&%$#_{}"}
    | dict.fromkeys("\r\n", " ")
)


def markdown_text(text: str) -> str:
    """Escape a text for Markdown: no HTML, emphasis, link or cell, and no line that ends before a unit."""
    escaped = _JOINTS.sub("\xa0", text).translate(_OF_MARKDOWN).replace("](", r"]\(")
    return _EDGE.sub(r"\_", escaped)


def latex_text(text: str) -> str:
    """Escape a text for LaTeX; at the end of a table's row, [ and * of the next one are arguments."""
    return "{}" * text.startswith(("[", "*")) + text.translate(_OF_LATEX)


def slug(text: str) -> str:
    """Return a file name for a title."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def is_number(value: Any) -> bool:
    """True if a swept value is a number, and not a name, a switch or a table."""
    return isinstance(value, int | float) and not isinstance(value, bool)
