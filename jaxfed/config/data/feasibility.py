"""Checks of a config against its data, before anything is computed."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
from absl import logging
from ml_collections import ConfigDict

from jaxfed.config.build.assembly import make_algorithm
from jaxfed.config.build.networks import (
    check_augmentation,
    check_start,
    feature_shape,
    repeats_that_differ,
    saved_model,
    starts_from_state,
    without_clients,
)
from jaxfed.config.build.views import without_views
from jaxfed.config.data.preprocessing import Parts, num_features, preprocessed, pretrained_part
from jaxfed.config.data.sources import differences
from jaxfed.config.mask_partners import check_mask_partners
from jaxfed.config.methods import (
    all_keywords,
    chosen,
    differently_trained,
    naming_own_training,
    needs,
    training_key,
    trains,
    uses_training,
    with_own_training,
)
from jaxfed.data import SCHEMES, Dataset
from jaxfed.errors import UsageError, section
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.algorithm import check_rounds as check_stages
from jaxfed.federation.clients import Federation
from jaxfed.federation.departures import check_departures
from jaxfed.federation.sampling import num_groups
from jaxfed.training.consensus.dropout import departures_of
from jaxfed.xclp.settings import departures


def check_models(dataset: Dataset, config: ConfigDict) -> None:
    """Check that models fit the examples and the memory, and can start from the config's initial states."""
    training = list(differently_trained(config))
    if not training:
        return
    federation = without_clients(_preprocessed(dataset, config), dataset.num_classes)
    for name, seen in training:
        with naming_own_training(config, name):
            check_start(seen, federation)
            if starts_from_state(seen):
                _warn_of_other_names(dataset, seen)


def _warn_of_other_names(dataset: Dataset, config: ConfigDict) -> None:
    """Log a warning if the initial model has learned other classes or features than these data have."""
    for repeat in repeats_that_differ(config):
        names = saved_model(config, repeat).progress.get("names", {})  # older states have none
        for kind, ours in dataset.names.items():
            other = next(differences(zip(names.get(kind, ()), ours, strict=False)), None)
            if other is not None:
                logging.warning(
                    "config.training.initial_model=%r: has learned other %s, number %d is %r there and %r in "
                    "these data",
                    config.training.initial_model,
                    kind,
                    *other,
                )
                return


def _preprocessed(dataset: Dataset, config: ConfigDict) -> np.ndarray:
    """Return at most one example as models take it, [0 or 1, ...]."""
    nothing = dataset.x[:0]
    if config.preprocessing.kind == "pretrained":
        features = pretrained_part(nothing, config)[:, : num_features(config)]
        return without_views(features, config)
    first = np.flatnonzero(dataset.is_labeled)[:1]
    return preprocessed(Parts(dataset.x[first], nothing, nothing), config)


class _Shapes(Federation):
    """Clients whose examples are known by their shape alone."""

    @property
    def normalization(self) -> tuple[np.ndarray, np.ndarray]:
        """Return mean 0 and deviation 1, for a model that nothing is computed with."""
        size = self.x.shape[-1:]
        return np.zeros(size, np.float32), np.ones(size, np.float32)


def check_methods(dataset: Dataset, config: ConfigDict, dealt: Federation) -> None:
    """Build the methods that train, for the shapes of these clients' examples; nothing is computed.

    Methods of jaxfed have declared most of their conditions (`jaxfed.config.checks.method_check`). What is
    left depends on network, clients and rounds: a network without noise-free statistics, a reachable epsilon.

    `dealt` are the clients of the first repeat, without their examples.

    Raises:
        UsageError: a method or a learner refuses a value.
    """
    names = [name for name in chosen(config) if trains(config, name)]
    if not names:
        return
    x = _preprocessed(dataset, config)
    shape = x.shape[1:]
    if config.preprocessing.kind == "federated_features":
        shape, x = feature_shape(config, shape, dataset.num_classes), x.astype(np.float32)
    given = {field.name: getattr(dealt, field.name) for field in fields(dealt)}
    given["x"] = np.broadcast_to(x.dtype.type(0), (len(dealt.x), *shape))
    images = dataset.x if config.preprocessing.kind == "images" else given["x"]
    for name in names:
        seen = with_own_training(config, name).copy_and_resolve_references()
        seen.training.initial_model = ""  # `check_models` has read it
        with naming_own_training(config, name):
            if uses_training(config, name):
                check_augmentation(seen, "augmentation", images)
            if needs(config, name).two_views:
                check_augmentation(seen, "strong_augmentation", images)
            algorithm = make_algorithm(seen, name, _Shapes(**given))
        if not isinstance(algorithm, FederatedAlgorithm):
            raise UsageError(
                f"the factory of {name!r} returned {type(algorithm).__name__}; return a FederatedAlgorithm"
            )
        stage_1 = f"config.{training_key(config, name, 'labeled_only_rounds')}"
        check_stages(algorithm.labeled_only_rounds, config.rounds, "config.rounds", stage_1)


