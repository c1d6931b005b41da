"""Methods of an experiment: their algorithms, the settings of one method alone, and the clients' learners.

    config.algorithm, config.baselines = "fedavg", ("fedprox", "fedadam")
    config.training.learning_rate = 0.1                        # for all methods that train a model
    config.fedprox = ConfigDict({"mu": 0.1, "training": {"learning_rate": 0.03}})
    config.fedadam = ConfigDict({"algorithm": "fedavg", "training": {"server_optimizer": "adam"}})
    config.learner.name = "decision_tree"                   # in jaxfed.learners.LEARNERS, or "mixed"
    config.learner.names = ("decision_tree", "network")     # cycled over the clients if name is "mixed"
    config.learner.decision_tree.max_depth = 4              # a learner's own keywords

A method's name is that of an algorithm, or of a section with the key `algorithm`. Such a section defines a
variant of the algorithm; its settings override those in the algorithm's section. A section's `training`
overrides `config.training` for this method alone. All else belongs to the experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from jaxfed import xclp
from jaxfed.algorithms import ALGORITHMS
from jaxfed.config.keys import refused
from jaxfed.config.sections import MIXED
from jaxfed.data.client_rows import ClientRows
from jaxfed.errors import section
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clients import Federation
from jaxfed.federation.method import Method, completed, declared
from jaxfed.learners import LEARNERS
from jaxfed.settings import settings_of

_KEYS_OF = {  # field of `LocalTraining` or `ServerTraining` -> keys of `training`, if they differ
    "augment": ("augmentation",),
    "strong_augment": ("strong_augmentation",),
    "pointwise": ("loss", "class_weights"),
    "aggregate": (
        *("server_optimizer", "server_learning_rate", "server_momentum"),
        *("server_beta1", "server_beta2", "server_tau"),
    ),
}
# Keys of `training` that per-client networks read; the numbers of steps are keywords of the methods.
_OF_LEARNING_NETWORKS = (
    *("optimizer", "learning_rate", "schedule", "schedule_rounds", "momentum", "nesterov"),
    *("weight_decay", "batches", "batch_size", "loss", "class_weights", "augmentation"),
    *("initial_model", "trainable", "lora_rank", "lora_alpha", "lora_factors"),
)
_NOT_KEYWORDS = ("algorithm", "training")  # keys of a section that are no keywords of the factory


def chosen(config: ConfigDict) -> tuple[str, ...]:
    """Return the methods of the experiment, in order."""
    return (config.algorithm, *config.baselines)


def variants(config: ConfigDict) -> list[str]:
    """Return the names of sections that define a variant of an algorithm."""
    return [
        name
        for name, values in config.items()
        if name not in ALGORITHMS and isinstance(values, ConfigDict) and "algorithm" in values
    ]


def own_section(config: ConfigDict, name: str) -> ConfigDict:
    """Return the section of a method's name; empty without one."""
    return config[name] if name in config and isinstance(config[name], ConfigDict) else ConfigDict()


def algorithm_of(config: ConfigDict, name: str) -> str:
    """Return the name of a method's algorithm."""
    settings = own_section(config, name)  # `get` looks for a key like a missing one: a millisecond
    return str(settings["algorithm"]) if "algorithm" in settings else name


def factory_of(config: ConfigDict, name: str) -> Callable[..., FederatedAlgorithm]:
    """Return the factory in `ALGORITHMS` that builds the method."""
    return ALGORITHMS[algorithm_of(config, name)]


def keywords(config: ConfigDict, name: str) -> dict[str, Any]:
    """Return the keywords of the method's section; a variant's override those of its algorithm's section."""
    owners = algorithm_of(config, name), name
    settings = {key: value for owner in owners for key, value in own_section(config, owner).items()}
    return {key: value for key, value in settings.items() if key not in _NOT_KEYWORDS}


def all_keywords(config: ConfigDict, name: str) -> dict[str, Any]:
    """Return the same as `keywords`, completed by the factory's defaults."""
    return completed(factory_of(config, name), keywords(config, name))


def needs(config: ConfigDict, name: str) -> Method:
    """Return the declaration of the method's factory, with the method's keywords."""
    return declared(factory_of(config, name)).of(all_keywords(config, name))


def settings_to_try(config: ConfigDict, name: str) -> list[dict[str, Any]]:
    """Return every combination of a method's candidates that `select` does not name, its own values first."""
    candidates, current = config.selection.candidates, all_keywords(config, name)
    tried = candidates.get(name, candidates.get(algorithm_of(config, name), {}))
    left = {entry.partition(":")[0] for entry in current.get("select", ())}
    values = {key: value for key, value in tried.items() if value and key not in left}
    initial = {key: current[key] for key in values}
    grid = [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]
    return [initial, *(settings for settings in grid if settings != initial)]


def clients_for(config: ConfigDict, name: str, federation: Federation) -> Federation:
    """Return the clients for a method; if it trains, clients' new points become test examples."""
    part = federation.partition
    new = ClientRows.of(part.new).joined
    if not len(new) or not needs(config, name).trains:
        return federation
    part = part._replace(new=ClientRows.empty(federation.num_clients))
    return replace(federation, partition=part, test=np.concatenate([federation.test, new]))


