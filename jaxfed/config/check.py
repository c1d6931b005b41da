"""Check of a whole config: known keys, allowed values, and combinations of keys.

Shared settings and their rules are in `jaxfed.config.schema`. The keys of a method's section are the keywords
of its factory in `jaxfed.algorithms`, which checks their values, and those of `jaxfed.config.methods`.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import methods
from jaxfed.config.assembly import (
    check_algorithm,
    settings_to_try,
)
from jaxfed.config.feasibility import check_presence
from jaxfed.config.keys import TYPES, check_value, flatten, unknown_key
from jaxfed.config.learner_section import check_learner, check_learner_key
from jaxfed.config.model_options import check_options
from jaxfed.config.networks import in_section
from jaxfed.config.open_sections import CANDIDATES, check_candidates, check_plugin, plugged_in
from jaxfed.config.public_examples import check_public
from jaxfed.config.rounds import check_rounds
from jaxfed.config.schema import SHARED
from jaxfed.config.schema.experiment import method_rules
from jaxfed.config.schema.training import AUGMENTATION, learner_rules
from jaxfed.config.server_labels import check_labels_at
from jaxfed.errors import UsageError
from jaxfed.models import MODELS
from jaxfed.rules import Rule, check_values, one_of, rules_of
from jaxfed.training.local.augmentation import compose

RULES = {key: setting.rule for key, setting in SHARED.items()}
_SECTIONS = (
    *dict.fromkeys(key.partition(".")[0] for key in RULES if "." in key),
    *("xclp", "per_client_lp"),  # also label sources of methods that train a model
)


def check(config: ConfigDict) -> None:
    """Check every key and value of a config before any data is read or any file is written.

    Raises:
        UsageError: names the first key that is unknown, missing, of the wrong type or out of range,
            or two keys that contradict each other.
    """
    flat = dict(flatten(config.to_dict()))
    _check_is_whole(config)
    variants = methods.variants(config)
    names = [*ALGORITHMS, *variants]
    for name in variants:
        _check_variant(name, config[name].algorithm)
    plugins = plugged_in()
    # Users may register plugins after this module is imported.
    rules = RULES | method_rules(names) | learner_rules() | {"model.name": one_of(MODELS)}
    for key, value in flat.items():
        if key in rules:
            check_value(key, value, rules[key])
        elif key.startswith("learner."):
            check_learner_key(key, value)
        # The sections of networks and methods are checked by their factories.
        elif not key.startswith((CANDIDATES, "model.")) and key.partition(".")[0] not in (
            *names,
            *plugins,
        ):
            raise unknown_key(key, {*RULES, *methods.own_keys(config)})
    for name, factory in plugins.items():
        check_plugin(name, factory, config.get(name, {}))
    for name in names:
        _check_keywords(config, name)
        _check_own_training(config, name)
    for key in flat:
        if key.startswith(CANDIDATES):
            check_candidates(config, key, flat[key])
    options = {key: value for key, value in config.model.items() if key != "name"}
    check_options(config.model.name, MODELS[config.model.name], options)
    for key in ("augmentation", "strong_augmentation"):
        with in_section("training", key):
            compose(config.training[key])
    _check_together(config)
    for name in methods.chosen(config):
        check_algorithm(config, name)


def _check_is_whole(config: ConfigDict) -> None:
    """Check that every required section and key exists."""
    sections = {name: config.get(name) for name in _SECTIONS}
    candidates = (sections["selection"] or {}).get("candidates")
    for name, section in {**sections, "selection.candidates": candidates}.items():
        if not isinstance(section, ConfigDict):
            raise UsageError(
                f"config.{name}: the section is missing; jaxfed.config.base.get_config() has it"
            )
    flat = dict(flatten(config.to_dict()))
    for key in RULES:
        if key not in flat:
            raise UsageError(f"config.{key}: missing; allowed are {RULES[key].allowed}")


def _check_variant(name: str, algorithm: Any) -> None:
    """Check a variant: the name of its section, and the algorithm that it names."""
    if name in _SECTIONS or not name.isidentifier():
        raise UsageError(
            f"config.{name}.algorithm: {name!r} cannot name a method; allowed are identifiers other than "
            f"the sections {', '.join(_SECTIONS)}"
        )
    check_value(f"{name}.algorithm", algorithm, one_of(ALGORITHMS))


def _check_own_training(config: ConfigDict, name: str) -> None:
    """Check that a method's own training has keys and values that the section `training` allows."""
    own = config.get(name, {}).get("training", {})
    if not isinstance(own, ConfigDict | dict):
        raise UsageError(f"config.{name}.training={own!r}: allowed is a section of training's keys")
    if own and not methods.trains(config, name):
        raise UsageError(
            f"config.{name}.training: allowed with methods that train a model; {name!r} labels in one shot"
        )
    known = {
        key.removeprefix("training."): RULES[key] for key in RULES if key.startswith("training.")
    }
    for key, value in own.items():
        if key not in known:
            raise unknown_key(f"{name}.training.{key}", [f"{name}.training.{k}" for k in known])
        check_value(f"{name}.training.{key}", value, known[key])
        if known[key] is AUGMENTATION:
            with in_section(f"{name}.training", key):
                compose(value)


