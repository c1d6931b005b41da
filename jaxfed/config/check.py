"""A config that is ready to run: its keys, values, conditions between them, and what reads each key.

    config = opened("fedavg_xclp.py", ["training.epochs=2"])
    check_number_of_clients(config, 20)     # once the data say how many there are
    seen_by(config, "fedprox")              # equal for two configs with equal results of the method
    reasons(config)["fedprox.mu"]           # why nothing reads it; "" if it is read

Conditions on values of one section stand in its class (`jaxfed.config.sections`), those on one value of a
method, learner or network in its type hint; here are those on two sections, or on a section and a method.

A key is in effect in a run if a method of the run reads it and the conditions in its hint hold
(`jaxfed.settings.when`). Keys for execution, deployment and monitoring are always in effect (`_OF_THE_RUN`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import file, methods
from jaxfed.config.assembly import AUGMENTATIONS, saved_models, view_rows
from jaxfed.config.keys import flatten, parents, refused
from jaxfed.config.overrides import (
    CANDIDATES,
    known_keys,
    setting_of,
    settings_in,
    unknown_key,
    with_overrides,
)
from jaxfed.config.sections import SECTIONS, section_of, shared_settings
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import check_rounds
from jaxfed.federation.method import Method, checked, labels_elsewhere
from jaxfed.learners import LEARNERS
from jaxfed.secure.session.channel import Departure, check_departures
from jaxfed.settings import OneOf, check_complete, check_value
from jaxfed.training.pseudo_labels.propagated_labels import is_one_program
from jaxfed.training.specification import (
    BY_OWN_LABELS,
    LABELING_NOTHING,
    check_source,
    settings_section,
    source_names,
)

_ANY = {"num_classes": 2}  # keywords that the data set determines; no check depends on their values
# Keys and sections for execution, monitoring and display of a run with any method.
_OF_THE_RUN = (
    *("algorithm", "baselines", "paper_table", "dataset.root", "execution", "deployment"),
    *("evaluate_every", "evaluate_test", "checkpoint_every"),
)
_OF_NO_METHOD = ("algorithm", "baselines", "paper_table", "deployment", "audit")


def check(config: ConfigDict) -> None:
    """Check every key and value of a config before any data is read or any file is written."""
    _check_keys(config)
    known: Any = Annotated[str, OneOf((*ALGORITHMS, *methods.variants(config)))]
    check_value("config.algorithm", config.algorithm, known)
    check_value("config.baselines", config.baselines, tuple[known, ...])
    if config.preprocessing.views:
        _check_views(config)
    for name in methods.chosen(config):
        _check_method(config, name)
    if config.federation.num_clients:
        check_number_of_clients(config, config.federation.num_clients)


def _check_keys(config: ConfigDict) -> None:
    for name in methods.variants(config):
        key = f"config.{name}.algorithm"
        check_value(key, config[name].algorithm, Annotated[str, OneOf(ALGORITHMS)])
    for name in SECTIONS:
        section_of(config, name)
    # First the sections that those of baselines refer to: the error should name their keys.
    first, shared = ("xclp.", f"{config.algorithm}."), shared_settings()
    entries = [each for each in flatten(config.to_dict()) if each[0] not in shared]
    for key, value in sorted(entries, key=lambda item: not item[0].startswith(first)):
        setting = setting_of(config, key)
        if setting is not None:
            check_value(f"config.{key}", value, setting.hint)
        elif value != {}:  # an empty section
            raise unknown_key(key, known_keys(config))


def _check_views(config: ConfigDict) -> None:
    if not view_rows(config):
        allowed = "set training.augmentation, or use 0"
        raise refused(config, "preprocessing.views", "no augmentation makes views", allowed)
    for name in methods.chosen(config):
        needed, overridden = methods.needs(config, name), methods.own_training(config, name)
        wrong = f"{name!r} does not train one network on the clients' examples"
        if needed.trains and not needed.has_learners:
            wrong = "augmentations are the same for all methods" * bool(
                {*AUGMENTATIONS} & {*overridden}
            )
        if wrong:
            raise refused(config, "preprocessing.views", wrong, "use 0, or leave the method out")


def _check_method(config: ConfigDict, name: str) -> None:
    needed, values = methods.needs(config, name), methods.keywords(config, name)
    check_complete(settings_in(config, name), values, f"config.{name}", f"{name!r} needs it")
    if methods.training_read(config, name):
        seen = methods.with_own_training(config, name)
        with methods.naming(config, name):
            section_of(seen, "training")
            saved_models(seen)
    _check_label_holder(config, name, needed)
    if "public" in needed.takes and not config.federation.public_size:
        wrong = f"{name!r} has clients learn labels of public examples"
        raise refused(config, "federation.public_size", wrong, "use 1 or more")
    last = methods.all_keywords(config, name).get("teacher_rounds", 0)
    if last > config.rounds:
        wrong = f"at most rounds={config.rounds}, or nobody votes and there is no student"
        raise UsageError(wrong, key=f"config.{name}.teacher_rounds", value=last)
    factory = methods.factory_of(config, name)
    tried = [{}] if needed.trains else methods.settings_to_try(config, name)
    for settings in tried if config.selection.settings != "given" else tried[:1]:
        with methods.naming(config, name, settings):
            checked(factory, {**_ANY, **values, **settings})
    if needed.has_learners:
        _check_learners(config, name, needed)
    elif needed.trains:
        _check_labels(config, name, needed)


def _check_label_holder(config: ConfigDict, name: str, needed: Method) -> None:
    holder, wrong, allowed = config.federation.labels_at, "", "use 'clients'"
    if (needed.trains or needed.one_shot) and holder not in needed.labels_at:
        key = "config.federation.labels_at"
        raise labels_elsewhere(needed.labels_at[0], repr(name), key=key, value=holder)
    if holder == "server" and needed.pseudo_label in BY_OWN_LABELS:
        wrong = f"{name!r} labels by what each client makes of its own labels"
    elif holder == "server" and needed.pseudo_label in ("xclp", "xclp_head"):
        parameters, _ = methods.label_settings(config, **_ANY)
        has_head = needed.pseudo_label == "xclp_head"
        if has_head or not is_one_program(parameters) or parameters.compared_clients:
            wrong = "XCLP's noise, protocols, choices and head are for clients, not for the server"
            allowed = "use 'clients', or leave them out in config.xclp"
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
        owner, values = f"learner.{learner}", config.learner.get(learner, {})
        known, needed_by = settings_in(config, owner), f"learner.name={learner!r} needs it"
        check_complete(known, values, f"config.{owner}", needed_by)


def check_number_of_clients(config: ConfigDict, num_clients: int) -> None:
    """Check that this number of clients suffices for cohorts, sums, mask partners and departures."""
    size = config.cohort_size or num_clients
    if size > num_clients:
        raise refused(config, "cohort_size", f"there are {num_clients} clients")
    # Also if no method of the run is XCLP: methods that train may take its labels.
    for name in dict.fromkeys((*methods.chosen(config), "xclp")):
        training = methods.with_own_training(config, name).training
        values = {"sums": training.sums, **methods.all_keywords(config, name)}
        in_sums = {training.sums, values["sums"], values.get("prototype_sums", "none")}
        least = 1 + (in_sums != {"plaintext", "none"})
        if least > size:
            key = "cohort_size" if config.cohort_size else "federation.num_clients"
            raise refused(config, key, f"{name!r} needs {least} clients a round or more")
        if partners := values.get("mask_partners", 0):
            from jaxfed.secure.session.neighborhoods import check_partners  # for sums under masks

            with methods.naming(config, name):
                check_partners(size, partners)
        presence_of = {methods.training_key(config, name, "presence"): training.presence}
        for key, entries in (
            presence_of | {f"{name}.presence": values.get("presence", ())}
        ).items():
            clients = [entry.partition("@")[0] for entry in entries]
            leaving = [Departure(int(one), "") for one in clients if one.isdecimal()]
            check_departures(leaving, num_clients, f"config.{key}")


def opened(
    config: str | ConfigDict,
    overrides: Sequence[str] = (),
    *,
    command: str = "",
    in_sweep: bool = False,
) -> ConfigDict:
    """Read a config, apply overrides `KEY=VALUE` and check the result, before any data is read.

    `config` is `FILE.py[:VARIANT]`, or a config with references between keys. `command` is the one that runs:
    launch.audit alone reads the section `audit`. In a sweep, which has checked that an override has an effect
    at some point, it may have none.
    """
    base = file.read(config) if isinstance(config, str) else config
    settings = with_overrides(base, overrides)
    check(settings)
    why_unread = {} if in_sweep else effects(settings, base, overrides, command)
    for line in filter(None, why_unread.values()):
        raise UsageError(line)
    return settings


def effects(
    config: ConfigDict, base: ConfigDict, overrides: Sequence[str], command: str = ""
) -> dict[str, str]:
    """Return the key of each override -> "", or an error if it has no effect.

    `config` is `base` with the overrides, checked. An override has an effect if a key that it changes is in
    effect: its own, or one that refers to it.
    """
    values, why, why_unread = dict(flatten(config.to_dict())), reasons(config, command), {}
    for text in overrides:
        key = text.partition("=")[0]
        why_unread[key] = f"config.{text}: {why[key]}" if why.get(key) else ""
        # Unless a key that refers to it is read, or another override depends on it.
        if why_unread[key]:
            try:
                left = with_overrides(base, [other for other in overrides if other is not text])
            except UsageError:
                left = ConfigDict()
            before = dict(flatten(left.to_dict()))
            changed = [one for one in values if before.get(one) != values[one]]
            if not changed:
                del why_unread[key]
            elif not all(why[one] for one in changed):
                why_unread[key] = ""
    return why_unread


def reasons(config: ConfigDict, command: str = "") -> dict[str, str]:
    """Return every key of a checked config -> why it has no effect, and what to write; "" if it has one."""
    read = {name: _read_by(config, name) for name in methods.chosen(config)}
    of_the_run = {*_OF_THE_RUN, *(["audit"] if command == "launch.audit" else [])}

    def reason(key: str) -> str:
        if not of_the_run.isdisjoint((key, key.partition(".")[0])):
            return ""
        unmet = [_unmet(config, keys, key) for keys in read.values() if key in keys]
        if unmet:
            return "" if "" in unmet else unmet[0]
        return f"no method of this run reads it ({', '.join(read)}); leave it out"

    return {key: reason(key) for key, _ in flatten(config.to_dict())}


def seen_by(config: ConfigDict, name: str) -> dict[str, Any]:
    """Return the part of a checked config that can change a method's results: dotted key -> value.

    Keys are common to all methods: `fedprox.training.epochs` is `training.epochs`.
    """
    read = _read_by(config, name)
    return {common: value for key, (common, value) in read.items() if not _unmet(config, read, key)}


def keys_seen_by(config: ConfigDict, name: str) -> set[str]:
    """Return the keys that can change a method's results, as the user writes them."""
    read = _read_by(config, name)
    return {key for key in read if not _unmet(config, read, key)}


