"""A config that is ready to run, and the keys that its methods read; other keys are refused.

    config, given = opened("fedavg_xclp.py", ["training.epochs=2"])
    seen_by(config, "fedprox")              # equal for two configs with equal results of the method
    reasons(config)["fedprox.mu"]           # why nothing reads it; "" if it is read

A key is in effect in a run if a method of the run reads it and the conditions in its hint hold
(`jaxfed.settings.when`). Keys for execution, deployment and monitoring are always in effect (`_OF_THE_RUN`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import file, methods
from jaxfed.config.check import check
from jaxfed.config.keys import flatten, parents
from jaxfed.config.overrides import CANDIDATES, setting_of, with_overrides
from jaxfed.errors import UsageError
from jaxfed.learners import LEARNERS
from jaxfed.training.pseudo_labels.label_sources import (
    LABELING_NOTHING,
    settings_section,
    source_names,
)

# Keys and sections for execution, monitoring and display of a run with any method.
_OF_THE_RUN = (
    *("algorithm", "baselines", "paper_table", "dataset.root", "execution", "deployment"),
    *("evaluate_every", "evaluate_test", "checkpoint_every"),
)
_OF_NO_METHOD = ("algorithm", "baselines", "paper_table", "deployment", "audit")


def opened(
    config: str | ConfigDict,
    overrides: Sequence[str] = (),
    *,
    command: str = "",
    in_sweep: bool = False,
) -> ConfigDict:
    """Read a config, apply overrides and check the result, before any data is read or any file is written.

    Args:
        config: `FILE.py[:VARIANT]`, or a config with references between keys.
        overrides: `KEY=VALUE`, as the user gave them.
        command: the command that runs; launch.audit reads the section `audit`.
        in_sweep: overrides may have no effect; the sweep has checked that each has one at some point.

    Raises:
        UsageError: the file cannot be read; an unknown key, a wrong value, or two that contradict each other;
            the first override that nothing reads, its value, and the reason.
    """
    base = file.read(config) if isinstance(config, str) else config
    settings = with_overrides(base, overrides)
    check(settings)
    for line in filter(
        None, () if in_sweep else effects(settings, base, overrides, command).values()
    ):
        raise UsageError(line)
    return settings


def effects(
    config: ConfigDict, base: ConfigDict, overrides: Sequence[str], command: str = ""
) -> dict[str, str]:
    """Return the key of each override -> "", or an error if it has no effect.

    `config` is `base` with the overrides, checked. An override has an effect if a key that it changes is in
    effect: its own, or one that refers to it.
    """
    values, why, found = dict(flatten(config.to_dict())), reasons(config, command), {}
    for text in overrides:
        key = text.partition("=")[0]
        found[key] = f"config.{text}: {why[key]}" if why.get(key) else ""
        if not found[key]:
            continue
        try:
            without = with_overrides(base, [other for other in overrides if other is not text])
        except UsageError:  # other overrides depend on it
            found[key] = ""
            continue
        before = dict(flatten(without.to_dict()))
        changed = [one for one in values if one not in before or before[one] != values[one]]
        if not changed:
            del found[key]
        elif not all(why[one] for one in changed):
            found[key] = ""
    return found


def reasons(config: ConfigDict, command: str = "") -> dict[str, str]:
    """Return every key of a checked config -> why it has no effect, and what to write; "" if it has one."""
    read = {name: _read_by(config, name) for name in methods.chosen(config)}
    names = ", ".join(read)

    def reason(key: str) -> str:
        section = key.partition(".")[0]
        if key in _OF_THE_RUN or section in _OF_THE_RUN:
            return ""
        if section == "audit":
            return "" if command == "launch.audit" else "launch.audit alone reads it; leave it out"
        unmet = [_unmet(config, own, key) for own in read.values() if key in own]
        if unmet:
            return "" if "" in unmet else unmet[0]
        if key == "rounds":
            return f"{names} label in one round of all clients; leave it out, or set a cohort_size"
        return f"no method of this run reads it ({names}); leave it out"

    return {key: reason(key) for key, _ in flatten(config.to_dict())}


def seen_by(config: ConfigDict, name: str) -> dict[str, Any]:
    """Return the part of a checked config that can change a method's results.

    Returns:
        Dotted key -> value. Keys are common to all methods: `fedprox.training.epochs` is `training.epochs`, a
        variant's keyword is its algorithm's.
    """
    read = _read_by(config, name)
    return {common: value for key, (common, value) in read.items() if not _unmet(config, read, key)}


def keys_seen_by(config: ConfigDict, name: str) -> set[str]:
    """Return the keys that can change a method's results, as the user writes them."""
    read = _read_by(config, name)
    return {key for key in read if not _unmet(config, read, key)}


