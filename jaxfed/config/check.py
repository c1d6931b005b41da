"""Every key that configs share, what is allowed there, and a check of a whole config against it.

A key is one line of `RULES`; its default is one line of `ml_collections_configs/base.py`. The keys
of a method's section are the keywords of its factory in `jaxfed.algorithms`, which judges their
values, and those of `jaxfed.config.methods`.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Collection
from typing import Any, get_args

from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import methods
from jaxfed.config.assembly import (
    OPTIMIZERS,
    SCHEDULES,
    SERVER_OPTIMIZERS,
    SETTINGS,
    check_algorithm,
    settings_to_try,
)
from jaxfed.config.feasibility import check_presence
from jaxfed.config.keys import TYPES, check_value, flatten, unknown_key
from jaxfed.config.learner_section import MIXED, check_learner, check_learner_key
from jaxfed.config.model_options import check_options
from jaxfed.config.networks import in_section
from jaxfed.config.open_sections import CANDIDATES, check_candidates, check_plugin, plugged_in
from jaxfed.config.preprocessing import PREPROCESSING
from jaxfed.config.public_examples import check_public
from jaxfed.config.rounds import check_rounds
from jaxfed.config.server_labels import LABELS_AT, check_labels_at
from jaxfed.config.simulation import GRAPHS, TESTS
from jaxfed.data.partition_arguments import Skew
from jaxfed.data.schemes import Assignment, Quantity, Scheme
from jaxfed.errors import UsageError
from jaxfed.federation import memory_limit
from jaxfed.federation.client_map import STRATEGIES
from jaxfed.federation.sampling import LABELED_SHARES, SAMPLINGS
from jaxfed.learners import LEARNERS
from jaxfed.models import MODELS
from jaxfed.models.layers import Convolution
from jaxfed.models.wrapping import DTYPES
from jaxfed.paper_numbers import PAPER_TABLES
from jaxfed.rules import POSITIVE, SHARE, Rule, at_least, between, check_values, one_of, rules_of
from jaxfed.training.aggregate import WEIGHTINGS
from jaxfed.training.augmentation import AUGMENTATIONS, compose
from jaxfed.training.batches import Scheme as BatchScheme
from jaxfed.training.ingredients import BatchStatistics, ClientOptimizer
from jaxfed.training.losses import POINTWISE
from jaxfed.training.pseudo_label import Confidence
from jaxfed.xclp.candidates import MEASURES


def _are_texts(values: Collection[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _are_numbers(values: Collection[Any]) -> bool:
    return all(type(value) in (int, float) and math.isfinite(value) for value in values)


def _is_table(rows: Collection[Any]) -> bool:
    if not all(isinstance(row, tuple | list) and _are_numbers(row) for row in rows):
        return False
    return len(set(map(len, rows))) <= 1 and all(min(row) >= 0 < sum(row) for row in rows if row)


TEXT = Rule(str, "text")
AUGMENTATION = Rule(
    tuple,
    f"NAME or NAME:NUMBER[:NUMBER], names out of {', '.join(map(repr, AUGMENTATIONS))}",
    lambda value: (
        _are_texts(value) and {name.partition(":")[0] for name in value} <= AUGMENTATIONS.keys()
    ),
)


def _learner_rules() -> dict[str, Rule]:
    """The keys that hold learners' names."""
    return {
        "learner.name": one_of([*LEARNERS, MIXED]),
        "learner.names": Rule(
            tuple,
            f"names out of {', '.join(map(repr, LEARNERS))}",
            lambda value: _are_texts(value) and set(value) <= set(LEARNERS),
            list(LEARNERS),
        ),
    }


def _method_rules(names: Collection[str]) -> dict[str, Rule]:
    """The keys that hold methods' names: of algorithms, and of the config's own variants of them."""
    different = f"different names out of {', '.join(map(repr, names))}"
    return {
        "algorithm": one_of(names),
        "baselines": Rule(
            tuple,
            different,
            lambda value: (
                _are_texts(value) and len(set(value)) == len(value) and set(value) <= set(names)
            ),
            names,
        ),
    }


