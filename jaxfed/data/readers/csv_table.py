"""Read a table from a CSV file: each row has an example's features, a label and optionally a client."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from jaxfed.data.dataset import (
    Dataset,
    Encoder,
    class_numbers,
    client_names,
    client_numbers,
    has_gaps,
)
from jaxfed.data.labels import check_test_labels, is_nothing, plain_text, read_labels
from jaxfed.data.mapped_rows import parts
from jaxfed.data.readers.cells import days, is_wide, may_be_wide, quantities
from jaxfed.data.readers.tables.csv_files import read_files
from jaxfed.data.readers.tables.encoder import Column, TableEncoder
from jaxfed.data.readers.tables.interface import (
    BY_FILE,
    CLIENTS,
    LABELS,
    Table,
    index_columns,
    may_number_rows,
)
from jaxfed.data.readers.tables.splits import Splits
from jaxfed.errors import UsageError, did_you_mean, nearest

_MOST_TEXTS = 100  # of a column that becomes features
_COLUMNS = 16  # read at a time

Features = tuple[np.ndarray, np.ndarray, Encoder | None]  # x of both splits; encodes other rows


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
        clients = (table.rows.file_names(table.num_train), None)
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
    )


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


def features_of(table: Table, places: Sequence[int], label: str) -> Features:
    """float32 [n, d] of both splits, NaN where a cell is missing, and the encoder of other rows.

    Args:
        table: of any format.
        places: of the columns that may be features.
        label: name of the label's column.
    """
    numeric = {p for p in places if p in table.numeric and not may_number_rows(table.names[p])}
    with_values = _with_values(table, numeric)
    columns: list[Column] = []
    width = 0
    firsts: dict[int, int] = {}  # of a numeric column, its first feature
    others: list[
        tuple[int, np.ndarray, bool]
    ] = []  # first feature; numbers, or those of texts; dates?
    encoded: list[str] = []
    left_out: list[str] = []
    repeated: list[str] = []
    for place in places:
        name = table.names[place]
        if place in with_values:
            firsts[place] = width
            columns.append(Column(name, entries=sum(table.numeric[place])))
            width += len(columns[-1].names)
            continue
        cells = [] if place in numeric else table.column(place)
        if all(map(is_nothing, cells)):
            left_out.append(f"{name!r} (no value)")
            continue
        if _numbers_rows(name, cells[: table.num_train]):
            left_out.append(f"{name!r} (numbers the rows)")
            continue
        if may_number_rows(name):
            repeated.append(repr(name))
        column = Column(name, classes=tuple(map(plain_text, table.classes(place) or ())))
        values = days(cells)
        column = replace(column, are_dates=values is not None)
        if values is None:
            values = quantities(cells, table.where(place))
        if values is None:
            kinds, values = _kinds(table, place, cells)
            column = replace(
                column, texts=tuple(kinds), codes=tuple(range(len(kinds))), width=len(kinds)
            )
            encoded.append(f"{name} ({len(kinds)})")
        others.append((width, values, column.are_dates))
        columns.append(column)
        width += len(column.names)
    if left_out:
        logging.warning("%s: columns that are no features: %s", table.path, ", ".join(left_out))
    if repeated:
        logging.warning(
            "%s: features, because they have the same value in several rows: %s; dataset.drop leaves such a "
            "column out",
            table.path,
            ", ".join(repeated),
        )
    if encoded:
        logging.warning(
            "%s: columns of text become one feature a text (0 or 1): %s",
            table.path,
            ", ".join(encoded),
        )
    if not width:
        raise UsageError(f"{table.path}: none of the columns {', '.join(table.names)} is a feature")
    x, wide = _filled(table, width, firsts, others)
    ends = np.cumsum([len(column.names) for column in columns])
    for place in set(np.searchsorted(ends, sorted(wide), side="right").tolist()):
        columns[place] = replace(columns[place], is_wide=True)
    encoder = TableEncoder(tuple(columns), tuple(table.names), label, table.delimiter)
    return x[: table.num_train], x[table.num_train :], encoder


def _with_values(table: Table, places: set[int]) -> set[int]:
    """The numeric columns that have a value."""
    found: set[int] = set()
    for group in _groups(sorted(places)):
        for batch in table.batches(group):
            found |= {place for place in group if not np.isnan(batch[place]).all()}
            if found.issuperset(group):
                break
    return found


def _groups(places: Sequence[int]) -> Iterator[Sequence[int]]:
    """Some columns at a time: of each, a Parquet file has a page or two in memory."""
    return (places[first : first + _COLUMNS] for first in range(0, len(places), _COLUMNS))


def _filled(
    table: Table,
    width: int,
    firsts: Mapping[int, int],
    others: Sequence[tuple[int, np.ndarray, bool]],
) -> tuple[np.ndarray, set[int]]:
    """x of all rows, and the columns that need float64; rows with a missing value are counted in a line."""
    x = np.zeros((table.num_rows, width), np.float32)
    exact: dict[
        int, list[tuple[int, np.ndarray]]
    ] = {}  # of a column, first rows and values in float64

    def fill(start: int, column: int, values: np.ndarray, *, are_dates: bool = False) -> None:
        x[start : start + len(values), column] = values
        if are_dates or may_be_wide(values):
            exact.setdefault(column, []).append((start, values))

    with np.errstate(over="ignore"):  # to inf, which Dataset refuses
        for first, values, are_dates in others:
            if values.dtype == np.uint8:
                for text in range(int(values.max()) + 1):
                    x[:, first + text] = values == text
            else:
                fill(0, first, values, are_dates=are_dates)
        for group in _groups(list(firsts)):
            start = 0
            for batch in table.batches(group):
                for place in group:
                    values = batch[place].reshape(len(batch[place]), -1)
                    for entry in range(values.shape[1]):
                        fill(start, firsts[place] + entry, values[:, entry])
                start += len(values)
    wide: dict[int, np.ndarray] = {}
    for column, parts_of in exact.items():
        values = x[:, column].astype(np.float64)
        for start, part in parts_of:
            values[start : start + len(part)] = part
        if is_wide(values):
            wide[column] = values
    if wide:
        x = x.astype(np.float64)
        for column, values in wide.items():
            x[:, column] = values
    num_gaps = sum(int(np.isnan(part).any(axis=1).sum()) for part in parts(x))
    if num_gaps:
        logging.warning(
            "%s: %d of %d rows miss a value: it becomes the median of the training rows, and each column "
            "with gaps gets an indicator beside it",
            table.path,
            num_gaps,
            len(x),
        )
    return x, set(wide)


def _numbers_rows(name: str, cells: Sequence[str]) -> bool:
    """True for a row identifier: a name such as id, or none, and distinct values."""
    return may_number_rows(name) and len(set(cells)) == len(cells)


def _kinds(table: Table, place: int, cells: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """The column's texts, sorted, and the place of each cell's among them, uint8 [n].

    All spellings of a missing value are one text, the first of them.
    """
    found = set(cells)
    missing = sorted(filter(is_nothing, found))
    kinds = sorted(found.difference(missing[1:]))
    if len(missing) > 1:
        logging.warning(
            "%s: column %r: %s are one text, for a missing value",
            table.path,
            table.names[place],
            ", ".join(map(repr, missing)),
        )
    if len(kinds) > _MOST_TEXTS:
        raise UsageError(
            f"{table.path}: column {table.names[place]!r} has {len(kinds)} different texts; up to "
            f"{_MOST_TEXTS} become features: leave the column out (dataset.drop), or make numbers of it"
        )
    number = {kind: place for place, kind in enumerate(kinds)}
    for other in missing[1:]:
        number[other] = number[missing[0]]
    return kinds, np.fromiter((number[cell] for cell in cells), np.uint8, len(cells))
