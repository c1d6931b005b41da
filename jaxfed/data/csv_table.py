"""A table in a CSV file: one example a row, its features, a label, perhaps a client."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import logging

from jaxfed.data.dataset import Dataset, class_numbers, client_numbers
from jaxfed.errors import UsageError, did_you_mean, nearest

_LABELS = ("label", "class", "target", "y")
_CLIENTS = ("client_id", "client", "writer")
_INTEGER = re.compile("-?[0-9]{1,18}")  # of 64 bits; labels of other forms are names
_MOST_TEXTS = 100  # of a column that becomes features


class _Table(NamedTuple):
    """The cells as text; each row is as long as `names`."""

    names: list[str]
    rows: list[list[str]]
    has_header: bool

    def column(self, place: int) -> list[str]:
        """The cells of one column."""
        return [row[place].strip() for row in self.rows]

    def line(self, row: int) -> int:
        """A row's number in the file, from 1."""
        return row + 1 + self.has_header


def read(path: Path, label_key: str | None = None, client_key: str | None = None) -> Dataset:
    """Read a CSV file, plain or gzipped, its delimiter found out (`,`, `;`, tab or `|`).

    A first line in which no feature is a number, or which names the label as below, is a header.

    The label is the column `label_key`; without one that named label, class, target or y (in small or
    capital letters) or, where there is no header, the last. A row whose label is empty or `nan` is unlabeled.
    The column `client_key`, without one that named client_id, client or writer, gives natural clients.

    All other columns are features. A column of texts becomes a feature for each of them, 1 where a row has
    it and 0 elsewhere, in the order of the sorted texts; one line of the log says so. More than 100
    texts, or texts among numbers, are refused.

    Raises:
        UsageError: names the column and line that is no number, a line of another length, or the columns
            where the label is none of them.
    """
    table = _table(path, label_key)
    names = table.names
    label = _place_of_label(path, table, label_key)
    client = _place_of_client(path, table, client_key)
    if label == client:
        raise UsageError(f"{path}: client_key={names[label]!r} is the label's column")
    features = [place for place in range(len(names)) if place not in (label, client)]
    if not features:
        raise UsageError(f"{path}: columns {', '.join(names)}, but none of them is a feature")
    x = _features(path, table, features)
    labels = np.array(table.column(label))
    is_labeled = np.array([cell.lower() not in ("", "nan") for cell in labels])
    if all(map(_INTEGER.fullmatch, labels[is_labeled])):
        labels = np.where(is_labeled, labels, "0").astype(np.int64)
    (y, nothing), class_names = class_numbers(labels, labels[:0], is_labeled=is_labeled)
    clients = None if client is None else np.array(table.column(client))
    client_id, client_id_test = client_numbers(clients, None)
    return Dataset(
        name=str(path),
        x=x,
        y=y,
        x_test=x[:0],
        y_test=nothing,
        num_classes=len(class_names),
        class_names=class_names,
        client_id=client_id,
        client_id_test=client_id_test,
    )


def _table(path: Path, label_key: str | None) -> _Table:
    lines = lines_of(path)
    if len(lines) < 2:
        raise UsageError(f"{path}: {len(lines)} lines, but a table of two or more is needed")
    has_header = _is_header(lines, label_key)
    rows = lines[1:] if has_header else lines
    width = len(lines[0])
    for number, row in enumerate(lines, start=1):
        if len(row) != width:
            raise UsageError(f"{path}: line {number} has {len(row)} columns, others have {width}")
    names = [cell.strip() for cell in lines[0]] if has_header else list(map(str, range(width)))
    if "" in names:
        raise UsageError(
            f"{path}: column {names.index('') + 1} has no name in the header; name it, or leave it out "
            "(pandas writes its index so, but for to_csv(..., index=False))"
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"{path}: {twice!r} stands twice in the first line, which is taken for a header; give every "
            "column a name of its own"
        )
    return _Table(names, rows, has_header)


def _is_header(lines: Sequence[Sequence[str]], label_key: str | None) -> bool:
    first = [cell.strip() for cell in lines[0]]
    if not any(map(_is_number, first[:-1])):
        return True
    # Columns may have numbers for names (pandas' own): then the label's name tells, where no row has it.
    return any(
        (cell == label_key or cell.lower() in _LABELS)
        and not any(cell in map(str.strip, line) for line in lines[1:])
        for cell in first
        if not _is_number(cell)
    )


def _place_of_label(path: Path, table: _Table, label_key: str | None) -> int:
    if label_key is not None:
        return _place(path, table, "label_key", label_key)
    place = _known(table.names, _LABELS)
    if place is not None:
        return place
    if not table.has_header:
        return len(table.names) - 1
    raise UsageError(
        f"{path}: no column is named {', '.join(_LABELS[:-1])} or {_LABELS[-1]}; label_key=COLUMN says "
        f"which one is the label, out of {', '.join(table.names)}"
    )


def _place_of_client(path: Path, table: _Table, client_key: str | None) -> int | None:
    if client_key is not None:
        return _place(path, table, "client_key", client_key)
    return _known(table.names, _CLIENTS)


def _place(path: Path, table: _Table, option: str, name: str) -> int:
    if name not in table.names:
        meant = did_you_mean(nearest(name, table.names))
        raise UsageError(
            f"{path}: {option}={name!r}: the columns are {', '.join(table.names)}{meant}"
        )
    return table.names.index(name)


def _known(names: Sequence[str], wanted: Sequence[str]) -> int | None:
    """The place of the first of the wanted names that there is."""
    small = [name.lower() for name in names]
    return next((small.index(name) for name in wanted if name in small), None)


def _features(path: Path, table: _Table, places: Sequence[int]) -> np.ndarray:
    """float32 [n, d]"""
    columns: list[np.ndarray] = []
    encoded: list[str] = []
    for place in places:
        cells, name = table.column(place), table.names[place]
        texts = [row for row, cell in enumerate(cells) if not _is_number(cell)]
        if not texts:
            with np.errstate(over="ignore"):  # to inf, which Dataset refuses
                columns.append(np.array(cells, np.float64).astype(np.float32)[:, None])
            continue
        if len(texts) < len(cells):
            raise UsageError(
                f"{path}: column {name!r}, line {table.line(texts[0])}: {cells[texts[0]]!r} is not a number, "
                "others of the column are; fill one in, or leave the row or the column out"
            )
        kinds, numbers = np.unique(cells, return_inverse=True)
        if len(kinds) > _MOST_TEXTS:
            raise UsageError(
                f"{path}: column {name!r} has {len(kinds)} different texts; up to {_MOST_TEXTS} become "
                "features: leave the column out, or make numbers of it"
            )
        columns.append(np.eye(len(kinds), dtype=np.float32)[numbers])
        encoded.append(f"{name} ({len(kinds)})")
    if encoded:
        logging.warning(
            "%s: columns of text become one feature a text (0 or 1): %s", path, ", ".join(encoded)
        )
    return np.concatenate(columns, axis=1)


def lines_of(path: Path, delimiter: str | None = None) -> list[list[str]]:
    """The cells of each line that is not empty; the delimiter is found out by the first, or given.

    Raises:
        UsageError: not such a file.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", newline="", encoding="utf-8-sig") as file:
            if delimiter is None:
                delimiter = max(",;\t|", key=file.readline().count)
                file.seek(0)
            return [row for row in csv.reader(file, delimiter=delimiter) if row]
    except (UnicodeDecodeError, csv.Error, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(f"{path}: not a CSV file ({error})") from error


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