def check_clients(dataset: Dataset, config: ConfigDict) -> None:
    """Check that the data have client ids or subclasses if the partition needs them, of both splits."""
    wanted = config.federation
    if wanted.partition == "natural" and dataset.client_id is None:
        raise UsageError(
            f"needs client_id, which {dataset.name} does not have",
            key="config.federation.partition",
            value="natural",
            allowed="name the column of a CSV file, or the array of an .npz file, in "
            "config.dataset.client_key",
        )
    is_split = wanted.test == "clients" and len(dataset.y_test) > 0
    if wanted.partition == "natural" and is_split and dataset.client_id_test is None:
        raise UsageError(
            f"the test split of {dataset.name} names no clients that could hold it",
            key="config.federation.test",
            value="clients",
            allowed="use 'central', or give the test split a column of clients",
        )
    if wanted.partition == "subclasses" and dataset.subclass is None:
        raise UsageError(
            f"needs subclass, which {dataset.name} does not have",
            key="config.federation.partition",
            value="subclasses",
            allowed="cifar100 has it with config.dataset.label_key='coarse_label', an .npz file in its array "
            "subclass",
        )
    if wanted.partition == "subclasses" and is_split and dataset.subclass_test is None:
        raise UsageError(
            f"the test split of {dataset.name} has no subclasses, by which clients could hold it",
            key="config.federation.test",
            value="clients",
            allowed="use 'central', or give the test split the array subclass_test",
        )


def check_enough(dataset: Dataset, config: ConfigDict, left: int) -> None:
    """Check that there are at most as many clients as examples left to deal out."""
    num_clients, in_all = config.federation.num_clients, len(dataset.y) + len(dataset.y_test)
    if num_clients > left:
        wrong = f"at most {left}, the number of the {in_all} examples of {dataset.name} left to deal out"
        raise UsageError(wrong, key="config.federation.num_clients", value=num_clients)


def warn_of_empty_clients(dataset: Dataset, config: ConfigDict, federation: Federation) -> None:
    """Log a warning if clients have neither training examples nor points to label, or are none for it."""
    num_clients = federation.num_clients
    empty = int(np.count_nonzero(federation.partition.sizes.sum(axis=0) == 0))
    if empty:
        logging.warning(
            "%d of %d clients have no examples (config.federation.num_clients, partition)",
            empty,
            num_clients,
        )
    given = config.federation
    if given.partition == "natural" and not given.num_clients and dataset.client_id is not None:
        in_data = len(np.unique(dataset.client_id))
        if in_data > num_clients:
            logging.warning(
                "%d of the %d clients in the data are left out: all their examples are public or for tests",
                in_data - num_clients,
                in_data,
            )


def warn_of_unused_clients(dataset: Dataset, config: ConfigDict) -> None:
    """Log a warning if a file names clients, and the partition deals its examples to others."""
    scheme, names = config.federation.partition, dataset.client_names
    is_named = names and (config.dataset.client_key or Path(config.dataset.name).suffix)
    if is_named and scheme != "natural" and scheme not in SCHEMES.from_outside():
        logging.warning(
            "config.federation.partition=%r: deals examples to other clients than the %d that %s names; with "
            "'natural' and config.federation.num_clients=0 it is these",
            scheme,
            len(names),
            dataset.name,
        )


