"""Check of a whole config: known keys, allowed values, and combinations of keys.

Values of shared sections, and pairs within one, are checked as `jaxfed.config.sections` makes their objects.
A method's section has the keywords of its factory in `jaxfed.algorithms`, which checks their values.
"""

from __future__ import annotations

from typing import Annotated, Any

from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import clock, learner_section, methods
from jaxfed.config.build.assembly import settings_to_try
from jaxfed.config.build.views import check_views
from jaxfed.config.checks.method_check import check_method
from jaxfed.config.client_numbers import check_number_of_clients
from jaxfed.config.keys import flatten
from jaxfed.config.learner_section import check_learner
from jaxfed.config.open_sections import CANDIDATES, check_candidates, check_plugin, plugged_in
from jaxfed.config.overrides import known_keys, setting_of, unknown_key
from jaxfed.config.sections import SECTIONS, TrainingSection, section_of, shared_settings
from jaxfed.config.server_labels import check_labels_at
from jaxfed.errors import UsageError, section
from jaxfed.federation.method import method_settings
from jaxfed.models import options_of
from jaxfed.settings import OneOf, advice, check_each, check_value, settings_of
from jaxfed.training.local.augmentation import compose

_SECTIONS = (
    *filter(None, SECTIONS),
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
    section_of(config, "model")  # its name determines its keys
    variants = methods.variants(config)
    names = [*ALGORITHMS, *variants]
    for name in variants:
        _check_variant(name, config[name].algorithm)
    plugins = plugged_in()
    for key, value in flat.items():
        # The sections of networks and methods are checked by their factories.
        if not key.startswith(CANDIDATES) and key.partition(".")[0] not in (
            *names,
            *plugins,
        ):
            if setting_of(config, key) is None:
                raise unknown_key(key, known_keys(config))
            owner, _, leaf = key.rpartition(".")
            if owner.startswith("learner."):
                known = learner_section.settings(owner.removeprefix("learner."))
                check_each(known, {leaf: value}, f"config.{owner}")
    for name in SECTIONS:
        section_of(config, name)
    for key in ("algorithm", "baselines"):
        hint: Any = Annotated[str, OneOf(names)]
        hint = tuple[hint, ...] if key == "baselines" else hint
        check_value(f"config.{key}", config[key], hint)
    for name, factory in plugins.items():
        check_plugin(name, factory, methods.section_of(config, name))
    for name in names:  # also those outside the run: a sweep may use them
        own = methods.section_of(config, name)
        check_each(method_settings(methods.factory_of(config, name)), own, f"config.{name}")
        _check_own_training(config, name)
    for key in flat:
        if key.startswith(CANDIDATES):
            check_candidates(config, key, flat[key])
    for key, option in options_of(config.model.name).items():
        if key in config.model:
            check_value(f"config.model.{key}", config.model[key], option.hint)
    _check_together(config)
    for name in methods.chosen(config):
        check_method(config, name)
        _check_training_cohort(config, name)
    if config.federation.num_clients:
        check_number_of_clients(config, config.federation.num_clients)
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
    for key, one in shared_settings().items():
        if key not in flat:
            raise UsageError("missing", key=f"config.{key}", allowed=advice(one.hint))


def _check_variant(name: str, algorithm: Any) -> None:
    """Check a variant: the name of its section, and the algorithm that it names."""
    if name in _SECTIONS or not name.isidentifier():
        raise UsageError(
            f"{name!r} cannot name a method",
            key=f"config.{name}.algorithm",
            allowed=f"use an identifier other than the sections {', '.join(_SECTIONS)}",
        )
    check_value(f"config.{name}.algorithm", algorithm, Annotated[str, OneOf(ALGORITHMS)])


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
    known = settings_of(TrainingSection)
    for key, value in own.items():
        if key not in known:
            raise unknown_key(f"{name}.training.{key}", [f"{name}.training.{k}" for k in known])
        check_value(f"config.{name}.training.{key}", value, known[key].hint)
        if known[key].hint is known["augmentation"].hint:
            with section(f"config.{name}.training", {"augmentation": key}):
                compose(value)


def _check_training_cohort(config: ConfigDict, name: str) -> None:
    """Check that labels are at clients if fewer clients train than label."""
    size = methods.with_own_training(config, name).training.training_cohort_size
    if not size or not methods.uses_training(config, name):
        return
    key = f"config.{methods.training_key(config, name, 'training_cohort_size')}"
    if config.federation.labels_at == "server":
        allowed = "set it to 0, or federation.labels_at='clients'"
        raise UsageError("needs labels at clients", key=key, value=size, allowed=allowed)


def _check_together(config: ConfigDict) -> None:
    """Check combinations of keys."""
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
    _check_last_round(config)
    check_labels_at(config)
    check_views(config)
    check_learner(config)


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
