"""Config fingerprint of a method: configs with equal fingerprints produce equal results of the method."""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import learner_section, methods
from jaxfed.config.build.assembly import settings_to_try
from jaxfed.config.keys import flatten
from jaxfed.training.pseudo_labels.label_sources import SECTION_OF, source_names
from jaxfed.training.pseudo_labels.pseudo_label import LABELING_NOTHING
from jaxfed.xclp.settings import disclosure

_OF_NO_METHOD = ("algorithm", "baselines", "paper_table", "deployment")
_OF_TRAINING = ("model", "training", "pseudo_label")
# Keys of `training` that per-client networks read; the numbers of steps are keywords of the methods.
_OF_LEARNING_NETWORKS = (
    *("optimizer", "learning_rate", "schedule", "schedule_rounds", "momentum", "nesterov"),
    *("weight_decay", "batches", "batch_size", "loss", "class_weights", "augmentation"),
    "initial_model",
)
_NOT_OF_EPISODES = ("batches", "batch_size", "local_steps", "unlabeled_ratio")  # not with episodes


def seen_by(config: ConfigDict, name: str) -> dict[str, Any]:
    """Return the part of a checked config that can change a method's results, nested.

    * Every method sees seed, data, clients, public examples, cohorts, rounds and execution.
    * It sees the keywords of its own section and, if it trains on pseudo-labels, the sections of their
      sources.
    * `training` includes the method's own settings (`jaxfed.config.methods`). One-shot methods do not see it,
      unless their features come from a model that is trained first.
    * `learner` is seen by methods with per-client models; of it and of `model` and `training` they see the
      parts that the clients' learners use.
    * `selection` is seen if there are candidates to select from.
    """
    seen: dict[str, Any] = methods.with_own_training(config, name).to_dict()
    of_methods = {*ALGORITHMS, *methods.variants(config)}
    for key in {*_OF_NO_METHOD, *of_methods, "selection"}:
        seen.pop(key, None)
    seen["method"] = (methods.algorithm_of(config, name), methods.keywords(config, name))
    needed = methods.needs(config, name)
    if needed.has_learners:
        return _seen_by_learners(config, seen)
    del seen["learner"]
    if needed.trains:
        taken = _pseudo_labels_taken(config, name)
        # A source's settings are in a section, mostly of its own name, which may also be a method's.
        sections = {SECTION_OF.get(source, source) for source in taken}
        seen |= {section: config[section].to_dict() for section in sections.intersection(config)}
        seen.get("xclp", {}).pop("late_fraction", None)  # of the one-shot method alone
        if taken <= LABELING_NOTHING:
            del seen["pseudo_label"]
        for key in methods.unread_keys(config, name):
            del seen["training"][key]
        if "task" in needed.takes:
            for key in _NOT_OF_EPISODES:
                del seen["training"][key]
        return seen
    if config.preprocessing.kind != "federated_features":
        for key in _OF_TRAINING:
            del seen[key]
    tried = settings_to_try(config, name)
    if config.selection.settings != "given" and len(tried) > 1:
        seen["selection"] = (config.selection.folds, config.selection.measure, tried)
    return seen


def disclosures(config: ConfigDict) -> list[str]:
    """Return lines on what server and clients can learn if steps of XCLP run as secure protocols.

    A plaintext run guarantees nothing and has no lines.
    """
    found: dict[tuple[str, ...], list[str]] = {}
    for name in methods.chosen(config):
        settings = _xclp_settings(config, name)
        if settings and not settings["hamming"] == settings["row_sums"] == "plaintext":
            found.setdefault(disclosure.lines(settings), []).append(name)
    return [f"{', '.join(names)}: {line}" for lines, names in found.items() for line in lines]


def _xclp_settings(config: ConfigDict, name: str) -> dict[str, Any]:
    """Return the settings of XCLP that a method labels with; {} if it does not use XCLP."""
    needed = methods.needs(config, name)
    if not needed.trains:
        own = methods.all_keywords(config, name)
        return own if "hamming" in own else {}
    by_xclp = {"xclp", "xclp_prototypes"}
    if needed.has_learners or not by_xclp & _pseudo_labels_taken(config, name):
        return {}
    settings: dict[str, Any] = config.xclp.to_dict()
    return settings


def keys_seen_by(config: ConfigDict, name: str) -> dict[str, tuple[str, Any]]:
    """Return the result of `seen_by` by the dotted keys of the config.

    Returns:
        Key -> its name common to all methods, and its value: `fedprox.training.epochs` is
        `training.epochs`, a variant's keyword is its algorithm's.
    """
    seen = seen_by(config, name)
    algorithm, own = seen.pop("method")
    found: dict[str, tuple[str, Any]] = {}
    seen.pop("selection", None)
    if len(settings_to_try(config, name)) > 1:
        candidates = config.selection.candidates
        listed = name if name in candidates else algorithm
        section = {
            **{key: config.selection[key] for key in ("settings", "folds", "measure")},
            "candidates": {listed: candidates.get(listed, ConfigDict()).to_dict()},
        }
        found = {key: (key, value) for key, value in flatten({"selection": section})}
    if has_one_round(config, name):
        del seen["rounds"]
    for key, value in flatten(seen):
        of_training = key.removeprefix("training.")
        is_own = of_training != key
        found[methods.training_key(config, name, of_training) if is_own else key] = key, value
    for word in own:
        owner = name if word in methods.own_section(config, name) else algorithm
        found[f"{owner}.{word}"] = f"{algorithm}.{word}", own[word]
    if name != algorithm:
        found[f"{name}.algorithm"] = f"{name}.algorithm", algorithm
    return found


def has_one_round(config: ConfigDict, name: str) -> bool:
    """True for a one-shot method with all clients in a round: it has one round, whatever `rounds` is."""
    everybody = (0, config.federation.num_clients)
    return methods.labels_in_one_shot(config, name) and config.cohort_size in everybody


def _seen_by_learners(config: ConfigDict, seen: dict[str, Any]) -> dict[str, Any]:
    """Remove the settings of learners that no client has, and of networks if no client has one."""
    names = {*learner_section.names_of(config), "name", "names"}
    seen["learner"] = {key: value for key, value in seen["learner"].items() if key in names}
    del seen["pseudo_label"]
    if config.preprocessing.kind == "federated_features":
        return seen
    if not learner_section.has_networks(config):
        del seen["model"], seen["training"]
    else:
        seen["training"] = {key: seen["training"][key] for key in _OF_LEARNING_NETWORKS}
    return seen


def takes_no_labels(config: ConfigDict, name: str) -> bool:
    """True for a method that trains its model on given labels alone, in all of its rounds."""
    return _pseudo_labels_taken(config, name) == {"none"}


def _pseudo_labels_taken(config: ConfigDict, name: str) -> set[str]:
    """Return the sources of labels that a method may use; all of them if it does not declare its own."""
    source = methods.needs(config, name).pseudo_label
    return {"none", *(source_names() if source is None else (source,))}
