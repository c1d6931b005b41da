"""Check of a whole config before anything is built: keys, values, and conditions between them.

Where a condition stands:

    on one value or two of a section                in the section's class (`jaxfed.config.sections`)
    on one value of a method, learner or network    in its type hint (`jaxfed.config.overrides.settings_in`)
    on two sections, or a section and a method      here; the method by its declaration
    on the number of clients                        in `jaxfed.config.cohorts`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import methods
from jaxfed.config.build.assembly import label_settings, settings_to_try
from jaxfed.config.build.networks import saved_models
from jaxfed.config.build.views import check_views
from jaxfed.config.cohorts import check_number_of_clients
from jaxfed.config.keys import flatten, refused
from jaxfed.config.overrides import known_keys, setting_of, settings_in, unknown_key
from jaxfed.config.sections import OTHER_PUBLIC, SECTIONS, section_of, shared_settings
from jaxfed.errors import UsageError, section
from jaxfed.federation.algorithm import check_rounds
from jaxfed.federation.method import Method, checked
from jaxfed.learners import LEARNERS
from jaxfed.settings import OneOf, advice, check_complete, check_value
from jaxfed.training.pseudo_labels.label_sources import BY_OWN_LABELS, check_source
from jaxfed.training.pseudo_labels.propagated_labels import is_one_program

_ANY = {"num_classes": 2}  # keywords that the data set determines; no check depends on their values
# In one run, all labels are either at clients or at the server. Most methods can learn from both.
_ONE_TABLE = (
    "methods for both stand in one table with 'server' "
    "(ml_collections_configs/labels_at_server.py has them), others in two runs that "
    "`launch.report RUN RUN` puts on one page"
)


def check(config: ConfigDict) -> None:
    """Check every key and value of a config before any data is read or any file is written.

    Raises:
        UsageError: names the first wrong key, or two that contradict each other.
    """
    _check_keys(config)
    for name in SECTIONS:
        section_of(config, name)
    known: Any = Annotated[str, OneOf((*ALGORITHMS, *methods.variants(config)))]
    check_value("config.algorithm", config.algorithm, known)
    check_value("config.baselines", config.baselines, tuple[known, ...])
    _check_together(config)
    for name in methods.chosen(config):
        _check_method(config, name)
    if config.federation.num_clients:
        check_number_of_clients(config, config.federation.num_clients)


def _check_keys(config: ConfigDict) -> None:
    """Check that all keys are known and allowed, and that the shared ones are there."""
    required = (*filter(None, SECTIONS), "xclp", "per_client_lp")
    flat = dict(flatten(config.to_dict()))
    for name in (*required, "selection.candidates"):
        *parents, leaf = name.split(".")
        owner = config.get(parents[0], {}) if parents else config
        if not isinstance(owner.get(leaf), ConfigDict):
            allowed = "jaxfed.config.base.get_config() has it"
            raise UsageError("the section is missing", key=f"config.{name}", allowed=allowed)
    shared = shared_settings()
    for key, one in shared.items():
        if key not in flat:
            raise UsageError("missing", key=f"config.{key}", allowed=advice(one.hint))
    for name in methods.variants(config):
        key = f"config.{name}.algorithm"
        if name in required or not name.isidentifier():
            allowed = f"use an identifier other than the sections {', '.join(required)}"
            raise UsageError(f"{name!r} cannot name a method", key=key, allowed=allowed)
        check_value(key, config[name].algorithm, Annotated[str, OneOf(ALGORITHMS)])
    for name in (*ALGORITHMS, *methods.variants(config)):
        if "training" not in methods.own_section(config, name):
            continue
        own = config[name]["training"]
        if not isinstance(own, Mapping | ConfigDict):
            allowed = "use a section of training's keys"
            raise UsageError(key=f"config.{name}.training", value=own, allowed=allowed)
        if own and not methods.needs(config, name).trains:
            wrong = f"{name!r} takes no training"
            raise UsageError(wrong, key=f"config.{name}.training", allowed="leave it out")
    for name in config.selection.candidates:
        if name in ALGORITHMS and name not in config:
            wrong = f"the section is missing; config.selection.candidates.{name} has values for it"
            raise UsageError(wrong, key=f"config.{name}")
    section_of(config, "model")  # its network decides which keys there are
    # First the sections that those of baselines refer to: the error should name their keys.
    first = ("xclp.", f"{config.algorithm}.")
    own = {key: value for key, value in flat.items() if key not in shared}  # sections check theirs
    for key, value in sorted(own.items(), key=lambda item: not item[0].startswith(first)):
        setting = setting_of(config, key)
        if setting is not None:
            check_value(f"config.{key}", value, setting.hint)
        elif value != {}:  # an empty section
            raise unknown_key(key, known_keys(config))


def _check_together(config: ConfigDict) -> None:
    """Check conditions between shared sections."""
    chosen = methods.chosen(config)
    nothing_to_choose = all(len(settings_to_try(config, name)) == 1 for name in chosen)
    if config.selection.settings == "cross_validated" and nothing_to_choose:
        wrong = f"selection.candidates has no values for {', '.join(chosen)}"
        raise refused(config, "selection.settings", wrong, "add some, or use 'given'")
    check_views(config)


def _check_method(config: ConfigDict, name: str) -> None:
    """Check a method of the run: its keywords together, its own training, its labels, its learners."""
    needed, own = methods.needs(config, name), methods.keywords(config, name)
    check_complete(settings_in(config, name), own, f"config.{name}", f"{name!r} needs it")
    _check_own_training(config, name)
    _check_place_of_labels(config, name, needed)
    if "public" in needed.takes and not section_of(config, "federation").has_public:
        wrong = f"{name!r} has clients learn labels of public examples"
        raise refused(config, "federation.public_size", wrong, f"use 1 or more, or {OTHER_PUBLIC}")
    last = methods.all_keywords(config, name).get("teacher_rounds", 0)
    if last > config.rounds:
        wrong = f"at most rounds={config.rounds}, or nobody votes and there is no student"
        raise UsageError(wrong, key=f"config.{name}.teacher_rounds", value=last)
    factory = methods.factory_of(config, name)
    tried = [{}] if needed.trains else settings_to_try(config, name)
    for settings in tried if config.selection.settings != "given" else tried[:1]:
        with methods.naming(config, name, settings):
            checked(factory, {**_ANY, **own, **settings})
    if needed.has_learners:
        _check_learners(config, name, needed)
    elif needed.trains:
        _check_labels(config, name, needed)


def _check_own_training(config: ConfigDict, name: str) -> None:
    """Check the section `training` as a method sees it, with the values of `METHOD.training`."""
    if not methods.uses_training(config, name):
        return
    seen = methods.with_own_training(config, name)
    for key in methods.unread_keys(config, name):
        if (written := methods.training_key(config, name, key)) != f"training.{key}":
            wrong = f"{name!r} does not read it"
            raise UsageError(wrong, key=f"config.{written}", allowed="leave it out")
    with methods.naming(config, name):
        section_of(seen, "training")
        saved_models(seen)
    if seen.training.training_cohort_size and config.federation.labels_at == "server":
        key = methods.training_key(config, name, "training_cohort_size")
        allowed = "set it to 0, or federation.labels_at='clients'"
        raise refused(config, key, "needs labels at clients", allowed)


def _check_place_of_labels(config: ConfigDict, name: str, needed: Method) -> None:
    """Check that a method can learn from labels of their holder: the clients, or the server."""
    place, wrong, allowed = config.federation.labels_at, "", "use 'clients'"
    if (needed.trains or needed.one_shot) and place not in needed.labels_at:
        (other,) = needed.labels_at
        wrong = f"{name!r} needs labels at the {other}"
        allowed = f"use {other!r}; {_ONE_TABLE}"
    elif place == "server" and needed.pseudo_label in BY_OWN_LABELS:
        wrong = f"{name!r} labels by what each client makes of its own labels"
    elif place == "server" and needed.pseudo_label == "xclp":
        parameters, _ = label_settings(config, **_ANY)
        if not is_one_program(parameters) or parameters.compared_clients:
            wrong = (
                "the server then takes part in XCLP, whose noise, protocols and choices are for "
                "clients"
            )
            allowed = (
                "set no noise, hamming='plaintext', row_sums='plaintext', influence='labels', "
                "compared_clients=0, select=(), client_prior=0 and confidence='entropy' in "
                "config.xclp"
            )
    if wrong:
        raise refused(config, "federation.labels_at", wrong, allowed)


def _check_labels(config: ConfigDict, name: str, needed: Method) -> None:
    """Check that a method of one model has the labels, the views and the rounds that it needs."""
    training: Any = methods.with_own_training(config, name).training
    if needed.two_views and not training.strong_augmentation:
        key = methods.training_key(config, name, "strong_augmentation")
        allowed = "name augmentations, such as ('cutout:8',)"
        raise refused(config, key, f"{name!r} compares two views of an example", allowed)
    label_settings(config, **_ANY)
    if isinstance(needed.pseudo_label, str):
        with methods.naming(config, name):
            check_source(needed.pseudo_label)
    if needed.pseudo_label != "none":
        key = methods.training_key(config, name, "labeled_only_rounds")
        check_rounds(training.labeled_only_rounds, config.rounds, "config.rounds", f"config.{key}")


def _check_learners(config: ConfigDict, name: str, needed: Method) -> None:
    """Check that the learners are networks if the method needs that, have all keywords and accept them."""
    learners = methods.learner_names(config)
    if "network" in needed.takes and learners != ("network",):
        wrong = f"{name!r} shares probabilities or scores; only networks can learn from them"
        raise refused(config, "learner.name", wrong, "use 'network'")
    for learner in learners:
        owner, given = f"learner.{learner}", config.learner.get(learner, {})
        known, needed_by = settings_in(config, owner), f"learner.name={learner!r} needs it"
        check_complete(known, given, f"config.{owner}", needed_by)
        if learner not in LEARNERS.from_outside() and not methods.learner_takes(
            learner, "training"
        ):
            with section(f"config.{owner}", given):
                LEARNERS[learner](**_ANY, **given)