RULES: dict[str, Rule] = {
    "seed": Rule(int, "0 to 2147483647", lambda value: 0 <= value < 2**31),
    "num_repeats": at_least(1),
    **_method_rules(ALGORITHMS),
    "rounds": at_least(1),
    "cohort_size": at_least(0, ", 0 is all clients"),
    "sampling": one_of(SAMPLINGS),
    "labeled_share": one_of(LABELED_SHARES),
    "labeled_cohorts": Rule(bool, "true or false"),
    "evaluate_every": at_least(0, ", 0 is after the last round only"),
    "evaluate_test": Rule(bool, "true or false"),
    "checkpoint_every": at_least(0, ", 0 is by the clock"),
    "paper_table": one_of(["", *PAPER_TABLES]),
    "dataset.name": Rule(str, "the name or path of a data set", bool),
    "dataset.root": TEXT,
    "dataset.label_key": TEXT,
    "dataset.client_key": TEXT,
    "dataset.drop": Rule(tuple, "names of columns, or () for none", _are_texts),
    "dataset.missing": one_of(("impute", "refuse")),
    "dataset.image_size": at_least(0, ", 0 is their own size"),
    "dataset.image_bits": Rule(int, "8 to 16", lambda bits: 8 <= bits <= 16),
    "dataset.train_size": at_least(0, ", 0 is all"),
    "dataset.test_size": at_least(0, ", 0 is all"),
    "dataset.unlabeled_size": at_least(0, ", 0 counts them in train_size"),
    "dataset.balanced": Rule(bool, "true or false"),
    "dataset.pooled": Rule(bool, "true or false"),
    "dataset.test_fraction": between(0, 1, closed=False),
    "dataset.validation_fraction": Rule(float, "0 to below 1", lambda value: 0 <= value < 1),
    "preprocessing.kind": one_of(PREPROCESSING),
    "preprocessing.rounds": at_least(0, ", 0 keeps training.initial_model as it is"),
    "preprocessing.cohort_size": at_least(0, ", 0 is all clients"),
    "preprocessing.network": TEXT,
    "preprocessing.weights": TEXT,
    "preprocessing.image_size": at_least(0, ", 0 is what the network was trained on"),
    "preprocessing.batch_size": at_least(0, ", 0 is what the device likes"),
    "federation.num_clients": at_least(0, ", 0 (with 'natural') is one a client id"),
    "federation.partition": one_of(get_args(Scheme)),
    "federation.dirichlet_alpha": POSITIVE,
    "federation.dirichlet_alpha_rest": POSITIVE,
    "federation.dirichlet_share": SHARE,
    "federation.classes_per_client": at_least(1),
    "federation.assignment": one_of(get_args(Assignment)),
    "federation.table": Rule(
        tuple,
        "equally long rows of class shares from 0 on, some above 0 in each; () is FedMatch's",
        lambda value: _is_table(value),
    ),
    "federation.quantity": one_of(["default", *get_args(Quantity)]),
    "federation.quantity_parameter": POSITIVE,
    "federation.min_size": at_least(0),
    "federation.labeled_fraction": SHARE,
    "federation.num_labeled": at_least(0, ", 0 leaves it to labeled_fraction"),
    "federation.labeled_per_class": at_least(0, ", 0 leaves it to labeled_fraction"),
    "federation.num_labeled_clients": at_least(0, ", 0 is all"),
    "federation.skew": one_of(get_args(Skew)),
    "federation.labels_at": one_of(LABELS_AT),
    "federation.public_size": at_least(0, ", 0 is none, or all of public_dataset"),
    "federation.public_fraction": Rule(float, "0 to below 1", lambda value: 0 <= value < 1),
    "federation.public_dataset": TEXT,
    "federation.own_size": at_least(0, ", 0 is all that are not public"),
    "federation.public_labeled": Rule(bool, "true or false"),
    "federation.reveal_labels": Rule(bool, "true or false"),
    "federation.test": one_of(TESTS),
    "federation.graph": one_of(GRAPHS),
    "federation.left_out_client": at_least(-1, ", -1 is none"),
    "model.name": one_of(MODELS),
    "training.optimizer": one_of(OPTIMIZERS),
    "training.client_optimizer": one_of(get_args(ClientOptimizer)),
    "training.learning_rate": POSITIVE,
    "training.schedule": one_of(SCHEDULES),
    "training.schedule_rounds": at_least(0, ", 0 is the experiment's rounds"),
    "training.momentum": SHARE,
    "training.nesterov": Rule(bool, "true or false"),
    "training.weight_decay": SHARE,
    "training.epochs": at_least(1),
    "training.local_steps": at_least(0, ", 0 is training.epochs epochs"),
    "training.batches": one_of(get_args(BatchScheme)),
    "training.batch_size": at_least(0, ", 0 is all that a client has"),
    "training.unlabeled_ratio": at_least(1),
    "training.loss": one_of(POINTWISE),
    "training.class_weights": Rule(
        tuple,
        "one positive number a class, or () for all alike",
        lambda value: _are_numbers(value) and all(weight > 0 for weight in value),
    ),
    "training.augmentation": AUGMENTATION,
    "training.strong_augmentation": AUGMENTATION,
    "training.weighting": one_of(WEIGHTINGS),
    "training.server_optimizer": one_of(SERVER_OPTIMIZERS),
    "training.server_learning_rate": POSITIVE,
    "training.server_momentum": SHARE,
    "training.server_beta1": Rule(float, "0 to below 1", lambda value: 0 <= value < 1),
    "training.server_beta2": Rule(float, "0 to below 1", lambda value: 0 <= value < 1),
    "training.server_tau": POSITIVE,
    "training.server_epochs": at_least(1),
    "training.server_batch_size": at_least(0, ", 0 is all that the server has"),
    "training.batch_statistics": one_of(get_args(BatchStatistics)),
    "training.labeled_only_rounds": at_least(0),
    "training.initial_model": TEXT,
    **_learner_rules(),
    "pseudo_label.confidence": one_of(get_args(Confidence)),
    "pseudo_label.class_weights": Rule(bool, "true or false"),
    "pseudo_label.augmented_features": Rule(bool, "true or false"),
    "pseudo_label.safeguard": one_of(("none", "network")),
    "selection.settings": one_of(SETTINGS),
    "selection.folds": at_least(2),
    "selection.measure": one_of(MEASURES),
    "audit.rounds": Rule(
        tuple,
        "integers from 1 on, or () for the last round",
        lambda value: all(type(number) is int and number >= 1 for number in value),
    ),
    "audit.members": at_least(0, ", 0 is all of a client's labels"),
    "audit.population": at_least(1),
    "audit.shadows": Rule(int, "0 for none, or integers from 4 on", lambda v: v == 0 or v >= 4),
    "execution.strategy": one_of(["auto", *STRATEGIES]),
    "execution.chunk_size": at_least(0, ", 0 is one client"),
    "execution.convolution": one_of(get_args(Convolution)),
    "execution.precision": one_of(DTYPES),
    "execution.workers": Rule(int, "integers from 0 to 1024, 0 is none", lambda n: 0 <= n <= 1024),
    "execution.memory_limit": memory_limit.RULE,
    "execution.compilation_cache": Rule(str, "'auto', 'off' or a folder", bool),
    "execution.plots": Rule(bool, "true or false"),
}
_SECTIONS = (
    *dict.fromkeys(key.partition(".")[0] for key in RULES if "." in key),
    *("xclp", "per_client_lp"),  # which label for methods that train a model, too
)


