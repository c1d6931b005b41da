"""Conditions between a config, its data set, and the clients of one repeat."""

from __future__ import annotations

import numpy as np
from ml_collections import ConfigDict

from jaxfed.config.check import check_number_of_clients
from jaxfed.config.keys import refused
from jaxfed.config.sections import DatasetSection
from jaxfed.data import Dataset
from jaxfed.data.features import check_images
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.models.efficientnet import NUM_FEATURES


def check_kind(dataset: Dataset, config: ConfigDict) -> None:
    """Refuse examples that do not suit the preprocessing, and a share of a test split that is there."""
    given = config.dataset.test_fraction
    if len(dataset.y_test) and given != DatasetSection.test_fraction:
        wrong = f"nothing reads it, for {dataset.name} has a test split"
        allowed = f"use {DatasetSection.test_fraction}, or set dataset.pooled to True"
        raise refused(config, "dataset.test_fraction", wrong, allowed)
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


def check_dealt(dataset: Dataset, config: ConfigDict, federation: Federation) -> None:
    """Check the clients of a repeat, without their examples.

    Raises:
        UsageError: they have no labels; nothing is held out that the config tests or
            validates on; they are too few for its rounds.
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