def check_classes(dataset: Dataset) -> None:
    """Refuse labels of one class only, and log a warning if the test split has classes of its own."""
    classes = np.unique(dataset.y[dataset.is_labeled])
    if len(classes) < 2:
        wrong = f"each example with a label is of class {dataset.class_names[classes[0]]!r}"
        name = dataset.name
        raise UsageError(
            wrong, key="config.dataset.name", value=name, allowed="two classes are needed"
        )
    is_other = ~np.isin(dataset.y_test, classes)
    if is_other.any():
        others = [repr(dataset.class_names[c]) for c in np.unique(dataset.y_test[is_other])]
        logging.warning(
            "%s: %d of %d test examples count as wrong: no training example is of class %s",
            dataset.name,
            np.count_nonzero(is_other),
            len(dataset.y_test),
            " or ".join(others[:8]),
        )


def check_points(dataset: Dataset, config: ConfigDict, federation: Federation) -> None:
    """Check that there are labels to learn from, and points to test and validate on if requested."""
    (num_labeled, _, num_new), given = federation.partition.sizes.sum(axis=1), config.federation
    if not num_labeled and not len(federation.server):
        amounts = ("labeled_fraction", "num_labeled", "labeled_per_class", "num_labeled_clients")
        raise UsageError(
            "config.federation: no client has a label with "
            + ", ".join(f"{key}={given[key]}" for key in amounts)
            + f", left_out_client={given.left_out_client}; one is needed at least"
        )
    for key, points in (
        ("test_fraction", len(federation.test) + num_new),
        ("validation_fraction", len(federation.validation)),
    ):
        if config.dataset[key] and not points:
            raise UsageError(
                f"no example out of {np.count_nonzero(dataset.is_labeled)} with a label is left to "
                f"{key.partition('_')[0]} on",
                key=f"config.dataset.{key}",
                value=config.dataset[key],
            )
    classes = np.unique(federation.y[federation.validation])
    if config.dataset.validation_measure == "auroc" and len(classes[classes >= 0]) == 1:
        raise UsageError(
            "the validation examples are of one class",
            key="config.dataset.validation_measure",
            value="auroc",
            allowed="raise dataset.validation_fraction",
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
            ("min_labels", most, "no client would share a prototype"),
        ):
            if key in given and given[key] > allowed:
                wrong = (
                    f"at most {allowed}: no client has more than {most} labels of a class; {why}"
                )
                raise UsageError(wrong, key=f"config.{name}.{key}", value=given[key])


def check_class_weights(dataset: Dataset, config: ConfigDict) -> None:
    """Check that class weights, if given, have one entry for each class."""
    given = {"training.class_weights": config.training.class_weights} | {
        training_key(config, name, "class_weights"): seen.training.class_weights
        for name, seen in differently_trained(config)
    }
    for key, weights in given.items():
        if weights and len(weights) != dataset.num_classes:
            raise UsageError(
                f"{len(weights)} numbers, but {dataset.name} has {dataset.num_classes} classes",
                key=f"config.{key}",
                allowed="() weighs all alike",
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
    for owner, presence in sections.items():
        with section(f"config.{owner}", ("presence",)):
            leaving = departures.parsed(presence)
        check_departures(leaving, num_clients, f"config.{owner}.presence")


def check_rounds(config: ConfigDict, num_clients: int) -> None:
    """Check rounds against clients.

    Every group needs a round. A round needs enough clients for methods that divide them into groups or sum
    over them. Clients scheduled to drop out must exist. Mask partners must suffice.
    """
    groups = num_groups(num_clients, config.cohort_size)
    if config.sampling == "groups" and config.rounds < groups:
        raise UsageError(
            f"with sampling='groups' and cohort_size={config.cohort_size}, {num_clients} clients make "
            f"{groups} groups",
            key="config.rounds",
            value=config.rounds,
            allowed=f"use integers from {groups} on",
        )
    check_presence(config, num_clients)
    check_mask_partners(config, num_clients)
    size = config.cohort_size or num_clients
    for name in chosen(config):
        given = all_keywords(config, name)
        if given.get("num_groups", 1) > size:
            wrong = f"at most the {size} clients of a round (config.cohort_size)"
            raise UsageError(wrong, key=f"config.{name}.num_groups", value=given["num_groups"])
        for key, alone in (("prototype_sums", "none"), ("sums", "plaintext")):
            if given.get(key, alone) != alone and size < 2:
                raise UsageError(
                    f"with config.{name}.{key}={given[key]!r} a round has 2 clients or more",
                    key="config.cohort_size"
                    if config.cohort_size
                    else "config.federation.num_clients",
                    value=size,
                )
