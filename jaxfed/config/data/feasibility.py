"""Conditions between a config and its data set, and between a config and the clients of one repeat."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.config.build.networks import initial_models, saved_models
from jaxfed.config.cohorts import check_number_of_clients
from jaxfed.config.data.sources import differences
from jaxfed.config.keys import refused
from jaxfed.data import SCHEMES, Dataset
from jaxfed.data.mapped_rows import parts
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.federation.execution.memory import require
from jaxfed.training.pseudo_labels.label_sources import settings_section

_LARGEST_RATIO = 100  # of feature scales without a warning


def check_dealt(dataset: Dataset, config: ConfigDict, federation: Federation) -> None:
    """Check the clients of a repeat, without their examples.

    Raises:
        UsageError: they have no labels; nothing is held out that the config tests or
            validates on; they are too few for its rounds, or too many for the memory.
    """
    if not config.federation.num_clients:  # otherwise `jaxfed.config.checks.check` has checked it
        check_number_of_clients(config, federation.num_clients)
    (num_labeled, _, num_new), given = federation.partition.sizes.sum(axis=1), config.federation
    if not num_labeled and not len(federation.server):
        amounts = ("labeled_fraction", "num_labeled", "labeled_per_class", "num_labeled_clients")
        raise UsageError(
            "config.federation: no client has a label with "
            + ", ".join(f"{key}={given[key]}" for key in amounts)
            + f", left_out_client={given.left_out_client}; one is needed at least"
        )
    for key, use, points in (
        ("test_fraction", "test", len(federation.test) + num_new),
        ("validation_fraction", "validate", len(federation.validation)),
    ):
        if config.dataset[key] and not points:
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
        for key, (each, what) in arrays.items():
            if key in values:
                value = values[key]
                require(each * value, what, key=f"config.{name}.{key}", value=value)


def warnings(
    dataset: Dataset, x: np.ndarray, config: ConfigDict, federation: Federation
) -> Iterator[str]:
    """Yield a line for data that a run does not use, or uses otherwise than the user may expect.

    `x` are the training examples without gaps; `federation` has the clients of the first repeat.
    """
    name, given, num_clients = dataset.name, config.federation, federation.num_clients
    if len(dataset.validation[1]) and not config.dataset.validation_fraction:
        yield (
            f"{name}: its validation examples are not used; set config.dataset.validation_fraction above 0"
        )
    for key, seen in initial_models(config).items():
        saved = saved_models(seen)
        known = saved[0].progress.get("names", {}) if saved else {}  # older states have none
        for kind, ours in dataset.names.items():
            for place, there, here in differences(zip(known.get(kind, ()), ours, strict=False)):
                yield (
                    f"config.{key}={seen.training.initial_model!r}: has learned other {kind}, number {place} "
                    f"is {there!r} there and {here!r} in these data"
                )
                break
    is_other = ~np.isin(dataset.y_test, dataset.y[dataset.is_labeled])
    if is_other.any():
        others = [repr(dataset.class_names[c]) for c in np.unique(dataset.y_test[is_other])]
        yield (
            f"{name}: {np.count_nonzero(is_other)} of {len(dataset.y_test)} test examples count as wrong: no "
            f"training example is of class {' or '.join(others[:8])}"
        )
    if empty := np.count_nonzero(federation.partition.sizes.sum(axis=0) == 0):
        yield (
            f"{empty} of {num_clients} clients have no examples (config.federation.num_clients, partition)"
        )
    if given.partition == "natural" and not given.num_clients and dataset.client_id is not None:
        in_data = len(np.unique(dataset.client_id))
        if in_data > num_clients:
            yield (
                f"{in_data - num_clients} of the {in_data} clients in the data are left out: all their "
                "examples are public or for tests"
            )
    yield from scale_warnings(name, x, config)
    is_named = config.dataset.client_key or Path(config.dataset.name).suffix
    is_dealt_to_others = given.partition not in ("natural", *SCHEMES.from_outside())
    if dataset.client_names and is_named and is_dealt_to_others:
        yield (
            f"config.federation.partition={given.partition!r}: deals examples to other clients than the "
            f"{len(dataset.client_names)} that {name} names; with 'natural' and "
            "config.federation.num_clients=0 it is these"
        )


def scale_warnings(name: str, x: np.ndarray, config: ConfigDict) -> Iterator[str]:
    """Yield a line if unscaled features lose values, or differ so much that a few dominate distances.

    A feature's scale is its largest absolute value; features that are 0 everywhere have none. Only vectors
    are checked, because all entries of an image have the same unit.
    """
    if config.preprocessing.kind != "identity" or x.ndim != 2:
        return
    advice = "config.preprocessing.kind='standardized'"
    if x.dtype == np.float64:
        yield f"{name}: float32 makes different values of some features equal; use {advice}"
    needs = {name: methods.needs(config, name) for name in methods.chosen(config)}
    # Networks standardize every feature (`Federation.normalization`).
    heed = [
        repr(name)
        for name, needed in needs.items()
        if not needed.trains or (needed.has_learners and methods.heeds_scales(config))
    ]
    scales = np.max([np.abs(part).max(axis=0) for part in parts(x)], axis=0)
    large, small = int(scales.argmax()), int(np.where(scales > 0, scales, np.inf).argmin())
    if heed and scales[large] > _LARGEST_RATIO * scales[small]:
        yield (
            f"{name}: feature {large} goes up to {scales[large]:.3g}, feature {small} to "
            f"{scales[small]:.3g}; the large ones decide cosines and distances, as {', '.join(heed)} may "
            f"take: {advice} gives all the same weight"
        )