def _read_by(config: ConfigDict, name: str) -> dict[str, tuple[str, Any]]:
    """Return key as the user writes it -> the key common to all methods, and its value."""
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
    if needed.one_shot and config.cohort_size in (0, config.federation.num_clients):
        unread |= {"rounds"}  # there is one
    keys_read = {}
    for key, value in flatten(seen.to_dict()):
        if unread.isdisjoint((key, *parents(key))):
            section, _, leaf = key.partition(".")
            is_own = section == "training"
            keys_read[methods.training_key(config, name, leaf) if is_own else key] = key, value
    for word, value in methods.keywords(config, name).items():
        owner = name if word in methods.own_section(config, name) else algorithm
        keys_read[f"{owner}.{word}"] = f"{algorithm}.{word}", value
    if name != algorithm:
        keys_read[f"{name}.algorithm"] = "method", algorithm
    if not needed.trains and len(methods.settings_to_try(config, name)) > 1:
        listed = name if name in config.selection.candidates else algorithm
        for key, value in flatten(config.selection.to_dict(), "selection."):
            if not key.startswith(CANDIDATES) or key.startswith(f"{CANDIDATES}{listed}."):
                keys_read[key] = key, value
    return keys_read


def _unmet(config: ConfigDict, read: Mapping[str, tuple[str, Any]], key: str) -> str:
    """Return which condition in the hint of a read key does not hold, and what to write; "" if all do."""
    values, (common, _) = dict(read.values()), read[key]
    common = "selection.measure" if common.startswith(CANDIDATES) else common
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
