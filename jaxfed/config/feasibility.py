"""Checks of a config against its data, before anything is computed."""

from __future__ import annotations

import numpy as np
from absl import logging
from ml_collections import ConfigDict

from jaxfed.config.learner_section import names_of
from jaxfed.config.methods import (
    all_keywords,
    chosen,
    differently_trained,
    has_learners,
    naming_own_training,
    training_key,
)
from jaxfed.config.networks import in_section
from jaxfed.config.preprocessing import (
    PREPROCESSING,
    Parts,
    pretrained_part,
    to_nobody,
)
from jaxfed.data import Dataset, Partition
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.federation.departures import check_departures
from jaxfed.federation.sampling import num_groups
from jaxfed.training.consensus.attendance import departures_of
from jaxfed.xclp import departures


def check_models(dataset: Dataset, config: ConfigDict) -> None:
    """Check that models fit the examples and the memory, and can start from the config's initial states."""
    # Imported here, as in `pretrained_part`.
    from jaxfed.config.networks import check_models

    training = list(differently_trained(config))
    if not training:
        return
    kind = config.preprocessing.kind
    if kind == "pretrained":
        x = pretrained_part(dataset.x[:0], config, lambda done: None)
    else:
        first = np.flatnonzero(dataset.is_labeled)[:1]
        one = Parts(dataset.x[first], dataset.x[:0], dataset.x[:0])
        x = PREPROCESSING[kind](one, config, to_nobody)
    nobody = (np.zeros(0, np.int64),)
    partition = Partition(nobody, nobody, nobody)
    federation = Federation(x, dataset.y[: len(x)], partition, dataset.num_classes)
    for name, seen in training:
        with naming_own_training(config, name):
            check_models(seen, federation)


def check_clients(dataset: Dataset, config: ConfigDict) -> None:
    """Check that the data have client ids or subclasses if the partition needs them."""
    if config.federation.partition == "natural" and dataset.client_id is None:
        raise UsageError(
            f"config.federation.partition='natural' needs client_id, which {dataset.name} does not have; "
            "of a CSV file, config.dataset.client_key names the column, of an .npz file the array, that says "
            "whose each row is"
        )
    if config.federation.partition == "subclasses" and dataset.subclass is None:
        raise UsageError(
            f"config.federation.partition='subclasses' needs subclass, which {dataset.name} does not have; "
            "cifar100 has it with config.dataset.label_key='coarse_label', an .npz file in its array subclass"
        )


def check_enough(dataset: Dataset, config: ConfigDict, left: int) -> None:
    """Check that there are at most as many clients as examples left to deal out."""
    num_clients, in_all = config.federation.num_clients, len(dataset.y) + len(dataset.y_test)
    if num_clients > left:
        raise UsageError(
            f"config.federation.num_clients={num_clients}: at most {left}, for so many of the {in_all} "
            f"examples of {dataset.name} are left to deal out"
        )


def warn_of_empty_clients(federation: Federation) -> None:
    """Log a warning if clients have neither training examples nor points to label."""
    num_clients = federation.num_clients
    empty = sum(not len(federation.points(client)) for client in range(num_clients))
    if empty:
        logging.warning(
            "%d of %d clients have no examples (config.federation.num_clients, partition)",
            empty,
            num_clients,
        )


def warn_of_unused_learners(config: ConfigDict) -> None:
    """Log a warning for each learner that has settings but no client.

    It is no error, because a sweep may set keys at every point that only some points use.
    """
    used: tuple[str, ...] = ()
    if any(has_learners(config, name) for name in chosen(config)):
        used = names_of(config)
    for name, section in config.learner.items():
        if isinstance(section, ConfigDict) and section and name not in used:
            theirs = f"clients train {', '.join(map(repr, used))}" if used else "no method has any"
            logging.warning(
                "config.learner.%s: no client has this learner, its settings are unused; %s",
                name,
                theirs,
            )


