"""Display names of methods in reports, including settings of variants that the config adds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxfed.experiment.store.records import Run, algorithms_of
from jaxfed.reports.tables.display_names import algorithm_label, setting_label, setting_text

_LABELERS = {
    "xclp": "XCLP",
    "xclp_prototypes": "XCLP of prototypes",
    "per_client_lp": "per-client LP",
    "network": "network",
}
_MOST_SETTINGS = 2  # most settings of a variant in its name


@dataclass(frozen=True)
class Methods:
    """Display names and algorithms of methods.

    Attributes:
        names: method -> display name if it is not the default one.
        algorithms: method -> its algorithm if that has another name.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    algorithms: Mapping[str, str] = field(default_factory=dict)

    def name(self, method: str) -> str:
        """Return the display name of a method."""
        return self.names.get(method, algorithm_label(method))


USUAL = Methods()


def methods_of(runs: Sequence[Run]) -> Methods:
    """Return names and algorithms of all methods with results in the runs."""
    return Methods(method_names(runs), algorithms_of(runs))


def method_names(runs: Sequence[Run]) -> dict[str, str]:
    """Return method -> display name, built from the settings that all runs with the method share.

    * A method with pseudo-labels of XCLP: `FedProx + XCLP`.
    * A variant without a title of its own: the title of its algorithm and the settings of its section,
      `XCLP, propagation alpha 0.9`; or a note that leave-one-out selects them (`select`), balanced
      over classes if it does so (`select_measure`).
    * Of methods with the same name, each has the settings appended in which their sections differ.
    * The config's name is appended, `XCLP (again)`, if the section sets no key or more than two, if runs
      differ in one, or if two methods would still have the same name.
    """
    algorithms = algorithms_of(runs)
    drafts = {
        method: _name(method, algorithm, [run for run in runs if method in run.results])
        for method, algorithm in algorithms.items()
    }
    names = {
        method: draft.name
        + _differing(method, drafts, algorithms, runs)
        + ("" if draft.says_all else f" ({method})")
        for method, draft in drafts.items()
    }
    counts = Counter(names.values())
    return {
        method: f"{name} ({method})"
        if counts[name] > 1 and name != algorithm_label(method)
        else name
        for method, name in names.items()
    }


class _Draft(NamedTuple):
    name: str
    says_all: bool = True  # False: the config's name must be appended


def difference_name(names: Mapping[str, str], main: str, other: str) -> str:
    """Return `MAIN − OTHER`, with compound names in parentheses."""
    both = [names.get(method, algorithm_label(method)) for method in (main, other)]
    return " − ".join(f"({name})" if " + " in name or ", " in name else name for name in both)


def _name(method: str, algorithm: str, runs: Sequence[Run]) -> _Draft:
    is_untitled = method != algorithm and method == algorithm_label(method)
    name = algorithm_label(algorithm if is_untitled else method)
    labelers = {str(_value(run, method, "pseudo_label", "none")) for run in runs}
    says_labeler = len(labelers) == 1 and " + " not in name
    if says_labeler and labelers != {"none"}:
        (labeler,) = labelers
        name = f"{name} + {_LABELERS.get(labeler, labeler)}"
    if not is_untitled:
        return _Draft(name)
    settings = _own_settings(method, runs)
    has_said = says_labeler and settings.pop(f"{method}.pseudo_label", None) is not None
    if settings.get(f"{method}.select") not in (None, setting_text(())):
        measures = {_value(run, method, "select_measure") for run in runs}
        is_balanced = measures == {"balanced_accuracy"}
        return _Draft(f"{name}, settings by {'balanced ' if is_balanced else ''}leave-one-out")
    told = [
        f"{own_label(key, method, algorithm)} {text}"
        for key, text in settings.items()
        if text is not None
    ]
    says_all = len(settings) == len(told) <= _MOST_SETTINGS and (has_said or bool(told))
    return _Draft(", ".join([name, *told[:_MOST_SETTINGS]]), says_all)


def _differing(
    method: str, drafts: Mapping[str, _Draft], algorithms: Mapping[str, str], runs: Sequence[Run]
) -> str:
    """Return the settings of a variant that another of the same name lacks: `, label matrix plain`."""
    name = drafts[method].name
    own = {
        other: {key.removeprefix(other): text for key, text in _own_settings(other, runs).items()}
        for other, draft in drafts.items()
        if draft.name == name and algorithms[other] != other
    }
    told = [
        f", {own_label(f'{method}{key}', method, algorithms[method])} {text}"
        for key, text in own.pop(method, {}).items()
        if text is not None and any(others.get(key) != text for others in own.values())
    ]
    return "".join([text for text in told if text not in name][:_MOST_SETTINGS])


def own_label(key: str, method: str, algorithm: str) -> str:
    """Return the label of a key in a variant's section: the algorithm's label without the method's name."""
    label = setting_label(f"{algorithm}{key.removeprefix(method)}")
    return label.removesuffix(f" of {algorithm_label(algorithm)}")


def _value(run: Run, method: str, key: str, default: Any = None) -> Any:
    """Return a setting from a method's own section or that of its algorithm."""
    keys = (f"{section}.{key}" for section in (method, run.algorithm_of(method)))
    return next((run.settings[key] for key in keys if key in run.settings), default)


def _own_settings(method: str, runs: Sequence[Run]) -> dict[str, str | None]:
    """Return the keys of a variant's section and their printed values; None if runs differ in the value."""
    of_section = {
        key: [run.settings.get(key) for run in runs]
        for run in runs
        for key, value in run.settings.items()
        if key.startswith(f"{method}.") and key != f"{method}.algorithm" and value != {}
    }
    return {
        key: setting_text(values[0]) if all(value == values[0] for value in values) else None
        for key, values in of_section.items()
    }