def check(config: ConfigDict) -> None:
    """Check every key and value of a config, before any data is read or any file is made.

    Raises:
        UsageError: names the first key that is unknown, missing, of another type or out of range,
            or two keys that contradict each other.
    """
    flat = dict(flatten(config.to_dict()))
    _check_is_whole(config)
    variants = methods.variants(config)
    names = [*ALGORITHMS, *variants]
    for name in variants:
        _check_variant(name, config[name].algorithm)
    plugins = plugged_in()
    # What is registered from outside may be so after this module is imported.
    rules = RULES | _method_rules(names) | _learner_rules() | {"model.name": one_of(MODELS)}
    for key, value in flat.items():
        if key in rules:
            check_value(key, value, rules[key])
        elif key.startswith("learner."):
            check_learner_key(key, value)
        # The sections of networks and methods are judged by the factories that take their keys.
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
    """Nothing is missing that every config has."""
    sections = {name: config.get(name) for name in _SECTIONS}
    candidates = (sections["selection"] or {}).get("candidates")
    for name, section in {**sections, "selection.candidates": candidates}.items():
        if not isinstance(section, ConfigDict):
            raise UsageError(
                f"config.{name}: the section is missing; ml_collections_configs.base.get_config() has it"
            )
    flat = dict(flatten(config.to_dict()))
    for key in RULES:
        if key not in flat:
            raise UsageError(f"config.{key}: missing; allowed are {RULES[key].allowed}")


def _check_variant(name: str, algorithm: Any) -> None:
    """A section with the key `algorithm` is another method of that algorithm."""
    if name in _SECTIONS or not name.isidentifier():
        raise UsageError(
            f"config.{name}.algorithm: {name!r} cannot name a method; allowed are identifiers other than "
            f"the sections {', '.join(_SECTIONS)}"
        )
    check_value(f"{name}.algorithm", algorithm, one_of(ALGORITHMS))


def _check_own_training(config: ConfigDict, name: str) -> None:
    """A method's own training has keys of the section `training`, with what is allowed there."""
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
    """A method's keywords have their defaults' types and keep its factory's rules, in the run or not."""
    factory = methods.factory_of(config, name)
    known, rules = inspect.signature(factory).parameters, rules_of(factory)
    for key, value in config.get(name, {}).items():
        default = known[key].default if key in known else None
        if type(default) in TYPES:
            check_value(f"{name}.{key}", value, Rule(type(default), TYPES[type(default)]))
        if key in rules:
            check_values(f"config.{name}", {key: rules[key]}, {key: value})


def _check_together(config: ConfigDict) -> None:
    """What no key can tell alone."""
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
