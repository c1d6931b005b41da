"""Config fingerprint of a method: configs with equal fingerprints produce equal results of the method."""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import methods
from jaxfed.config.build.assembly import settings_to_try
from jaxfed.config.keys import flatten, parents
from jaxfed.learners import LEARNERS
from jaxfed.training.pseudo_labels.label_sources import SECTION_OF, source_names
from jaxfed.training.pseudo_labels.pseudo_label import LABELING_NOTHING
from jaxfed.xclp.settings import disclosure

_OF_NO_METHOD = {"algorithm", "baselines", "paper_table", "deployment"}
# Keys of `training` that per-client networks read; the numbers of steps are keywords of the methods.
_OF_LEARNING_NETWORKS = (
    *("optimizer", "learning_rate", "schedule", "schedule_rounds", "momentum", "nesterov"),
    *("weight_decay", "batches", "batch_size", "loss", "class_weights", "augmentation"),
    "initial_model",
)
_NOT_OF_EPISODES = ("batches", "batch_size", "local_steps", "unlabeled_ratio")  # not with episodes


def seen_by(config: ConfigDict, name: str) -> dict[str, Any]:
    """Return the part of a checked config that can change a method's results, by dotted keys.

    * Every method sees seed, data, clients, public examples, cohorts, rounds and execution.
    * It sees the keywords of its own section and, if it trains on pseudo-labels, the sections of their
      sources. The key "method" has its algorithm and these keywords.
    * `training` includes the method's own settings (`jaxfed.config.methods`). One-shot methods do not see it,
      unless their features come from a model that is trained first.
    * `learner` is seen by methods with per-client models; of it and of `model` and `training` they see the
      parts that the clients' learners use.
    * The key "selection" has the settings to select from, if there are several.
    """
    seen, needed = methods.with_own_training(config, name), methods.needs(config, name)
    features_are_trained = config.preprocessing.kind == "federated_features"
    own, of_training = methods.keywords(config, name), set()
    unread = {*_OF_NO_METHOD, "selection", *ALGORITHMS, *methods.variants(config)}
    if needed.has_learners:
        unread |= {"pseudo_label"}
        unread |= {f"learner.{each}" for each in {*LEARNERS} - {*methods.learner_names(config)}}
        if not features_are_trained and methods.has_networks(config):
            of_training = {*seen.training} - {*_OF_LEARNING_NETWORKS}
        elif not features_are_trained:
            unread |= {"model", "training"}
    elif needed.trains:
        taken = _pseudo_labels_taken(config, name)
        # A source's settings are in a section, mostly of its own name, which may also be a method's.
        unread -= {SECTION_OF.get(source, source) for source in taken}
        unread |= {"learner", "xclp.late_fraction"}  # which is of the one-shot method alone
        unread |= {"pseudo_label"} if taken <= LABELING_NOTHING else set()
        of_training = methods.unread_keys(config, name)
        of_training |= {*_NOT_OF_EPISODES} if "task" in needed.takes else set()
    else:
        unread |= {"learner"}
        unread |= set() if features_are_trained else {"model", "training", "pseudo_label"}
    unread |= {f"training.{key}" for key in of_training}
    found = {
        key: value
        for key, value in flatten(seen.to_dict())
        if unread.isdisjoint((key, *parents(key)))
    }
    found["method"] = methods.algorithm_of(config, name), own
    tried, wanted = settings_to_try(config, name), config.selection
    if not needed.trains and wanted.settings != "given" and len(tried) > 1:
        found["selection"] = wanted.folds, wanted.measure, tried
    return found


def keys_seen_by(config: ConfigDict, name: str) -> dict[str, tuple[str, Any]]:
    """Return the result of `seen_by` by the keys of the config that the user writes.

    Returns:
        Key -> its name common to all methods, and its value: `fedprox.training.epochs` is
        `training.epochs`, a variant's keyword is its algorithm's.
    """
    seen = seen_by(config, name)
    (algorithm, own), _ = seen.pop("method"), seen.pop("selection", None)
    if len(settings_to_try(config, name)) > 1:
        listed = name if name in config.selection.candidates else algorithm
        seen |= {
            f"selection.{key}": value
            for key, value in flatten(config.selection.to_dict())
            if parents(key) in ([], ["candidates", f"candidates.{listed}"])
        }
    everybody = (0, config.federation.num_clients)
    if methods.labels_in_one_shot(config, name) and config.cohort_size in everybody:
        del seen["rounds"]  # there is one
    found = {}
    for key, value in seen.items():
        section, _, leaf = key.partition(".")
        written = methods.training_key(config, name, leaf) if section == "training" else key
        found[written] = key, value
    for word, value in own.items():
        owner = name if word in methods.own_section(config, name) else algorithm
        found[f"{owner}.{word}"] = f"{algorithm}.{word}", value
    if name != algorithm:
        found[f"{name}.algorithm"] = f"{name}.algorithm", algorithm
    return found


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
    by_xclp = {"xclp", "xclp_prototypes"} & _pseudo_labels_taken(config, name)
    return config.xclp.to_dict() if by_xclp and not needed.has_learners else {}


def takes_no_labels(config: ConfigDict, name: str) -> bool:
    """True for a method that trains its model on given labels alone, in all of its rounds."""
    return _pseudo_labels_taken(config, name) == {"none"}


def _pseudo_labels_taken(config: ConfigDict, name: str) -> set[str]:
    """Return the sources of labels that a method may use; all of them if it does not declare its own."""
    source = methods.needs(config, name).pseudo_label
    return {"none", *(source_names() if source is None else (source,))}
