"""Check of a whole config before anything is built: keys, values, and conditions between them.

    check(config)
    check_number_of_clients(config, 20)     # once the data say how many there are

Conditions on values of one section stand in its class (`jaxfed.config.sections`), those on one value of a
method, learner or network in its type hint; here are those on two sections, or on a section and a method.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import methods
from jaxfed.config.assembly import AUGMENTATIONS, view_rows
from jaxfed.config.keys import flatten, parents, refused
from jaxfed.config.networks import saved_models
from jaxfed.config.overrides import known_keys, setting_of, settings_in, unknown_key
from jaxfed.config.sections import SECTIONS, section_of, shared_settings
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import check_rounds
from jaxfed.federation.departures import Departure, check_departures
from jaxfed.federation.method import Method, checked, labels_elsewhere
from jaxfed.federation.sampling import cohort_sizes, num_groups
from jaxfed.settings import OneOf, check_complete, check_value
from jaxfed.training.pseudo_labels.label_sources import BY_OWN_LABELS, check_source
from jaxfed.training.pseudo_labels.propagated_labels import is_one_program

_ANY = {"num_classes": 2}  # keywords that the data set determines; no check depends on their values


def check(config: ConfigDict) -> None:
    """Check every key and value of a config before any data is read or any file is written.

    Raises:
        UsageError: names the first wrong key, or two that contradict each other.
    """
    _check_keys(config)
    known: Any = Annotated[str, OneOf((*ALGORITHMS, *methods.variants(config)))]
    check_value("config.algorithm", config.algorithm, known)
    check_value("config.baselines", config.baselines, tuple[known, ...])
    chosen = methods.chosen(config)
    nothing_to_choose = all(len(methods.settings_to_try(config, name)) == 1 for name in chosen)
    if config.selection.settings == "cross_validated" and nothing_to_choose:
        wrong = f"selection.candidates has no values for {', '.join(chosen)}"
        raise refused(config, "selection.settings", wrong, "add some, or use 'given'")
    if config.preprocessing.views:
        _check_views(config)
    for name in chosen:
        _check_method(config, name)
    if config.federation.num_clients:
        check_number_of_clients(config, config.federation.num_clients)


def _check_keys(config: ConfigDict) -> None:
    flat, shared = dict(flatten(config.to_dict())), shared_settings()
    there = {*flat, *(owner for key in flat for owner in parents(key))}
    for key in (*shared, "xclp", "per_client_lp", "selection.candidates"):
        if key not in there:
            allowed = "jaxfed.config.base.get_config() has it"
            raise UsageError("missing", key=f"config.{key}", allowed=allowed)
    for name in methods.variants(config):
        key = f"config.{name}.algorithm"
        if not name.isidentifier():
            raise UsageError(f"{name!r} cannot name a method", key=key, allowed="use an identifier")
        check_value(key, config[name].algorithm, Annotated[str, OneOf(ALGORITHMS)])
    for name in SECTIONS:
        section_of(config, name)
    # First the sections that those of baselines refer to: the error should name their keys.
    first = ("xclp.", f"{config.algorithm}.")
    own = {key: value for key, value in flat.items() if key not in shared}
    for key, value in sorted(own.items(), key=lambda item: not item[0].startswith(first)):
        setting = setting_of(config, key)
        if setting is not None:
            check_value(f"config.{key}", value, setting.hint)
        elif value != {}:  # an empty section
            raise unknown_key(key, known_keys(config))


def _check_views(config: ConfigDict) -> None:
    key = "preprocessing.views"
    if not view_rows(config):
        allowed = "set training.augmentation, or use 0"
        raise refused(config, key, "no augmentation makes views", allowed)
    for name in methods.chosen(config):
        needed = methods.needs(config, name)
        if not needed.trains or needed.has_learners:
            wrong = f"{name!r} does not train one network on the clients' examples"
            raise refused(config, key, wrong, "use 0, or leave the method out")
        for own, (owner, value) in methods.own_training(config, name).items():
            if own in AUGMENTATIONS and value != config.training[own]:
                key, wrong = f"{owner}.training.{own}", "views are computed once, for all methods"
                allowed = f"set training.{own}, or preprocessing.views to 0"
                raise refused(config, key, wrong, allowed)


def _check_method(config: ConfigDict, name: str) -> None:
    needed, own = methods.needs(config, name), methods.keywords(config, name)
    check_complete(settings_in(config, name), own, f"config.{name}", f"{name!r} needs it")
    _check_own_training(config, name)
    _check_place_of_labels(config, name, needed)
    if "public" in needed.takes and not section_of(config, "federation").has_public:
        wrong = f"{name!r} has clients learn labels of public examples"
        raise refused(
            config, "federation.public_size", wrong, "use 1 or more, or a public_fraction above 0"
        )
    last = methods.all_keywords(config, name).get("teacher_rounds", 0)
    if last > config.rounds:
        wrong = f"at most rounds={config.rounds}, or nobody votes and there is no student"
        raise UsageError(wrong, key=f"config.{name}.teacher_rounds", value=last)
    factory = methods.factory_of(config, name)
    tried = [{}] if needed.trains else methods.settings_to_try(config, name)
    for settings in tried if config.selection.settings != "given" else tried[:1]:
        with methods.naming(config, name, settings):
            checked(factory, {**_ANY, **own, **settings})
    if needed.has_learners:
        _check_learners(config, name, needed)
    elif needed.trains:
        _check_labels(config, name, needed)


def _check_own_training(config: ConfigDict, name: str) -> None:
    read = methods.training_read(config, name)
    for key in methods.own_training(config, name):
        if key not in read:
            owner = f"config.{methods.training_key(config, name, key)}"
            raise UsageError(f"{name!r} does not read it", key=owner, allowed="leave it out")
    if read:
        seen = methods.with_own_training(config, name)
        with methods.naming(config, name):
            section_of(seen, "training")
            saved_models(seen)


def _check_place_of_labels(config: ConfigDict, name: str, needed: Method) -> None:
    place, wrong, allowed = config.federation.labels_at, "", "use 'clients'"
    if (needed.trains or needed.one_shot) and place not in needed.labels_at:
        key = "config.federation.labels_at"
        raise labels_elsewhere(needed.labels_at[0], repr(name), key=key, value=place)
    if place == "server" and needed.pseudo_label in BY_OWN_LABELS:
        wrong = f"{name!r} labels by what each client makes of its own labels"
    elif place == "server" and needed.pseudo_label in ("xclp", "xclp_head"):
        parameters, _ = methods.label_settings(config, **_ANY)
        has_head = needed.pseudo_label == "xclp_head"
        if has_head or not is_one_program(parameters) or parameters.compared_clients:
            wrong = (
                "the server then takes part in XCLP, whose noise, protocols, choices and head are for "
                "clients"
            )
            allowed = (
                "set no noise, hamming='plaintext', row_sums='plaintext', influence='labels', "
                "compared_clients=0, center=False, head='none', select=(), client_prior=0 and "
                "confidence='entropy' in config.xclp"
            )
    if wrong:
        raise refused(config, "federation.labels_at", wrong, allowed)


def _check_labels(config: ConfigDict, name: str, needed: Method) -> None:
    training: Any = methods.with_own_training(config, name).training
    if needed.two_views and not training.strong_augmentation:
        key = methods.training_key(config, name, "strong_augmentation")
        allowed = "name augmentations, such as ('cutout:8',)"
        raise refused(config, key, f"{name!r} compares two views of an example", allowed)
    methods.label_settings(config, **_ANY)
    if isinstance(needed.pseudo_label, str):
        with methods.naming(config, name):
            check_source(needed.pseudo_label)
    if needed.pseudo_label != "none":
        key = methods.training_key(config, name, "labeled_only_rounds")
        check_rounds(training.labeled_only_rounds, config.rounds, "config.rounds", f"config.{key}")


def _check_learners(config: ConfigDict, name: str, needed: Method) -> None:
    learners = methods.learner_names(config)
    if "network" in needed.takes and learners != ("network",):
        wrong = f"{name!r} shares probabilities or scores; only networks can learn from them"
        raise refused(config, "learner.name", wrong, "use 'network'")
    for learner in learners:
        owner, given = f"learner.{learner}", config.learner.get(learner, {})
        known, needed_by = settings_in(config, owner), f"learner.name={learner!r} needs it"
        check_complete(known, given, f"config.{owner}", needed_by)


def check_number_of_clients(config: ConfigDict, num_clients: int) -> None:
    """Check that cohorts of this number of clients suffice for rounds, groups, sums and mask partners.

    Mask partners must suffice for every cohort size that sampling can give: fewer clients sometimes need more
    partners (`jaxfed.secure.session.neighborhoods`).

    Raises:
        UsageError: names the first key that this number contradicts.
    """
    numbers = {"cohort_size": config.cohort_size, "learner.names": len(config.learner.names)}
    for key, number in numbers.items():
        if 0 < config.federation.num_clients < number:
            wrong = f"at most {num_clients} with federation.num_clients={num_clients}"
            raise refused(config, key, wrong)
    groups = num_groups(num_clients, config.cohort_size)
    if config.sampling == "groups" and config.rounds < groups:
        wrong = f"with cohort_size={config.cohort_size}, {num_clients} clients make {groups} groups"
        raise refused(config, "rounds", wrong, f"use integers from {groups} on")
    # Also if no method of the run is XCLP: methods that train may take its labels.
    for name in dict.fromkeys(("xclp", *methods.chosen(config))):
        given = methods.all_keywords(config, name)
        _check_leaving(given.get("presence", ()), num_clients, f"{name}.presence")
        if size := given.get("mask_partners", 0):
            from jaxfed.secure.session.neighborhoods import check_partners  # for sums under masks

            with methods.naming(config, name):
                for number in sorted(cohort_sizes(config, num_clients)):
                    check_partners(number, size)
    for name in methods.chosen(config):
        leaving = methods.with_own_training(config, name).training.presence
        _check_leaving(leaving, num_clients, methods.training_key(config, name, "presence"))
        _check_round(config, name, config.cohort_size or num_clients)


def _check_leaving(entries: Sequence[str], num_clients: int, key: str) -> None:
    clients = [entry.partition("@")[0] for entry in entries]
    leaving = [Departure(int(client), 0.0, "") for client in clients if client.isdecimal()]
    check_departures(leaving, num_clients, f"config.{key}")


def _check_round(config: ConfigDict, name: str, size: int) -> None:
    given = methods.all_keywords(config, name)
    if given.get("num_groups", 1) > size:
        wrong = f"at most the {size} clients of a round (config.cohort_size)"
        raise UsageError(wrong, key=f"config.{name}.num_groups", value=given["num_groups"])
    for key, alone in (("prototype_sums", "none"), ("sums", "plaintext")):
        if given.get(key, alone) != alone and size < 2:
            raise UsageError(
                f"with config.{name}.{key}={given[key]!r} a round has 2 clients or more",
                key="config.cohort_size" if config.cohort_size else "config.federation.num_clients",
                value=size,
            )
    training = methods.with_own_training(config, name).training
    if training.sums != "plaintext" and size < 2:
        key = methods.training_key(config, name, "sums")
        raise refused(config, key, "a round has one client, and the sum would be its update")
    number = training.training_cohort_size
    if methods.uses_training(config, name) and number > size:
        key = methods.training_key(config, name, "training_cohort_size")
        raise refused(config, key, f"a round has {size} clients", f"use 1 to {size}, and 0 for all")
