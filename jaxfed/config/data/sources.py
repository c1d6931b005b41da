"""The data sets of a config: the clients' own, and an optional public one.

dataset = clients_set(config)                  # dataset.name
public = public_set(config, dataset)           # federation.public_dataset, for FedMD; or None
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from jaxfed.data import Dataset, load
from jaxfed.data.dataset import Gaps
from jaxfed.data.loading import READERS
from jaxfed.data.readers.tables.encoder import TableEncoder
from jaxfed.data.readers.tables.interface import LABELS
from jaxfed.errors import UsageError, section


def clients_set(config: ConfigDict) -> Dataset:
    """Load the data set `dataset.name`.

    Raises:
        UsageError: it cannot be found or read.
    """
    wanted = config.dataset
    try:
        with section("config.dataset", {**{key: key for key in wanted}, "name_or_path": "name"}):
            return load(
                wanted.name,
                root=wanted.root or None,
                **_columns(config),
                options=_options(config, wanted.name),
            )
    except UsageError as error:
        if not error.key:  # what is wrong is the set's content
            error.key = "config.dataset.name"
        raise


def public_set(config: ConfigDict, dataset: Dataset) -> Dataset | None:
    """Load the data set `federation.public_dataset`; None if the key is empty.

    A file of the same kind as the clients' own (`.csv` and `.csv`) has the same columns: of the label, of
    clients, and those that are dropped; all of these may be missing. Without a header columns are known by
    their places. Other sets have their default label.
    Image files get the clients' `dataset.image_size`.

    Args:
        config: of the experiment.
        dataset: the clients' own, as it was read.

    Raises:
        UsageError: it cannot be found or read; its examples differ from the clients' in shape, type or
            features; `public_labeled` needs labels that it lacks.
    """
    name = config.federation.public_dataset
    if not name:
        return None
    try:
        is_alike = Path(name).suffix == Path(config.dataset.name).suffix != ""
        columns = _columns(config)
        encoder = dataset.encoder
        if isinstance(encoder, TableEncoder) and encoder.label.lower() not in LABELS:
            # Without a header, the label is the clients' last column.
            columns["label_key"] = encoder.label or None
        try:
            public = _public(config, columns if is_alike else {"image_size": columns["image_size"]})
        except UsageError as error:
            if is_alike or error.key != "image_size":
                raise
            public = _public(config, {})  # images of arrays have their size
    except UsageError as error:
        raise UsageError(str(error), key="config.federation.public_dataset", value=name) from error
    theirs, ours = public.names["features"], dataset.names["features"]
    if theirs and ours and theirs != ours:
        place, there, here = next(differences(zip_longest(theirs, ours)))
        raise UsageError(
            f"its features are others: number {place} is {there!r}, in {dataset.name} it is {here!r}",
            key="config.federation.public_dataset",
            value=name,
            allowed="use the same columns in the same order, and the same texts in them",
        )
    kinds = [f"{data.x.dtype}{list(data.x.shape[1:])}" for data in (public, dataset)]
    forms = [(data.x.dtype == np.uint8, data.x.shape[1:]) for data in (public, dataset)]
    if forms[0] != forms[1]:
        raise UsageError(
            f"its examples are {kinds[0]}",
            key="config.federation.public_dataset",
            value=name,
            allowed=f"use a data set whose examples are {kinds[1]}, as those of {dataset.name}",
        )
    num_classes = len(np.unique(public.y[public.is_labeled]))
    if config.federation.public_labeled and num_classes < 2:
        raise UsageError(
            f"the examples of {name} have labels of {num_classes} classes",
            key="config.federation.public_labeled",
            value=True,
            allowed="set it to False, or use a federation.public_dataset with labels of two or more",
        )
    return public


def completed_public(public: Dataset, gaps: Gaps | None) -> Dataset:
    """Fill the public set's gaps as those of the clients' examples, `Dataset.gaps`.

    Raises:
        UsageError: it misses a number where the clients' examples miss none.
    """
    if gaps is None and not public.has_gaps:
        return public
    filled, names = (gaps or Gaps((), ())).filled, public.names["features"]
    try:
        x, x_test = (filled(part, names) for part in (public.x, public.x_test))
    except UsageError as error:
        raise UsageError(
            str(error), key="config.federation.public_dataset", value=public.name
        ) from error
    return replace(public, x=x, x_test=x_test, has_gaps=False)


def differences(pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[int, Any, Any]]:
    """Yield the place of each pair of different values, and both."""
    return ((place, a, b) for place, (a, b) in enumerate(pairs) if a != b)


def _public(config: ConfigDict, columns: dict[str, Any]) -> Dataset:
    """Load the public data set with these options of its columns."""
    name, root = config.federation.public_dataset, config.dataset.root or None
    options = _options(config, name)
    return load(name, root=root, **columns, labels_optional=True, options=options)


def _columns(config: ConfigDict) -> dict[str, Any]:
    """Return the options of the clients' data set that say what its columns are."""
    wanted = config.dataset
    return {
        "label_key": wanted.label_key or None,
        "client_key": wanted.client_key or None,
        "image_size": wanted.image_size or None,
        "drop": wanted.drop,
    }


def _options(config: ConfigDict, name: str) -> ConfigDict | None:
    """Return the section of a reader registered under this name, else None."""
    return config.get(name) if name in READERS else None
