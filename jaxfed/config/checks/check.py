"""Check of a whole config: known keys, allowed values, and combinations of keys.

Shared settings and their rules are in `jaxfed.config.schema`. The keys of a method's section are the keywords
of its factory in `jaxfed.algorithms`, which checks their values, and those of `jaxfed.config.methods`.
"""

from __future__ import annotations

import sys
from typing import Any

from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import clock, methods
from jaxfed.config.build.assembly import settings_to_try
from jaxfed.config.build.views import check_views
from jaxfed.config.checks.method_check import check_method
from jaxfed.config.data.feasibility import check_presence
from jaxfed.config.data.public_examples import check_public
from jaxfed.config.keys import check_own, check_value, flatten, unknown_key
from jaxfed.config.learner_section import check_learner, check_learner_key
from jaxfed.config.mask_partners import check_mask_partners
from jaxfed.config.model_options import check_options
from jaxfed.config.open_sections import CANDIDATES, check_candidates, check_plugin, plugged_in
from jaxfed.config.schema import SHARED
from jaxfed.config.schema.experiment import method_rules
from jaxfed.config.schema.training import AUGMENTATION, learner_rules
from jaxfed.config.server_labels import check_labels_at
from jaxfed.data import SCHEMES
from jaxfed.errors import UsageError, section
from jaxfed.models import MODELS
from jaxfed.rules import one_of
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
    rules = RULES | method_rules(names) | learner_rules()
    rules |= {"model.name": one_of(MODELS), "federation.partition": one_of(SCHEMES)}
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
        check_plugin(name, factory, methods.section_of(config, name))
    for name in names:  # also those outside the run: a sweep may use them
        check_own(name, methods.section_of(config, name), methods.factory_of(config, name))
        _check_own_training(config, name)
    for key in flat:
        if key.startswith(CANDIDATES):
            check_candidates(config, key, flat[key])
    options = {key: value for key, value in config.model.items() if key != "name"}
    check_options(config.model.name, MODELS[config.model.name], options)
    for key in ("augmentation", "strong_augmentation"):
        with section("config.training", {"augmentation": key}):
            compose(config.training[key])
    _check_together(config)
    for name in methods.chosen(config):
        check_method(config, name)
        _check_training_cohort(config, name)
    clock.check(config)


def _check_is_whole(config: ConfigDict) -> None:
    """Check that every required section and key exists."""
    sections = {name: config.get(name) for name in _SECTIONS}
    candidates = (sections["selection"] or {}).get("candidates")
    for name, own in {**sections, "selection.candidates": candidates}.items():
        if not isinstance(own, ConfigDict):
            raise UsageError(
                "the section is missing",
                key=f"config.{name}",
                allowed="jaxfed.config.base.get_config() has it",
            )
    flat = dict(flatten(config.to_dict()))
    for key in RULES:
        if key not in flat:
            raise UsageError("missing", key=f"config.{key}", allowed=RULES[key].advice)


def _check_variant(name: str, algorithm: Any) -> None:
    """Check a variant: the name of its section, and the algorithm that it names."""
    if name in _SECTIONS or not name.isidentifier():
        raise UsageError(
            f"{name!r} cannot name a method",
            key=f"config.{name}.algorithm",
            allowed=f"use an identifier other than the sections {', '.join(_SECTIONS)}",
        )
    check_value(f"{name}.algorithm", algorithm, one_of(ALGORITHMS))


def _check_own_training(config: ConfigDict, name: str) -> None:
    """Check that a method's own training has keys and values that the section `training` allows."""
    method = methods.section_of(config, name)
    if "training" not in method:
        return
    own = method["training"]
    if not isinstance(own, ConfigDict | dict):
        raise UsageError(
            key=f"config.{name}.training", value=own, allowed="use a section of training's keys"
        )
    if own and not methods.trains(config, name):
        wrong = methods.without_training(config, name)
        raise UsageError(wrong, key=f"config.{name}.training", allowed="leave it out")
    known = {
        key.removeprefix("training."): RULES[key] for key in RULES if key.startswith("training.")
    }
    for key, value in own.items():
        if key not in known:
            raise unknown_key(f"{name}.training.{key}", [f"{name}.training.{k}" for k in known])
        check_value(f"{name}.training.{key}", value, known[key])
        if known[key] is AUGMENTATION:
            with section(f"config.{name}.training", {"augmentation": key}):
                compose(value)


