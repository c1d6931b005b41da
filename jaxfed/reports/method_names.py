"""What reports call the methods of some runs, where the config says more than the name does."""

from collections.abc import Mapping, Sequence

from jaxfed.experiment.records import Run
from jaxfed.reports.style import algorithm_label

_LABELERS = {
    "xclp": "XCLP",
    "xclp_prototypes": "XCLP of prototypes",
    "per_client_lp": "per-client LP",
    "network": "network",
}


def method_names(runs: Sequence[Run]) -> dict[str, str]:
    """Method -> its name; `FedProx + XCLP` where it has pseudo-labels of XCLP in all runs that have it."""
    methods = dict.fromkeys(name for run in runs for name in run.results)
    return {method: _name(method, runs) for method in methods}


def difference_name(names: Mapping[str, str], main: str, other: str) -> str:
    """`MAIN − OTHER`, a name that is a sum in brackets."""
    both = [names.get(method, algorithm_label(method)) for method in (main, other)]
    return " − ".join(f"({name})" if " + " in name else name for name in both)


def _name(method: str, runs: Sequence[Run]) -> str:
    name = algorithm_label(method)
    labelers = {_labeler(run, method) for run in runs if method in run.results}
    if len(labelers) != 1 or labelers == {"none"} or " + " in name:
        return name
    (labeler,) = labelers
    return f"{name} + {_LABELERS.get(labeler, labeler)}"


def _labeler(run: Run, method: str) -> str:
    """Whose pseudo-labels a method has by its own section, else by that of its algorithm."""
    sections = (method, run.settings.get(f"{method}.algorithm", method))
    keys = (f"{section}.pseudo_label" for section in sections)
    return str(next((run.settings[key] for key in keys if key in run.settings), "none"))
