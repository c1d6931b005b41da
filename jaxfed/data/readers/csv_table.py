"""Read a table from a CSV file: each row has an example's features, a label and optionally a client."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from jaxfed.data.dataset import (
    Dataset,
    class_numbers,
    client_names,
    client_numbers,
    has_gaps,
)
from jaxfed.data.labels import check_test_labels, is_nothing, plain_text, read_labels
from jaxfed.data.readers.tables.csv_files import read_files
from jaxfed.data.readers.tables.features import Features, features_of
from jaxfed.data.readers.tables.interface import (
    BY_FILE,
    CLIENTS,
    LABELS,
    Table,
    index_columns,
)
from jaxfed.data.readers.tables.splits import Splits
from jaxfed.errors import UsageError, did_you_mean, nearest


def read(
    path: Path,
    label_key: str | None = None,
    client_key: str | None = None,
    *,
    drop: Collection[str] = (),
    splits: Splits | None = None,
    labels_optional: bool = False,
) -> Dataset:
    """Read a CSV file, plain or gzipped; the delimiter is detected (`,`, `;`, tab or `|`).

    A first line in which no feature is a number, or which names the label as below, is a header.

    The label is the column `label_key`. Without `label_key` it is the column named label, class, target or y
    (in any case) or, without a header, the last. `jaxfed.data.labels` defines unlabeled rows. Natural clients
    are the column `client_key`, without it a column named client_id, client or writer. If `client_key`
    is "file" and no column has this name, each of several files is a client, and test files are of all.

    All other columns are features. Numbers (`jaxfed.data.readers.cells`) are one feature each, NaN where a
    cell is missing (`Dataset.has_gaps`). A column of texts is encoded one-hot, in the order of the sorted
    texts; all spellings of a missing value (`jaxfed.data.labels`) are one text. More than 100 texts, or texts
    among numbers, are refused.

    Dates are days since 1970, 2024-01-31 or 2024-01-31T12:00; with an offset from UTC, of UTC.

    Three kinds of columns are left out: columns without any value, row identifiers, and the index as pandas
    writes it (`jaxfed.data.readers.tables.interface.index_columns`). A row identifier is named id, row number
    or the like, and has a different value in each row. The log names these columns and columns of text.

    x is float32. If whole numbers above 2^24 or dates would become equal in it, x is float64, in which
    `preprocessing.kind='standardized'` computes.

    Args:
        path: the file, or the pattern of several.
        label_key: name of the label's column.
        client_key: name of the clients' column.
        drop: columns that are not features.
        splits: the files of a pattern; their columns are the same. None: the file alone.
        labels_optional: as of `jaxfed.data.load`.

    Cost: a few million cells a second. Memory: twice that of x at most, and a chunk of rows.

    Raises:
        UsageError: names the column and line that cannot be read, a line of another length, or, if the label
            column is missing, all columns.
    """
    splits = Splits([path], []) if splits is None else splits
    table = read_files(path, splits, [label_key, client_key], drop)
    return dataset_of(
        table, label_key, client_key, drop, features_of, labels_optional=labels_optional
    )


def dataset_of(
    table: Table,
    label_key: str | None,
    client_key: str | None,
    drop: Collection[str],
    features: Callable[[Any, Sequence[int], str], Features],
    *,
    labels_optional: bool = False,
) -> Dataset:
    """The data set of a table, by the rules of `read`.

    Args:
        table: of any format.
        label_key: as of `read`, as are `client_key` and `drop`.
        client_key: see there.
        drop: see there.
        features: table, places of its columns that may be features -> x of both splits.
        labels_optional: as of `jaxfed.data.load`.

    Raises:
        UsageError: as `read`; a test row without a label; all labels are equal.
    """
    path = table.path
    names = table.names
    if labels_optional:
        drop = [name for name in drop if _has(table, name)]
        client_key = client_key if client_key and _has(table, client_key) else None
    label = _place_of_label(table, label_key, labels_optional=labels_optional)
    is_by_file = client_key == BY_FILE and table.rows.are_of_several_files and BY_FILE not in names
    client = None if is_by_file else _place_of_client(table, client_key)
    if label is not None and label == client:
        raise UsageError(f"is the label's column in {path}", key="client_key", value=names[label])
    dropped = {_place(table, "drop", name) for name in drop}
    for place, role in ((label, "label"), (client, "client")):
        if place in dropped:
            raise UsageError(
                f"is the {role}'s column in {path}", key="drop", value=names[place or 0]
            )
    places = [place for place in range(len(names)) if place not in {label, client, *dropped}]
    index = index_columns(names)
    if left_out := [repr(names[place]) for place in places if names[place] in index]:
        places = [place for place in places if names[place] not in index]
        text = "%s: columns that are no features: %s (the index of pandas)"
        logging.warning(text, path, ", ".join(left_out))
    others = [repr(names[place]) for place in places if names[place].lower() in LABELS]
    if others and label is not None:
        logging.warning(
            "%s: column %r is the label, and %s a feature, unless dataset.drop leaves it out",
            path,
            names[label],
            ", ".join(others),
        )
    y, y_test, class_names = _labels(table, label, labels_optional=labels_optional)
    clients: Sequence[np.ndarray | None] = (None, None)
    if client is not None:
        clients = np.split(_clients(table, client), [table.num_train])
    elif is_by_file:
        names_of = table.rows.file_names(table.num_train - table.num_validation)
        clients = (np.append(names_of, [names_of[0]] * table.num_validation), None)
    client_id, client_id_test = client_numbers(*clients)
    if is_by_file and len(y_test):
        client_id_test = None  # a test set for all clients together
    x, x_test, encoder = features(table, places, "" if label is None else names[label])
    return Dataset(
        name=str(path),
        x=x,
        y=y,
        x_test=x_test,
        y_test=y_test,
        num_classes=len(class_names),
        class_names=class_names,
        client_id=client_id,
        client_id_test=client_id_test,
        client_names=client_names(*clients),
        has_gaps=x.dtype.kind == "f" and x.ndim == 2 and has_gaps(x, x_test),
        encoder=encoder,
        labels_optional=labels_optional,
    ).with_validation(table.num_validation)


def _labels(
    table: Table, place: int | None, *, labels_optional: bool
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Classes of both splits, int32 [n], and their names."""
    if place is None:
        where, cells, names = f"{table.path}", [""] * table.num_rows, None
    else:
        where = f"{table.path}: column {table.names[place]!r}"
        if not table.has_header and place == len(table.names) - 1:
            where += ", the last of a file without a header, is the label"
        cells, names = table.labels(place), table.classes(place)
    splits = np.split(np.array(cells, np.str_), [table.num_train])
    train, test = read_labels(splits, where, are_known=names is not None)
    check_test_labels(test, table.path)
    (y, y_test), class_names = class_numbers(
        train.values, test.values, names=names, is_labeled=train.is_labeled
    )
    found = np.unique(y[train.is_labeled])
    if len(found) == 1 and not labels_optional:
        raise UsageError(
            f"{where}: each row with a label is of class {class_names[found[0]]!r}; two classes are needed"
        )
    return y, y_test, class_names