def _check_training_cohort(config: ConfigDict, name: str) -> None:
    """Check that a round has as many clients as are to train, which is for labels at clients."""
    most = config.cohort_size or config.federation.num_clients
    size = methods.with_own_training(config, name).training.training_cohort_size
    if not size or not methods.uses_training(config, name):
        return
    key = f"config.{methods.training_key(config, name, 'training_cohort_size')}"
    if config.federation.labels_at == "server":
        allowed = "set it to 0, or federation.labels_at='clients'"
        raise UsageError("needs labels at clients", key=key, value=size, allowed=allowed)
    if 0 < most < size:
        allowed = f"use 1 to {most}, and 0 for all"
        raise UsageError(f"a round has {most} clients", key=key, value=size, allowed=allowed)


def _check_together(config: ConfigDict) -> None:
    """Check combinations of keys."""
    federation = config.federation
    num_clients = federation.num_clients
    if num_clients == 0 and federation.partition != "natural":
        raise UsageError(
            f"needs partition='natural', not {federation.partition!r}",
            key="config.federation.num_clients",
            value=0,
            allowed="use integers from 1 on",
        )
    chosen = methods.chosen(config)
    nothing_to_choose = all(len(settings_to_try(config, name)) == 1 for name in chosen)
    if config.selection.settings == "cross_validated" and nothing_to_choose:
        raise UsageError(
            f"selection.candidates has no values for {', '.join(chosen)}",
            key="config.selection.settings",
            value="cross_validated",
            allowed="add some, or use 'given'",
        )
    if config.pseudo_label.safeguard == "network":
        for has, needed in (
            (config.xclp.confidence == "calibrated", "xclp.confidence='calibrated'"),
            (config.dataset.validation_fraction > 0, "dataset.validation_fraction above 0"),
        ):
            if not has:
                raise UsageError(
                    key="config.pseudo_label.safeguard", value="network", allowed=f"set {needed}"
                )
    if config.algorithm in config.baselines:
        raise UsageError(
            f"{config.algorithm!r} is the algorithm already",
            key="config.baselines",
            value=config.baselines,
        )
    if federation.num_labeled and federation.labeled_per_class:
        raise UsageError(
            f"does not go with labeled_per_class={federation.labeled_per_class}",
            key="config.federation.num_labeled",
            value=federation.num_labeled,
            allowed="use 0",
        )
    _check_last_round(config)
    check_mask_partners(config, num_clients)
    check_labels_at(config)
    check_public(config)
    check_views(config)
    check_learner(config)
    check_presence(config, num_clients or sys.maxsize)
    if num_clients:
        for key, value, most in (
            ("cohort_size", config.cohort_size, num_clients),
            ("federation.num_labeled_clients", federation.num_labeled_clients, num_clients),
            ("federation.left_out_client", federation.left_out_client, num_clients - 1),
        ):
            if value > most:
                wrong = f"at most {most} with federation.num_clients={num_clients}"
                raise UsageError(wrong, key=f"config.{key}", value=value)


def _check_last_round(config: ConfigDict) -> None:
    """Check that the rounds of an audit and the round in which teachers vote exist."""
    if max(config.audit.rounds, default=0) > config.rounds:
        raise UsageError(
            key="config.audit.rounds",
            value=config.audit.rounds,
            allowed=f"use rounds from 1 to rounds={config.rounds}",
        )
    for name in methods.chosen(config):
        last = methods.all_keywords(config, name).get("teacher_rounds", 0)
        if last > config.rounds:
            wrong = f"at most rounds={config.rounds}, or nobody votes and there is no student"
            raise UsageError(wrong, key=f"config.{name}.teacher_rounds", value=last)
