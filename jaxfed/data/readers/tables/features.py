"""Features of a table, whatever its format: numbers, dates, and texts one-hot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from absl import logging

from jaxfed.data.dataset import Encoder
from jaxfed.data.labels import is_nothing, plain_text
from jaxfed.data.mapped_rows import parts
from jaxfed.data.readers.cells import days, is_wide, may_be_wide, quantities
from jaxfed.data.readers.tables.encoder import Column, TableEncoder
from jaxfed.data.readers.tables.interface import Table, may_number_rows
from jaxfed.errors import UsageError

_MOST_TEXTS = 100  # of a column that becomes features
_COLUMNS = 16  # read at a time

Features = tuple[np.ndarray, np.ndarray, Encoder | None]  # x of both splits; encodes other rows


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
    # Per other column: its first feature, its numbers or text codes, True for dates.
    others: list[tuple[int, np.ndarray, bool]] = []
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
        if _numbers_rows(name, cells[: table.num_train - table.num_validation]):
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
    """Yield a few columns at a time; a Parquet file has a page or two of each in memory."""
    return (places[first : first + _COLUMNS] for first in range(0, len(places), _COLUMNS))


def _filled(
    table: Table,
    width: int,
    firsts: Mapping[int, int],
    others: Sequence[tuple[int, np.ndarray, bool]],
) -> tuple[np.ndarray, set[int]]:
    """x of all rows, and the columns that need float64; rows with a missing value are counted in a line."""
    x = np.zeros((table.num_rows, width), np.float32)
    exact: dict[int, list[tuple[int, np.ndarray]]] = {}  # column -> first row, float64 values

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