def _clients(table: Table, place: int) -> np.ndarray:
    """str [n], the client of each row."""
    clients = table.column(place)
    for row, client in enumerate(clients):
        if is_nothing(client):
            raise UsageError(
                f"{table.where(place)(row)}: {client!r} names no client; use a name in every row"
            )
    return np.array(clients)


def _place_of_label(table: Table, label_key: str | None, *, labels_optional: bool) -> int | None:
    if label_key is not None:
        if labels_optional and not _has(table, label_key):
            return None
        return _place(table, "label_key", label_key)
    place = _known(table.names, LABELS)
    if place is not None:
        return place
    if not table.has_header:
        return len(table.names) - 1
    if labels_optional:
        return None
    raise UsageError(
        f"no column of {table.path} is named {', '.join(LABELS[:-1])} or {LABELS[-1]}",
        key="label_key",
        allowed=f"name the label's column out of {', '.join(table.names)}",
    )


def _place_of_client(table: Table, client_key: str | None) -> int | None:
    if client_key is not None:
        return _place(table, "client_key", client_key)
    return _known(table.names, CLIENTS)


def _has(table: Table, name: str) -> bool:
    return plain_text(name) in table.names


def _place(table: Table, option: str, name: str) -> int:
    name = plain_text(name)
    if name not in table.names:
        meant = did_you_mean(nearest(name, table.names))
        wrong = f"no such column in {table.path}; the columns are {', '.join(table.names)}{meant}"
        raise UsageError(wrong, key=option, value=name)
    return table.names.index(name)


def _known(names: Sequence[str], wanted: Sequence[str]) -> int | None:
    """Index of the first of the wanted names that exists, or None."""
    small = [name.lower() for name in names]
    return next((small.index(name) for name in wanted if name in small), None)
