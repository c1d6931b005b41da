"""Rows of a table as examples, encoded with the columns and texts of the table that was read."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import numpy as np

from jaxfed.data.labels import is_nothing, plain_text
from jaxfed.data.readers.cells import days, numbers
from jaxfed.data.readers.table_files import NO_NAME
from jaxfed.errors import UsageError, did_you_mean, nearest

_MOST_NUMBERS = 2**20  # of a row
_INDEX = re.compile(  # names of the index as pandas writes it, to Parquet or CSV, by reset_index or read anew
    r"__index_level_[0-9]+__|index|level_0|unnamed: 0([._][0-9]+)*", re.IGNORECASE
)


def index_columns(names: Sequence[str]) -> list[str]:
    """Names of the columns that are the index of a pandas.DataFrame, and never features.

    A first column without a name is one; so are level_1 and further ones beside level_0.
    """
    levels = r"level_[0-9]+" if "level_0" in names else r"level_0"
    found = [name for name in names if _INDEX.fullmatch(name) or re.fullmatch(levels, name)]
    return found + [NO_NAME] * (names[:1] == [NO_NAME])


@dataclass(frozen=True)
class Column:
    """A column of features: numbers, lists of numbers, or texts that have codes.

    Attributes:
        name: in the header, or its number from 0 on in a table without one.
        texts: that occurred; () for a column of numbers.
        codes: integers, one a text.
        width: 0: a text becomes its code; else as many numbers, 1 at the code and 0 elsewhere.
        other: code of all other texts; -1: they are refused.
        replaced: pairs of a number and the one that takes its place.
        entries: numbers in each list; 0: a cell is one number or text.
        classes: names that stand for the numbers 0, 1, ... in the file; () if it has none.
        are_dates: cells are dates, which become days.
        is_wide: numbers are of 64 bits, since float32 makes some of the training data's equal.
    """

    name: str
    texts: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    width: int = 0
    other: int = -1
    replaced: tuple[tuple[float, float], ...] = ()
    entries: int = 0
    classes: tuple[str, ...] = ()
    are_dates: bool = False
    is_wide: bool = False

    @property
    def names(self) -> list[str]:
        """Names of the column's numbers: NAME=TEXT for texts that have one each, NAME[0] ... of lists."""
        if self.entries:
            return [f"{self.name}[{entry}]" for entry in range(self.entries)]
        if not self.width:
            return [self.name]
        of_code: dict[int, list[str]] = {code: [] for code in range(self.width)}
        for text, code in zip(self.texts, self.codes, strict=True):
            of_code[code].append(text)
        return [f"{self.name}={' or '.join(texts)}" for texts in of_code.values()]

    def cells(self, row: int, value: Any) -> list[str]:
        """Return a row's value as the texts that the reader of a file has: one, or one an entry of a list.

        Raises:
            UsageError: no list, or one of another length.
        """
        if not self.entries:
            return [_text(value, self.classes)]
        is_list = isinstance(value, list | tuple | np.ndarray)
        if not is_list and is_nothing(_text(value)):
            return [""] * self.entries
        if not is_list or len(value) != self.entries:
            found = f"a list of {len(value)}" if is_list else repr(value)
            raise UsageError(
                f"row {row}: column {self.name!r} has {found}; give a list of {self.entries} numbers"
            )
        return list(map(_text, value))

    def encoded(self, cells: Sequence[str]) -> np.ndarray:
        """Return numbers [n, 1, width or entries] of the rows' cells, NaN where one is missing.

        Raises:
            UsageError: a text where a number belongs, or one that the training data do not have.
        """
        if self.texts:
            codes = np.array([self._code(row, cell) for row, cell in enumerate(cells)], np.int64)
            return np.eye(self.width)[codes] if self.width else codes[:, None].astype(np.float64)
        values = self._numbers(cells)
        if values is None:
            wrong = (place for place, cell in enumerate(cells) if self._numbers([cell]) is None)
            place = next(wrong)
            wanted = "date, such as 2024-01-31" if self.are_dates else "finite number"
            raise UsageError(
                f"row {place // max(1, self.entries)}: column {self.name!r} has {cells[place]!r}; give a "
                f"{wanted}"
            )
        for old, new in self.replaced:
            values[values == old] = new
        values = values if self.is_wide else values.astype(np.float32)
        return values.reshape(-1, max(1, self.entries))

    def _numbers(self, cells: Sequence[str]) -> np.ndarray | None:
        """float64 [n], NaN where a cell is missing; None if one is no number, or none that float32 has."""
        if self.are_dates and not all(map(is_nothing, cells)):
            return days(cells)
        values = numbers(cells)
        with np.errstate(over="ignore"):
            is_beyond = values is not None and np.isinf(values.astype(np.float32)).any()
        return None if is_beyond else values

    def _code(self, row: int, cell: str) -> int:
        if cell in self.texts:
            return self.codes[self.texts.index(cell)]
        # Written in another way: true and FALSE, as pandas reads them, or missing.
        is_truth = cell in ("True", "False")
        alike = [
            code
            for text, code in zip(self.texts, self.codes, strict=True)
            if (is_truth and text.casefold() == cell.casefold())
            or (is_nothing(cell) and is_nothing(text))
        ]
        if len(alike) == 1:
            return alike[0]
        if self.other >= 0:
            return self.other
        meant = did_you_mean(nearest(cell, self.texts))
        known = ", ".join(map(repr, self.texts))
        raise UsageError(
            f"row {row}: column {self.name!r} has {cell!r}, which is not in the training data"
            f"{meant or f'; choose one of {known}'}"
        )