def check_tested_alike(config: ConfigDict) -> None:
    """Refuse methods that label clients' points beside methods that train with a central test set."""
    by_kind = {needs(config, name).one_shot: name for name in chosen(config)}
    if config.federation.test == "central" and len(by_kind) > 1:
        wrong = f"{by_kind[True]!r} labels clients' points alone"
        raise refused(config, "federation.test", wrong, "use 'clients'")


def check_trains(config: ConfigDict, name: str) -> None:
    """Refuse the costs of a method without a model that is trained by `config.training`."""
    if not needs(config, name).trains:
        key = "algorithm" if name == config.algorithm else "baselines"
        raise refused(config, key, f"{name!r} trains no model, and so has no costs")


def label_settings(
    config: ConfigDict, num_classes: int
) -> tuple[xclp.Parameters, xclp.Propagation]:
    """Return the settings of pseudo-labels by XCLP, and by label propagation inside each client."""
    settings = {key: config.xclp[key] for key in config.xclp if key in settings_of(xclp.Parameters)}
    with section("config.xclp", config.xclp):  # its other keys are of the one-shot method alone
        parameters = xclp.Parameters(num_classes=num_classes, **settings)
    with section("config.per_client_lp", config.per_client_lp):
        return parameters, xclp.Propagation(num_classes=num_classes, **config.per_client_lp)


def uses_training(config: ConfigDict, name: str) -> bool:
    """True if the method depends on the network and on `config.training`."""
    needed = needs(config, name)
    return has_networks(config) if needed.has_learners else needed.trains


def training_read(config: ConfigDict, name: str) -> set[str]:
    """Return the keys of `training` that a round of the method reads."""
    needed = needs(config, name)
    unread = {key for field in needed.unread for key in _KEYS_OF.get(field, (field,))} | {
        *needed.ignores
    }
    if not uses_training(config, name):
        return set()
    if needed.has_learners:
        return {*_OF_LEARNING_NETWORKS} - unread
    if needed.pseudo_label == "none":
        unread |= {"batches", "unlabeled_ratio"}  # batches have labeled examples only
    # Views in the data, and the graph's points, use augmentations for every method.
    by_all = {"augmentation", "strong_augmentation"} if config.preprocessing.views else set()
    by_all |= {"augmentation"} if config.pseudo_label.augmented_features else set()
    return {*config.training} - (unread - by_all)


def with_own_training(config: ConfigDict, name: str) -> ConfigDict:
    """Return the config as this method sees it, with its own training settings merged into `training`."""
    if not (overridden := own_training(config, name)):
        return config
    seen = config.copy_and_resolve_references()
    seen.training.update({key: value for key, (_, value) in overridden.items()})
    with seen.unlocked():
        for owner in {owner for owner, _ in overridden.values()}:
            del seen[owner]["training"]
    return seen


def own_training(config: ConfigDict, name: str) -> dict[str, tuple[str, Any]]:
    """Return key -> (section, value) of `training` in the method's section, else in its algorithm's."""
    return {
        key: (owner, value)
        for owner in (algorithm_of(config, name), name)
        if "training" in (settings := own_section(config, owner))
        for key, value in settings["training"].items()
    }


def training_key(config: ConfigDict, name: str, key: str) -> str:
    """Return the dotted key that holds the method's value of `training.KEY`."""
    owner, _ = own_training(config, name).get(key, ("", None))
    return f"{owner}.training.{key}" if owner else f"training.{key}"


def naming(
    config: ConfigDict, name: str, settings: Mapping[str, Any] = MappingProxyType({})
) -> AbstractContextManager[None]:
    """Name in errors about a method's keyword or training the config's key; `settings` are candidates."""
    values = all_keywords(config, name)
    training = {key: training_key(config, name, key) for key in config.training}
    keys = {
        f"{owner}.{key}": named
        for owner in ("config.training", "LocalTraining", "ServerTraining", "Training")
        for key, named in training.items()
    }
    keys |= {word: f"{name}.{word}" for word in values}
    for owner in (algorithm_of(config, name), name):
        keys |= {word: f"{owner}.{word}" for word in own_section(config, owner)}
    tried = {word for word, value in settings.items() if value != values[word]}
    return section("config", keys | {word: f"selection.candidates.{name}.{word}" for word in tried})


def learner_names(config: ConfigDict) -> tuple[str, ...]:
    """Return the names of the clients' learners."""
    return tuple(config.learner.names) if config.learner.name == MIXED else (config.learner.name,)


def learner_takes(name: str, ingredient: str) -> bool:
    """True if a learner's factory has this keyword."""
    return name in LEARNERS and ingredient in settings_of(LEARNERS[name])


def has_networks(config: ConfigDict) -> bool:
    """True if some client trains a network, so that sections `training` and `model` matter."""
    return any(learner_takes(name, "training") for name in learner_names(config))
