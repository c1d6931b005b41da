"""Provenance of runs: command, settings off their defaults, data, seeds, commit and device."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS, declaration_of
from jaxfed.config import reference
from jaxfed.config.base import get_config
from jaxfed.config.keys import flatten
from jaxfed.config.reading import keys_seen_by
from jaxfed.experiment.store.records import Run
from jaxfed.reports.tables.display_names import setting_text
from jaxfed.training.pseudo_labels.label_sources import settings_section

# The first of these keys that is not 0 counts (`jaxfed.config.data.simulation`).
_LABELS = ("federation.labeled_per_class", "federation.num_labeled", "federation.labeled_fraction")
_OF_LEARNING = (
    *("rounds", "cohort_size", "sampling", "evaluate_every"),
    *("model", "training", "learner", "pseudo_label"),
)
_LIKE_XCLP = ("per_client_lp", "pooled_lp")  # their settings follow XCLP's unless they are given
# Sections of the problem and of its execution: every method has them in common.
_OF_ALL = ("dataset", "federation", "preprocessing", "selection", "audit")
# Shown elsewhere in a report, or without effect on results.
_SHOWN = ("algorithm", "baselines", "paper_table", "seed", "num_repeats", "execution", "deployment")


def provenance(runs: Sequence[Run], command: str = "") -> tuple[tuple[str, str], ...]:
    """Return the provenance of the runs, each value once: command, config, seeds, commit and device.

    A note on the data is included if their source has one (a JPEG copy, for example).
    """
    environments = [run.environment for run in runs if run.finished]
    commands = [command] if command else [e["command"] for e in environments if "command" in e]
    origins = _joined(run.origin for run in runs if run.finished)
    learned = _joined(line for run in runs if run.finished for line in run.row_statistics)
    facts = {
        "command": "\n".join(dict.fromkeys(commands)),
        "config": _common_settings(runs),
        **({"data": origins} if origins else {}),
        **({"statistics of rows": learned} if learned else {}),
        "seeds": "; ".join(dict.fromkeys(map(_seeds, runs))),
        "commit": _joined(map(_commit, environments)),
        "device": _joined(str(e.get("device", "")) for e in environments),
    }
    return tuple((name, text or "not recorded") for name, text in facts.items())


def _common_settings(runs: Sequence[Run]) -> str:
    """Return the settings off the schema's defaults that a method reads and that are equal in all runs."""
    common = []
    for key in dict.fromkeys(key for run in runs for key in run.settings):
        values = {setting_text(run.settings.get(key, "given")) for run in runs}
        counts = key not in _LABELS or all(key == _labels_key(run) for run in runs)
        is_read = any(touches(run, key, method) for run in runs for method in run.results)
        section, _, rest = key.partition(".")
        follows = section in _LIKE_XCLP and all(
            run.settings.get(f"xclp.{rest}") == run.settings.get(key) for run in runs
        )
        if (
            counts
            and is_read
            and not follows
            and len(values) == 1
            and values != {_defaults().get(key)}
        ):
            common.append(f"{key}={values.pop()}")
    return ", ".join(common) or "the defaults"


@cache
def _keys() -> set[str]:
    return {key for key, _ in flatten(get_config().to_dict())}


@cache
def _defaults() -> dict[str, str]:
    of_methods = {entry.key: entry.default.strip("'") for entry in reference.entries()}
    return of_methods | {key: setting_text(v) for key, v in flatten(get_config().to_dict())}


def reads(run: Run, key: str, method: str) -> bool:
    """True if a method of the run reads a config key; more exact than `touches`, and slower.

    A tree reads nothing of `training`, and FedAvg nothing of `learner`. That is known of a config that has
    every key of this version, and of a method of the package; for others this is `touches`.
    """
    if not touches(run, key, method):
        return False
    is_known = run.algorithm_of(method) in ALGORITHMS and _keys() <= run.settings.keys()
    if key.partition(".")[0] not in _OF_LEARNING or not is_known:
        return True
    return key in keys_seen_by(ConfigDict(run.config), method)


def touches(run: Run, key: str, method: str) -> bool:
    """True if a method of the run reads a config key, as far as sections tell.

    All methods read the problem; all but one-shot ones read rounds, network and training. A method reads its
    own section, what that leaves open of its algorithm's, and the section of its source of labels.
    """
    section, _, rest = key.partition(".")
    algorithm, settings = run.algorithm_of(method), run.settings
    if section in _SHOWN or (key == "training.epochs" and settings.get("training.local_steps")):
        return False
    learns = not declaration_of(algorithm).one_shot
    if section in _OF_LEARNING:
        features = settings.get("preprocessing.kind") == "federated_features"
        return (learns or features) and f"{method}.{key}" not in settings
    if section in (method, *_OF_ALL):
        return True
    if section == algorithm:
        return f"{method}.{rest}" not in settings
    named = (settings.get(f"{owner}.pseudo_label") for owner in (method, algorithm))
    source = next(filter(None, named), algorithm.removeprefix("fedavg_")) if learns else algorithm
    source = settings_section(source)
    if source in _LIKE_XCLP and section == "xclp":
        owners = (f"{owner}.{rest}" for owner in (method, source))
        return all(settings.get(own, settings[key]) == settings[key] for own in owners)
    return section == source and declaration_of(source).one_shot


def _labels_key(run: Run) -> str:
    """Return the key that sets the number of labels; the others are ignored."""
    return next((key for key in _LABELS if run.settings.get(key)), _LABELS[-1])


def _seeds(run: Run) -> str:
    first = int(run.config.get("seed", 0))
    return ", ".join(str(first + repeat) for repeat in range(run.num_repeats))


def _commit(environment: Mapping[str, Any]) -> str:
    commit = environment.get("commit")
    if not commit:
        return ""
    return f"{commit[:12]}{' with uncommitted changes' if environment.get('dirty') else ''}"


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(text for text in texts if text))