def _check_keywords(config: ConfigDict, name: str) -> None:
    """Check a method's keywords against their defaults' types and its factory's rules, in the run or not."""
    factory = methods.factory_of(config, name)
    known, rules = inspect.signature(factory).parameters, rules_of(factory)
    for key, value in config.get(name, {}).items():
        default = known[key].default if key in known else None
        if type(default) in TYPES:
            check_value(f"{name}.{key}", value, Rule(type(default), TYPES[type(default)]))
        if key in rules:
            check_values(f"config.{name}", {key: rules[key]}, {key: value})


def _check_together(config: ConfigDict) -> None:
    """Check combinations of keys."""
    federation = config.federation
    num_clients = federation.num_clients
    if num_clients == 0 and federation.partition != "natural":
        raise UsageError(
            "config.federation.num_clients=0: allowed with partition='natural' only; "
            f"it is {federation.partition!r}"
        )
    chosen = methods.chosen(config)
    nothing_to_choose = all(len(settings_to_try(config, name)) == 1 for name in chosen)
    if config.selection.settings == "cross_validated" and nothing_to_choose:
        raise UsageError(
            "config.selection.settings='cross_validated': allowed where a method has values in "
            f"selection.candidates; there are none for {', '.join(chosen)}"
        )
    if config.pseudo_label.safeguard == "network":
        for key, has, wanted in (
            ("xclp.confidence", config.xclp.confidence == "calibrated", "'calibrated'"),
            ("dataset.validation_fraction", config.dataset.validation_fraction > 0, "above 0"),
        ):
            if not has:
                raise UsageError(
                    f"config.pseudo_label.safeguard='network': allowed with {key} {wanted}"
                )
    if config.algorithm in config.baselines:
        raise UsageError(
            f"config.baselines={config.baselines}: {config.algorithm!r} is the algorithm already"
        )
    if federation.num_labeled and federation.labeled_per_class:
        raise UsageError(
            f"config.federation.num_labeled={federation.num_labeled}: allowed is 0 beside "
            f"labeled_per_class={federation.labeled_per_class}"
        )
    check_rounds(config)
    check_labels_at(config)
    check_public(config)
    check_learner(config)
    for name in methods.chosen(config):
        if federation.test == "clients" and methods.has_learners(config, name):
            raise UsageError(
                f"config.federation.test='clients': clients of {name!r} have models to be tested on what "
                "nobody holds; allowed is 'central'"
            )
    check_presence(config, num_clients or sys.maxsize)
    if num_clients:
        for key, value, most in (
            ("cohort_size", config.cohort_size, num_clients),
            ("federation.num_labeled_clients", federation.num_labeled_clients, num_clients),
            ("federation.left_out_client", federation.left_out_client, num_clients - 1),
        ):
            if value > most:
                raise UsageError(
                    f"config.{key}={value}: at most {most} with "
                    f"federation.num_clients={num_clients}"
                )