@dataclass(frozen=True)
class TableEncoder:
    """Encoder of rows of a table.

    Attributes:
        columns: of features, in the order of their numbers.
        line: names of all columns of the file, in order.
        label: name of the label's column.
        delimiter: of a line of text.
    """

    columns: tuple[Column, ...]
    line: tuple[str, ...]
    label: str = ""
    delimiter: str = ","

    def __post_init__(self) -> None:
        """Refuse columns that no file has."""
        for column in self.columns:
            codes = (*column.codes, max(column.other, 0))
            if (
                min(column.width, column.entries, *codes, column.other + 1) < 0
                or len(column.codes) != len(column.texts)
                or (column.width and max(codes) >= column.width)
            ):
                raise ValueError(f"column {column.name!r} has impossible codes")
        if sum(max(column.width, column.entries, 1) for column in self.columns) > _MOST_NUMBERS:
            raise ValueError(f"more than {_MOST_NUMBERS} numbers in a row")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of an example's numbers."""
        return tuple(name for column in self.columns for name in column.names)

    @property
    def accepts(self) -> str:
        """The kinds of rows in words."""
        return (
            "a dict, a list of dicts, a pandas.DataFrame, or lines of text, of the columns "
            f"{', '.join(column.name for column in self.columns)}"
        )

    def __call__(self, rows: Any) -> np.ndarray:
        """Return [n, d] of the data set's type, NaN where a number is missing."""
        table = self._cells(rows)
        parts = [column.encoded(cells) for column, cells in zip(self.columns, table, strict=True)]
        return np.concatenate(parts, axis=1).astype(self.blank().dtype, copy=False)

    def blank(self) -> np.ndarray:
        """Return no rows, float32 [0, d], or float64 if a column is wide."""
        is_wide = any(column.is_wide for column in self.columns)
        return np.zeros((0, len(self.names)), np.float64 if is_wide else np.float32)

    def described(self) -> dict[str, Any]:
        """Return the attributes."""
        return {"kind": "table", **asdict(self)}

    def _cells(self, rows: Any) -> list[list[str]]:
        """Texts of each column of features, `Column.cells` of all rows."""
        if isinstance(rows, str):
            lines = csv.reader(io.StringIO(rows), delimiter=self.delimiter)
            rows = [line for line in lines if line]
        elif hasattr(rows, "to_dict"):  # pandas: a frame or one row
            rows = rows.to_dict("records") if getattr(rows, "ndim", 1) == 2 else rows.to_dict()
        if isinstance(rows, Mapping):
            rows = [rows]
        if isinstance(rows, bytes) or not isinstance(rows, Iterable):
            raise UsageError(f"rows are a {type(rows).__name__}; give {self.accepts}")
        found = [self._row(number, row) for number, row in enumerate(rows)]
        return [
            [cell for row in found for cell in row[place]] for place in range(len(self.columns))
        ]

    def _row(self, number: int, row: Any) -> list[list[str]]:
        if isinstance(row, str):
            lines = list(csv.reader([row], delimiter=self.delimiter))
            row = lines[0] if lines else []
        wanted = [column.name for column in self.columns]
        if not isinstance(row, Mapping):
            if not isinstance(row, Iterable):
                raise UsageError(f"row {number} is {row!r}; give {self.accepts}")
            row = self._named(number, list(row), wanted)
        given = {plain_text(str(name)) or NO_NAME: value for name, value in row.items()}
        others = [name for name in given if name not in self.line]
        unknown = [name for name in others if name not in index_columns(list(given))]
        for name in wanted:
            if name not in given:
                near = "".join(f" (there is {found!r})" for found in nearest(name, unknown))
                raise UsageError(
                    f"row {number}: lacks column {name!r}{near}; give None where the value is missing"
                )
        if unknown:
            raise UsageError(
                f"row {number}: {unknown[0]!r} is no column of the training data; they are "
                f"{', '.join(self.line)}"
            )
        return [column.cells(number, given[column.name]) for column in self.columns]

    def _named(self, number: int, cells: list[Any], wanted: list[str]) -> dict[str, Any]:
        """Cells by their columns: all of the file, all but the label, or those of features."""
        unlabeled = [name for name in self.line if name != self.label]
        for names in (list(self.line), unlabeled, wanted):
            if len(names) == len(cells):
                return dict(zip(names, cells, strict=True))
        raise UsageError(
            f"row {number} has {len(cells)} cells; give {len(self.line)} ({', '.join(self.line)}), or "
            f"leave out {self.label or 'the label'!r}"
        )


def _text(value: Any, classes: Sequence[str] = ()) -> str:
    """A cell as the reader of a file has it; a whole number becomes the name of its class."""
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]")  # of nanoseconds item() would be an integer
    if isinstance(value, np.generic):
        value = value.item()  # of all its digits: 0.1 of float16 is 0.0999...
    is_missing = isinstance(value, float | datetime) and value != value
    if value is None or is_missing:
        return ""
    if classes and isinstance(value, int | float) and value in range(len(classes)):
        return classes[int(value)]
    return plain_text(str(value))
