"""From a config to simulated clients: load, take a part, preprocess, deal out.

    simulation = Simulation(config)              # reads the data set; seconds
    federation = simulation.federation(seed)     # preprocesses at the first call; one per repeat

The examples (`dataset.train_size`, `dataset.test_size`) depend on `config.seed` alone and are the
same in every repeat; who holds which, which carry labels, and what is held out of a set without a
test split depend on the repeat's seed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from jaxfed.data import Dataset, Partition, class_counts, load, partition
from jaxfed.data.dataset import standardized
from jaxfed.errors import UsageError
from jaxfed.federation import Federation

GRAPHS = ("labeled+unlabeled", "labeled")


class Simulation:
    """The examples of one experiment and the federations made of them."""

    def __init__(self, config: ConfigDict) -> None:
        """Load the data set and take the part of it that the config asks for.

        Raises:
            UsageError: the set cannot be found or read, or is smaller than asked for.
        """
        self._config = config
        self._dataset = _subset(load(config.dataset.name, root=config.dataset.root or None), config)

    @property
    def num_classes(self) -> int:
        """C."""
        return self._dataset.num_classes

    def check(self) -> None:
        """Deal out the labels of every repeat, to show before any work what cannot be dealt.

        Raises:
            UsageError: more labels, classes or examples asked for than there are.
        """
        nothing = np.zeros((len(self._dataset.y) + len(self._dataset.y_test), 0), np.float32)
        for repeat in range(self._config.num_repeats):
            self._federation(nothing, self._config.seed + repeat)

    def federation(self, seed: int) -> Federation:
        """The clients of the repeat with this seed; `x` float32 [n, d], preprocessed."""
        return self._federation(self._vectors, seed)

    def class_counts(self, federation: Federation) -> dict[str, Any]:
        """Clients x classes counts of labeled, unlabeled and new points, and the classes' names."""
        counts = {
            kind: class_counts(federation.y, indices, federation.num_classes)
            for kind, indices in federation.partition._asdict().items()
        }
        return {**counts, "class_names": self._dataset.class_names}

    @cached_property
    def _vectors(self) -> np.ndarray:
        return PREPROCESSING[self._config.preprocessing.kind](self._dataset, self._config)

    def _federation(self, x: np.ndarray, seed: int) -> Federation:
        data, wanted = self._dataset, self._config.federation
        y = np.concatenate([data.y, data.y_test])
        federation = Federation(x, y, self._partition(seed), data.num_classes)
        if wanted.graph == "labeled":
            federation = federation.without_unlabeled()
        if wanted.left_out_client >= 0:
            federation = federation.leave_out(wanted.left_out_client)
        return federation

    def _partition(self, seed: int) -> Partition:
        data, wanted = self._dataset, self._config.federation
        return partition(
            data.y,
            num_clients=wanted.num_clients or None,
            quantity=None if wanted.quantity == "default" else wanted.quantity,
            quantity_parameter=wanted.quantity_parameter,
            min_size=wanted.min_size,
            num_labeled_clients=wanted.num_labeled_clients or None,
            skew=wanted.skew,
            seed=seed,
            **_scheme(wanted, data),
            **_labels(wanted),
            **_new_points(self._config, data),
        )


def _scheme(wanted: ConfigDict, data: Dataset) -> dict[str, Any]:
    """The scheme and what belongs to it alone."""
    own: dict[str, Any] = {
        "dirichlet": {"dirichlet_alpha": wanted.dirichlet_alpha},
        "classes_per_client": {
            "classes_per_client": wanted.classes_per_client,
            "assignment": wanted.assignment,
        },
        "table": {"table": wanted.table} if wanted.table else {},
        "natural": {"client_id": data.client_id},
    }
    return {"scheme": wanted.partition, **own.get(wanted.partition, {})}


def _labels(wanted: ConfigDict) -> dict[str, Any]:
    """Which of the three ways to say how many labels there are is in use."""
    if wanted.labeled_per_class:
        return {"labeled_per_class": wanted.labeled_per_class}
    if wanted.num_labeled:
        return {"num_labeled": wanted.num_labeled}
    return {"labeled_fraction": wanted.labeled_fraction}


def _new_points(config: ConfigDict, data: Dataset) -> dict[str, Any]:
    """The points that clients want labeled: the set's test split, or a share held out of it."""
    if not len(data.y_test):
        return {"new_fraction": config.dataset.test_fraction}
    if config.federation.partition == "natural":
        return {"new_y": data.y_test, "new_client_id": data.client_id_test}
    return {"new_y": data.y_test}


def _subset(dataset: Dataset, config: ConfigDict) -> Dataset:
    """`train_size` and `test_size` of the examples, drawn by `config.seed`; 0 takes all."""
    rng = np.random.default_rng(config.seed)
    train = _sample(rng, len(dataset.y), config.dataset.train_size, "train_size", dataset)
    test = _sample(rng, len(dataset.y_test), config.dataset.test_size, "test_size", dataset)
    client_id, client_id_test = dataset.client_id, dataset.client_id_test
    return dataclasses.replace(
        dataset,
        x=dataset.x[train],
        y=dataset.y[train],
        x_test=dataset.x_test[test],
        y_test=dataset.y_test[test],
        client_id=None if client_id is None else client_id[train],
        client_id_test=None if client_id_test is None else client_id_test[test],
    )


def _sample(
    rng: np.random.Generator, available: int, size: int, key: str, dataset: Dataset
) -> np.ndarray | slice:
    if size > available:
        raise UsageError(
            f"config.dataset.{key}={size}: {dataset.name} has {available}; 0 takes all of them"
        )
    return np.sort(rng.permutation(available)[:size]) if size else slice(None)


def _identity(dataset: Dataset, config: ConfigDict) -> np.ndarray:
    """The examples as they are, flattened to float32 [n, d]."""
    del config
    examples = np.concatenate([dataset.x, dataset.x_test])
    return examples.reshape(len(examples), math.prod(examples.shape[1:])).astype(np.float32)


def _standardized(dataset: Dataset, config: ConfigDict) -> np.ndarray:
    """Every feature with mean 0 and variance 1 over the training examples."""
    return _identity(standardized(dataset), config)


def _pretrained(dataset: Dataset, config: ConfigDict) -> np.ndarray:
    """Features of a network trained on ImageNet."""
    raise NotImplementedError


PREPROCESSING: dict[str, Callable[[Dataset, ConfigDict], np.ndarray]] = {
    "identity": _identity,
    "standardized": _standardized,
    "pretrained": _pretrained,
}
