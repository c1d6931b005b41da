"""Check of one method's settings by what its factory declares. Nothing is built."""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict

from jaxfed.config import learner_section, methods
from jaxfed.config.build.assembly import label_settings, naming_settings, settings_to_try
from jaxfed.config.build.networks import (
    naming_initial_model,
    repeats_that_differ,
    saved_model,
    starts_from_state,
)
from jaxfed.config.sections import OTHER_PUBLIC, section_of
from jaxfed.config.server_labels import check_place_of_labels
from jaxfed.errors import UsageError, suggestion
from jaxfed.federation.algorithm import check_rounds
from jaxfed.federation.method import checked, declared, method_settings
from jaxfed.settings import REQUIRED
from jaxfed.training.pseudo_labels.label_sources import check_source

_ANY = {"num_classes": 2}  # no rule and no condition depends on it


def check_method(config: ConfigDict, name: str) -> None:
    """Check a method of the run: its keywords together, its own training, its labels, its learners.

    Raises:
        UsageError: an unknown keyword, a value that is not allowed, or values that do not go together.
    """
    factory = methods.factory_of(config, name)
    _check_known(config, name)
    if methods.is_public(config, name) and not section_of(config, "federation").has_public:
        raise UsageError(
            f"{name!r} has clients learn labels of public examples",
            key="config.federation.public_size",
            value=0,
            allowed=f"use 1 or more, or {OTHER_PUBLIC}",
        )
    if methods.uses_training(config, name):
        seen = methods.with_own_training(config, name)
        for key in methods.unread_keys(config, name):
            if (written := methods.training_key(config, name, key)) != f"training.{key}":
                wrong = f"{name!r} does not read it"
                raise UsageError(wrong, key=f"config.{written}", allowed="leave it out")
        with methods.naming_own_training(config, name):
            section_of(seen, "training")
            if starts_from_state(seen):
                with naming_initial_model(seen):
                    for repeat in repeats_that_differ(seen):
                        saved_model(seen, repeat)
    own = methods.keywords(config, name)
    if not methods.trains(config, name):
        tried = settings_to_try(config, name)
        for settings in tried if config.selection.settings != "given" else tried[:1]:
            with naming_settings(config, name, settings):
                checked(factory, {**_ANY, **own, **settings})
        return
    with methods.naming_keywords(config, name):
        checked(factory, {**_ANY, **own})
    if methods.has_learners(config, name):
        learner_section.check_learners(config, name, declared(factory).takes)
    else:
        _check_labels(config, name)


def _check_known(config: ConfigDict, name: str) -> None:
    """Check that a method's section has keywords of its factory, and all that have no default."""
    known = method_settings(methods.factory_of(config, name))
    given = methods.keywords(config, name)
    for key in given:
        if key not in known:
            raise UsageError(f"unknown key{suggestion(key, known)}", key=f"config.{name}.{key}")
    for key, one in known.items():
        if one.default is REQUIRED and key not in given:
            raise UsageError("missing", key=f"config.{name}.{key}", allowed=f"{name!r} needs it")


def _check_labels(config: ConfigDict, name: str) -> None:
    """Check where a method's labels come from, and that it has the views and the rounds that it needs."""
    needed = methods.needs(config, name)
    training: Any = methods.with_own_training(config, name).training
    if needed.two_views and not training.strong_augmentation:
        raise UsageError(
            f"{name!r} compares two views of an example",
            key=f"config.{methods.training_key(config, name, 'strong_augmentation')}",
            value=(),
            allowed="name augmentations, such as ('cutout:8',)",
        )
    parameters, _ = label_settings(config, **_ANY)
    check_place_of_labels(config, name, needed, parameters)
    if isinstance(needed.pseudo_label, str):
        with methods.naming_keywords(config, name):
            check_source(needed.pseudo_label)
    if needed.pseudo_label != "none":
        key = methods.training_key(config, name, "labeled_only_rounds")
        check_rounds(training.labeled_only_rounds, config.rounds, "config.rounds", f"config.{key}")