def _read_by(config: ConfigDict, name: str) -> dict[str, tuple[str, Any]]:
    """Return key as the user writes it -> the key common to all methods, and its value.

    Every method sees seed, data, clients, public examples, cohorts, rounds and execution. Of the other
    sections it sees those that its ingredients and its sources of pseudo-labels are made from.
    """
    needed, algorithm = methods.needs(config, name), methods.algorithm_of(config, name)
    seen = methods.with_own_training(config, name)
    features_are_trained = config.preprocessing.kind == "federated_features"
    unread = {*_OF_NO_METHOD, *ALGORITHMS, *methods.variants(config), "selection"}
    if needed.has_learners:
        unread |= {"pseudo_label"}
        unread |= {f"learner.{each}" for each in {*LEARNERS} - {*methods.learner_names(config)}}
    elif needed.trains:
        taken = _pseudo_labels_taken(config, name)
        unread -= set(map(settings_section, taken))  # of a name that may also be a method's
        # `xclp.late_fraction` is read by the one-shot method alone.
        unread |= {"learner", "xclp.late_fraction"}
        unread |= {"pseudo_label"} if taken <= {*LABELING_NOTHING} else set()
    else:
        unread |= {"learner"} if features_are_trained else {"learner", "pseudo_label"}
    if not methods.uses_training(config, name) and not features_are_trained:
        unread |= {"model", "training"}
    elif needed.trains and not (needed.has_learners and features_are_trained):
        read = methods.training_read(config, name)
        unread |= {f"training.{key}" for key in {*config.training} - read}
    if "pretrained" not in (config.preprocessing.kind, seen.training.initial_model):
        unread |= {"preprocessing.weights"}
    if needed.one_shot and config.cohort_size in (0, config.federation.num_clients):
        unread |= {"rounds"}  # there is one
    found = {}
    for key, value in flatten(seen.to_dict()):
        if unread.isdisjoint((key, *parents(key))):
            section, _, leaf = key.partition(".")
            is_own = section == "training"
            found[methods.training_key(config, name, leaf) if is_own else key] = key, value
    for word, value in methods.keywords(config, name).items():
        owner = name if word in methods.own_section(config, name) else algorithm
        found[f"{owner}.{word}"] = f"{algorithm}.{word}", value
    if name != algorithm:
        found[f"{name}.algorithm"] = "method", algorithm
    if not needed.trains and len(methods.settings_to_try(config, name)) > 1:
        found |= {key: (key, value) for key, value in _selection(config, name)}
    return found


def _selection(config: ConfigDict, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the keys of `selection` that a one-shot method reads."""
    candidates = config.selection.candidates
    listed = name if name in candidates else methods.algorithm_of(config, name)
    for key, value in flatten(config.selection.to_dict(), "selection."):
        if not key.startswith(CANDIDATES) or key.startswith(f"{CANDIDATES}{listed}."):
            yield key, value


def _unmet(config: ConfigDict, read: Mapping[str, tuple[str, Any]], key: str) -> str:
    """Return which condition in the hint of a read key does not hold, and what to write; "" if all do."""
    values, (common, _) = dict(read.values()), read[key]
    common = "selection.folds" if common.startswith(CANDIDATES) else common
    setting, section = setting_of(config, common), common.rpartition(".")[0]
    for condition in setting.conditions if setting else ():
        near = f"{section}.{condition.key}".lstrip(".")
        other = condition.key if "." in condition.key else near
        if other in values and not condition.holds(values[other]):
            where = next(written for written, (one, _) in read.items() if one == other)
            return (
                f"nothing reads it with {where}={values[other]!r}; leave it out, or set {where} to "
                f"{condition.text}"
            )
    return ""


def _pseudo_labels_taken(config: ConfigDict, name: str) -> set[str]:
    """Return the sources of labels that a method may use; all of them if it does not declare its own."""
    source = methods.needs(config, name).pseudo_label
    return {"none", *(source_names() if source is None else (source,))}
