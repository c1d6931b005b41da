"""The data sets of a config: the clients' own, and an optional public one.

dataset = clients_set(config)                  # dataset.name
public = public_set(config, dataset)           # federation.public_dataset, for FedMD; or None
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from jaxfed.config.keys import refused
from jaxfed.data import Dataset, load
from jaxfed.data.loading import READERS
from jaxfed.data.readers.table_encoder import TableEncoder
from jaxfed.data.readers.table_files import LABELS
from jaxfed.errors import UsageError, section


def clients_set(config: ConfigDict) -> Dataset:
    """Load the data set `dataset.name`.

    Raises:
        UsageError: it cannot be found or read.
    """
    wanted = config.dataset
    try:
        with section("config.dataset", {**{key: key for key in wanted}, "name_or_path": "name"}):
            return _loaded(config, wanted.name, **_columns(config))
    except UsageError as error:
        if not error.key:  # what is wrong is the set's content
            error.key = "config.dataset.name"
        raise


def public_set(config: ConfigDict, dataset: Dataset) -> Dataset | None:
    """Load the data set `federation.public_dataset`; None if the key is empty.

    A file of the same kind as the clients' own (`.csv` and `.csv`) has the same columns: of the label, of
    clients, and those that are dropped; all of these may be missing. Without a header columns are known by
    their places. Other sets have their default label. Image files get the clients' `dataset.image_size`.

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
    is_alike = Path(name).suffix == Path(config.dataset.name).suffix != ""
    columns, encoder = _columns(config), dataset.encoder
    if isinstance(encoder, TableEncoder) and encoder.label.lower() not in LABELS:
        # Without a header, the label is the clients' last column.
        columns["label_key"] = encoder.label or None
    if not is_alike:
        columns = {"image_size": columns["image_size"]}
    with naming_public(name):
        try:
            public = _loaded(config, name, labels_optional=True, **columns)
        except UsageError as error:
            if is_alike or error.key != "image_size":
                raise
            public = _loaded(config, name, labels_optional=True)  # images of arrays have their size
        _check_alike(public, dataset)
    num_classes = len(np.unique(public.y[public.is_labeled]))
    if config.federation.public_labeled and num_classes < 2:
        wrong = f"the examples of {name} have labels of {num_classes} classes"
        allowed = "set it to False, or use a federation.public_dataset with labels of two or more"
        raise refused(config, "federation.public_labeled", wrong, allowed)
    return public


def _check_alike(public: Dataset, dataset: Dataset) -> None:
    """Check that public examples have the clients' features, shape and type."""
    theirs, ours = public.names["features"], dataset.names["features"]
    kinds = [f"{data.x.dtype}{list(data.x.shape[1:])}" for data in (public, dataset)]
    forms = [(data.x.dtype == np.uint8, data.x.shape[1:]) for data in (public, dataset)]
    if theirs and ours and theirs != ours:
        place, there, here = next(differences(zip_longest(theirs, ours)))
        raise UsageError(
            f"its features are others: number {place} is {there!r}, in {dataset.name} it is {here!r}",
            allowed="use the same columns in the same order, and the same texts in them",
        )
    if forms[0] != forms[1]:
        allowed = f"use a data set whose examples are {kinds[1]}, as those of {dataset.name}"
        raise UsageError(f"its examples are {kinds[0]}", allowed=allowed)


@contextmanager
def naming_public(name: str) -> Iterator[None]:
    """Name `federation.public_dataset` in errors of the enclosed code."""
    try:
        yield
    except UsageError as error:
        raise UsageError(str(error), key="config.federation.public_dataset", value=name) from error


def differences(pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[int, Any, Any]]:
    """Yield the place of each pair of different values, and both."""
    return ((place, a, b) for place, (a, b) in enumerate(pairs) if a != b)


def _loaded(config: ConfigDict, name: str, **keywords: Any) -> Dataset:
    """Load a data set; a reader registered under its name receives the section of that name."""
    options = config.get(name) if name in READERS else None
    return load(name, root=config.dataset.root or None, options=options, **keywords)


def _columns(config: ConfigDict) -> dict[str, Any]:
    """Return the options of the clients' data set that say what its columns are."""
    wanted = config.dataset
    names = {key: wanted[key] or None for key in ("label_key", "client_key", "image_size")}
    return {**names, "drop": wanted.drop}
