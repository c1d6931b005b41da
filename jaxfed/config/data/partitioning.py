"""Partition of a config's examples among clients: the section `federation` as arguments of `partition`.

A key of the section is a field of a scheme, of `Sizes` or of `Labels`: its rule and its meaning are defined
there. A scheme from outside has its fields in a section of its name (`jaxfed.data.partitioning.scheme`).
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from jaxfed.data import SCHEMES, Dataset, Labels, OwnerScheme, Partition, Scheme, Sizes, partition
from jaxfed.data.client_rows import ClientRows
from jaxfed.errors import UsageError, section

KEYS = {
    **{"scheme": "partition", "num_clients": "num_clients", "skew": "skew"},
    **{
        "alpha": "dirichlet_alpha",
        "alpha_rest": "dirichlet_alpha_rest",
        "share": "dirichlet_share",
    },
    **{"per_client": "classes_per_client", "rows": "table"},
    **{"quantity": "quantity", "parameter": "quantity_parameter", "min_size": "min_size"},
    **{"fraction": "labeled_fraction", "number": "num_labeled", "per_class": "labeled_per_class"},
    "clients": "num_labeled_clients",
}
"""Argument of `partition`, or field of a scheme, of `Sizes` or of `Labels` -> key of `federation`."""

_WITH_COLUMN = {
    "client_id": "name the column of a CSV file, or the array of an .npz file, in config.dataset.client_key",
    "subclass": "cifar100 has it with config.dataset.label_key='coarse_label', an .npz file in its array "
    "subclass",
}


def partitioned(
    config: ConfigDict, data: Dataset, train: np.ndarray, new: np.ndarray, seed: int
) -> Partition:
    """Return the partition of training examples and new points; both are indices into the data set.

    Raises:
        UsageError: names the key.
    """
    wanted, left = config.federation, len(train) + len(new)
    if wanted.num_clients > left:
        in_all = len(data.y) + len(data.y_test)
        raise UsageError(
            f"at most {left}, the number of the {in_all} examples of {data.name} left to deal out",
            key="config.federation.num_clients",
            value=wanted.num_clients,
        )
    with section("config.federation", KEYS):
        found = partition(
            data.y[train],
            num_clients=wanted.num_clients or None,
            scheme=_scheme(config, data, train, new),
            sizes=Sizes(**_values(wanted, Sizes)),
            labels=_labels(wanted),
            skew=wanted.skew,
            new_y=_column(data, "y", new) if len(new) else None,
            seed=seed,
        )
    # Indices count the training examples first, then new points, if any.
    source = np.concatenate([train, new])
    return Partition(*(ClientRows.of(clients).mapped(source.__getitem__) for clients in found))


def _scheme(config: ConfigDict, data: Dataset, train: np.ndarray, new: np.ndarray) -> Scheme:
    name = config.federation.partition
    scheme = SCHEMES[name]
    columns: dict[str, Any] = {}
    if issubclass(scheme, OwnerScheme):
        _check_column(config, data, scheme.column)
        columns[scheme.column] = getattr(data, scheme.column)[train]
        if len(new):
            columns[f"new_{scheme.column}"] = _column(data, scheme.column, new)
    if name in SCHEMES.from_outside():
        with section(f"config.{name}", _fields(scheme)):
            return scheme(**config.get(name, {}), **columns)
    return scheme(**_values(config.federation, scheme), **columns)


def _check_column(config: ConfigDict, data: Dataset, column: str) -> None:
    """Check that the data have the scheme's column, also for a test split that clients hold."""
    if getattr(data, column) is None:
        raise UsageError(
            f"needs {column}, which {data.name} does not have",
            key="config.federation.partition",
            value=config.federation.partition,
            allowed=_WITH_COLUMN[column],
        )
    is_split = config.federation.test == "clients" and len(data.y_test)
    if is_split and getattr(data, f"{column}_test") is None:
        raise UsageError(
            f"the test split of {data.name} has no {column}, by which clients could hold it",
            key="config.federation.test",
            value="clients",
            allowed="use 'central', or give the test split this column",
        )


def _column(data: Dataset, name: str, new: np.ndarray) -> np.ndarray | None:
    """Return a column of the new points: the test split, or examples drawn from the training split."""
    if len(data.y_test):
        return getattr(data, f"{name}_test")
    column = getattr(data, name)
    return None if column is None else column[new]


def _labels(wanted: ConfigDict) -> Labels:
    """Return the number of clients' labels; of three keys, the first that is not 0 determines it."""
    clients = wanted.num_labeled_clients or None
    if wanted.labels_at == "server":
        return Labels(fraction=0.0, clients=clients)
    if wanted.labeled_per_class:
        return Labels(per_class=wanted.labeled_per_class, clients=clients)
    if wanted.num_labeled:
        return Labels(number=wanted.num_labeled, clients=clients)
    return Labels(fraction=wanted.labeled_fraction, clients=clients)


def _values(wanted: ConfigDict, owner: type) -> dict[str, Any]:
    """Return field -> value of the keys that a scheme or `Sizes` has."""
    return {field: wanted[KEYS[field]] for field in _fields(owner) if field in KEYS}


def _fields(owner: type) -> frozenset[str]:
    return frozenset(field.name for field in fields(owner))
