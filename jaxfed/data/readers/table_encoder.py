"""Columns of a table: how their cells become numbers, when a file is read and when other rows are encoded.

Numbers have a decimal point. Dates of ISO 8601 (2024-01-31, 2024-01-31T12:00) are days.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from jaxfed.data.given_examples import is_nothing, plain_text
from jaxfed.errors import UsageError, did_you_mean, nearest

NO_NAME = "(no name)"
LABELS = ("label", "class", "target", "y")
_EXACT = 2**24  # float32 has all whole numbers up to here
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf(inity)?", re.IGNORECASE
)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([ t][0-9].*)?", re.IGNORECASE)
_INDEX = re.compile(  # names of the index as pandas writes it, to Parquet or CSV, by reset_index or read anew
    r"__index_level_[0-9]+__|index|level_[0-9]+|unnamed: 0([._][0-9]+)*", re.IGNORECASE
)


def is_index(name: str, *, first: bool) -> bool:
    """True for the index of a pandas.DataFrame, which is no feature; also a first column without a name."""
    return _INDEX.fullmatch(name) is not None or (first and name == NO_NAME)


def numbers(cells: Sequence[str]) -> np.ndarray | None:
    """float64 [n], NaN where a cell is missing; None if any cell is not written as a number."""
    found = np.full(len(cells), np.nan)
    for row, cell in enumerate(cells):
        if _NUMBER.fullmatch(cell):
            found[row] = float(cell)
        elif not is_nothing(cell):
            return None
    return found


def days(cells: Sequence[str]) -> np.ndarray | None:
    """float64 [n] of a column of dates, days since 1970, NaN where a cell is missing; else None."""
    known = dict.fromkeys(set(cells), np.nan)
    dates = [cell for cell in known if not is_nothing(cell)]
    if not dates or not all(map(_DATE.fullmatch, dates)):
        return None
    for cell in dates:
        try:
            time = datetime.fromisoformat(cell)
        except ValueError:
            return None
        known[cell] = (time.replace(tzinfo=time.tzinfo or UTC) - _EPOCH) / timedelta(days=1)
    return np.array([known[cell] for cell in cells])


def is_wide(values: np.ndarray, beyond: float = _EXACT) -> bool:
    """True if different values, some of them larger than `beyond`, become one in float32; float64 [n]."""
    known = values[np.isfinite(values)]
    if not np.abs(known).max(initial=0) > beyond:
        return False
    known = np.unique(known)
    with np.errstate(over="ignore"):  # to inf, which Dataset refuses
        rounded = np.unique(known.astype(np.float32))
    return bool(len(rounded) < len(known) and np.isfinite(rounded).all())


@dataclass(frozen=True)
class Column:
    """A column of features: numbers, or texts, each of which is a number 0 or 1.

    Attributes:
        name: in the header.
        texts: that occurred, in the order of their numbers; () for a column of numbers.
        are_dates: cells are dates, which become days.
        is_wide: numbers are of 64 bits, since float32 makes some of the training data's equal.
    """

    name: str
    texts: tuple[str, ...] = ()
    are_dates: bool = False
    is_wide: bool = False

    @property
    def names(self) -> list[str]:
        """Names of the column's numbers: NAME=TEXT for texts that have one each."""
        return [f"{self.name}={text}" for text in self.texts] or [self.name]

    def encoded(self, cells: Sequence[str]) -> np.ndarray:
        """Return numbers [n, 1 or more] of the rows' cells, NaN where one is missing."""
        if self.texts:
            known = {cell: self._place(cells.index(cell), cell) for cell in dict.fromkeys(cells)}
            return np.eye(len(self.texts), dtype=bool)[[known[cell] for cell in cells]]
        values = self._numbers(cells)
        if values is None:
            place = next(i for i, cell in enumerate(cells) if self._numbers([cell]) is None)
            wanted = "date, such as 2024-01-31" if self.are_dates else "finite number"
            wrong = f"column {self.name!r} has {cells[place]!r}; give a {wanted}"
            raise UsageError(f"row {place}: {wrong}")
        return (values if self.is_wide else values.astype(np.float32))[:, None]

    def _numbers(self, cells: Sequence[str]) -> np.ndarray | None:
        """float64 [n], NaN where a cell is missing; None if one is no number, or none that float32 has."""
        if self.are_dates and not all(map(is_nothing, cells)):
            return days(cells)
        values = numbers(cells)
        with np.errstate(over="ignore"):
            is_beyond = values is not None and np.isinf(values.astype(np.float32)).any()
        return None if is_beyond else values

    def _place(self, row: int, cell: str) -> int:
        """The place of a text, also in another spelling: true and FALSE, as pandas reads them, or missing."""
        if cell in self.texts:
            return self.texts.index(cell)
        same = is_nothing if is_nothing(cell) else lambda text: text.casefold() == cell.casefold()
        alike = [place for place, text in enumerate(self.texts) if same(text)]
        if len(alike) == 1 and (is_nothing(cell) or cell in ("True", "False")):
            return alike[0]
        meant = did_you_mean(nearest(cell, self.texts))
        known = meant or f"; choose one of {', '.join(map(repr, self.texts))}"
        wrong = f"column {self.name!r} has {cell!r}, which is not in the training data{known}"
        raise UsageError(f"row {row}: {wrong}")


