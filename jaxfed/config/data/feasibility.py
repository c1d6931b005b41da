"""Conditions between a config, its data set, the memory, and the clients of one repeat."""

from __future__ import annotations

import math

import numpy as np
from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.config.check import check_number_of_clients
from jaxfed.config.data.preprocessing import Parts
from jaxfed.config.keys import refused
from jaxfed.config.views import num_rows
from jaxfed.data import Dataset
from jaxfed.data.features import check_images
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.federation.execution.settings import require
from jaxfed.models.efficientnet import NUM_FEATURES
from jaxfed.training.pseudo_labels.label_sources import settings_section


def check_kind(dataset: Dataset, config: ConfigDict) -> None:
    """Check that there are two classes, and that the examples suit the preprocessing.

    Raises:
        UsageError: one class; the examples are no images but need to be; they are fewer than the components.
    """
    kind, x, components = config.preprocessing.kind, dataset.x, config.preprocessing.components
    if kind == "images" and x.ndim == 2:
        wrong = f"{dataset.name} has rows of {x.shape[1]} features, no images"
        allowed = "use 'standardized' for features of different units, or 'identity'"
        raise refused(config, "preprocessing.kind", wrong, allowed)
    if kind == "pretrained":
        try:
            check_images(x)
        except UsageError as error:
            raise refused(config, "preprocessing.kind", f"{dataset.name}: {error}") from error
        if components > (most := min(NUM_FEATURES, len(x))):
            allowed = (
                f"use integers up to {most}, the smaller of numbers of features and training images"
            )
            raise refused(config, "preprocessing.components", "", allowed)


def check_classes(dataset: Dataset, config: ConfigDict) -> None:
    """Refuse a data set without labels of two classes."""
    classes = np.unique(dataset.y[dataset.is_labeled])
    if len(classes) < 2:
        wrong = "no example has a label"
        if len(classes):
            wrong = f"each example with a label is of class {dataset.class_names[classes[0]]!r}"
        raise refused(config, "dataset.name", wrong, "two classes are needed")


def check_copies(parts: Parts, config: ConfigDict) -> None:
    """Refuse copies of the examples that exceed the memory; images and float32 vectors are not copied."""
    kind, there = config.preprocessing.kind, [parts.train, parts.test, parts.public]
    if config.preprocessing.views:
        n, rows = sum(map(len, there)), num_rows(config)
        d = config.preprocessing.components or NUM_FEATURES
        what = f"{rows} rows of {d} features for each of {n} examples"
        key = "config.preprocessing.views"
        require(4 * n * rows * d, what, key=key, value=config.preprocessing.views)
    if kind == "standardized" or (kind == "identity" and parts.train.dtype != np.float32):
        num_bytes, what = 4 * sum(part.size for part in there), "a float32 copy of all examples"
        require(num_bytes, what, key="config.preprocessing.kind", value=kind)


def check_dealt(dataset: Dataset, config: ConfigDict, federation: Federation) -> None:
    """Check the clients of a repeat, without their examples.

    Raises:
        UsageError: they have no labels; nothing is held out that the config tests or
            validates on; they are too few for its rounds, or too many for the memory.
    """
    if not config.federation.num_clients:  # otherwise `jaxfed.config.check` has checked it
        check_number_of_clients(config, federation.num_clients)
    (num_labeled, _, num_new), given = federation.partition.sizes.sum(axis=1), config.federation
    if not num_labeled and not len(federation.server):
        amounts = ("labeled_fraction", "num_labeled", "labeled_per_class", "num_labeled_clients")
        raise UsageError(
            "config.federation: no client has a label with "
            + ", ".join(f"{key}={given[key]}" for key in amounts)
            + f", left_out_client={given.left_out_client}; one is needed at least"
        )
    for key, use, number in (
        ("test_fraction", "test", len(federation.test) + num_new),
        ("validation_fraction", "validate", len(federation.validation)),
    ):
        if config.dataset[key] and not number:
            known = np.count_nonzero(dataset.is_labeled)
            wrong = f"no example out of {known} with a label is left to {use} on"
            raise refused(config, f"dataset.{key}", wrong)
    classes = np.unique(federation.y[federation.validation])
    if config.dataset.validation_measure == "auroc" and len(classes[classes >= 0]) == 1:
        wrong, allowed = (
            "the validation examples are of one class",
            "raise dataset.validation_fraction",
        )
        raise refused(config, "dataset.validation_measure", wrong, allowed)
    check_memory(config, federation, math.prod(dataset.x.shape[1:]))


def check_memory(config: ConfigDict, federation: Federation, num_features: int) -> None:
    """Refuse settings for which a single array exceeds the memory, before any step is compiled."""
    clients, public = config.cohort_size or federation.num_clients, len(federation.public)
    what = f"{clients} clients' labels of them"
    require(4 * clients * public, what, key="config.federation.public_size", value=public)
    largest = int(federation.partition.sizes.sum(axis=0).max(initial=0))
    arrays = {
        "num_neighbors": (8 * largest, f"as many neighbors of {largest} points"),
        "num_bits": (4 * num_features, "as many hyperplanes"),
        "unlabeled_query": (4 * num_features, "so many examples a step"),
    }
    chosen = methods.chosen(config)
    given = {name: methods.all_keywords(config, name) for name in chosen}
    for needed in (methods.needs(config, name) for name in chosen):
        owner = settings_section(str(needed.pseudo_label)) if needed.trains else ""
        given |= {owner: config[owner]} if owner in config else {}
    for name, values in given.items():
        for key in arrays.keys() & set(values):
            each, what = arrays[key]
            require(each * values[key], what, key=f"config.{name}.{key}", value=values[key])