def check_points(dataset: Dataset, config: ConfigDict, federation: Federation) -> None:
    """Check that there are labels to learn from, and points to test and validate on if requested."""
    wanted, given = federation.partition, config.federation
    if not any(map(len, wanted.labeled)) and not len(federation.server):
        amounts = ("labeled_fraction", "num_labeled", "labeled_per_class", "num_labeled_clients")
        raise UsageError(
            "config.federation: no client has a label with "
            + ", ".join(f"{key}={given[key]}" for key in amounts)
            + f", left_out_client={given.left_out_client}; one is needed at least"
        )
    for key, points in (
        ("test_fraction", len(federation.test) + sum(map(len, wanted.new))),
        ("validation_fraction", len(federation.validation)),
    ):
        if config.dataset[key] and not points:
            raise UsageError(
                f"config.dataset.{key}={config.dataset[key]}: no example out of "
                f"{np.count_nonzero(dataset.is_labeled)} with a label is left to {key.partition('_')[0]} on"
            )


def check_labels_a_class(config: ConfigDict, federation: Federation) -> None:
    """Check that some client has enough labels of a class for a method's episodes and prototypes.

    An episode needs `support` examples of a class and one more to query. Prototypes of fewer than
    `min_labels` labels are withheld.
    """
    most = federation.max_labels_of_a_class
    if not most:
        return  # only the server has labels, or nobody
    for name in chosen(config):
        given = all_keywords(config, name)
        for key, allowed, why in (
            ("support", most - 1, "a query needs one more"),
            ("min_labels", most, "nobody would show a prototype"),
        ):
            if key in given and given[key] > allowed:
                raise UsageError(
                    f"config.{name}.{key}={given[key]}: at most {allowed}, for no client has more than "
                    f"{most} labels of a class; {why}"
                )


def check_class_weights(dataset: Dataset, config: ConfigDict) -> None:
    """Check that class weights, if given, have one entry for each class."""
    given = {"training.class_weights": config.training.class_weights} | {
        training_key(config, name, "class_weights"): seen.training.class_weights
        for name, seen in differently_trained(config)
    }
    for key, weights in given.items():
        if weights and len(weights) != dataset.num_classes:
            raise UsageError(
                f"config.{key}: {len(weights)} numbers, but {dataset.name} has {dataset.num_classes} "
                "classes; () weighs all alike"
            )


def check_presence(config: ConfigDict, num_clients: int) -> None:
    """Check that clients scheduled to drop out of XCLP's protocols or of masked sums exist."""
    sections = {"xclp": config.xclp.presence}  # also a label source of methods that train
    for name in chosen(config):
        given = all_keywords(config, name)
        if {"presence", "sums"} <= given.keys():
            key = f"config.{name}.presence"
            leaving = departures_of(given["presence"], given["sums"], key)
            check_departures(leaving, num_clients, key)
        elif "presence" in given:
            sections[name] = given["presence"]
    for section, presence in sections.items():
        with in_section(section, "presence"):
            leaving = departures.parsed(presence)
        check_departures(leaving, num_clients, f"config.{section}.presence")


def check_rounds(config: ConfigDict, num_clients: int) -> None:
    """Check rounds against clients.

    Every group needs a round. A round needs enough clients for methods that divide them into groups or sum
    over them. Clients scheduled to drop out must exist.
    """
    groups = num_groups(num_clients, config.cohort_size)
    if config.sampling == "groups" and config.rounds < groups:
        raise UsageError(
            f"config.rounds={config.rounds}: with sampling='groups' and cohort_size="
            f"{config.cohort_size}, {num_clients} clients make {groups} groups; allowed are integers "
            f"from {groups} on"
        )
    check_presence(config, num_clients)
    size = config.cohort_size or num_clients
    for name in chosen(config):
        given = all_keywords(config, name)
        if given.get("num_groups", 1) > size:
            raise UsageError(
                f"config.{name}.num_groups={given['num_groups']}: at most the {size} clients of a round "
                "(config.cohort_size)"
            )
        for key, alone in (("prototype_sums", "none"), ("sums", "plaintext")):
            if given.get(key, alone) != alone and size < 2:
                few = f"cohort_size={size}"
                if not config.cohort_size:
                    few = f"federation.num_clients={num_clients}"
                raise UsageError(
                    f"config.{few}: with config.{name}.{key}={given[key]!r} a "
                    "round has 2 clients or more"
                )