@dataclass(frozen=True)
class TableEncoder:
    """Encoder of rows of a table.

    Attributes:
        columns: of features, in the order of their numbers.
        line: names of all columns of the file, in order.
    """

    columns: tuple[Column, ...]
    line: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of an example's numbers."""
        return tuple(name for column in self.columns for name in column.names)

    @property
    def accepts(self) -> str:
        """The kinds of rows in words."""
        names = ", ".join(column.name for column in self.columns)
        return f"a dict, a list of dicts or a pandas.DataFrame of the columns {names}"

    def __call__(self, rows: Any) -> np.ndarray:
        """Return [n, d] of the data set's type, NaN where a number is missing."""
        if hasattr(rows, "to_dict"):  # pandas: a frame or one row
            rows = rows.to_dict("records") if getattr(rows, "ndim", 1) == 2 else rows.to_dict()
        if isinstance(rows, Mapping):
            rows = [rows]
        rows = list(rows) if isinstance(rows, Iterable) else [rows]
        found = [self._row(number, row) for number, row in enumerate(rows)]
        parts = [
            column.encoded([row[place] for row in found])
            for place, column in enumerate(self.columns)
        ]
        return np.concatenate(parts, axis=1).astype(self.blank().dtype, copy=False)

    def blank(self) -> np.ndarray:
        """Return no rows, float32 [0, d], or float64 if a column is wide."""
        is_any_wide = any(column.is_wide for column in self.columns)
        return np.zeros((0, len(self.names)), np.float64 if is_any_wide else np.float32)

    def _row(self, number: int, row: Any) -> list[str]:
        """The row's cells in the columns of features, as the reader of a file has them."""
        if not isinstance(row, Mapping):
            raise UsageError(f"row {number} is {row!r}; give {self.accepts}")
        wanted = [column.name for column in self.columns]
        given = {plain_text(str(name)) or NO_NAME: value for name, value in row.items()}
        indexes = (name for i, name in enumerate(given) if is_index(name, first=i == 0))
        known = {*self.line, *indexes}
        unknown = [name for name in given if name not in known]
        lacking = [name for name in wanted if name not in given]
        if lacking or unknown:
            wrong = f"has no column {lacking[0]!r}" if lacking else ""
            wrong = wrong or f"{unknown[0]!r} is no column of the training data"
            near = did_you_mean(nearest(lacking[0], unknown) if lacking else ())
            allowed = f"give {', '.join(wanted)}, None where a value is missing"
            raise UsageError(f"row {number}: {wrong}{near}; {allowed}")
        return [_text(given[name]) for name in wanted]


def _text(value: Any) -> str:
    """A cell as the reader of a file has it."""
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]")  # of nanoseconds item() would be an integer
    if isinstance(value, np.generic):
        value = value.item()  # of all its digits: 0.1 of float16 is 0.0999...
    is_missing = isinstance(value, float | datetime) and value != value
    if value is None or is_missing:
        return ""
    return plain_text(str(value))
