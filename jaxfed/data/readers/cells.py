"""Parse a column of a table: numbers with a decimal point, or texts; with or without missing cells.

Dates of ISO 8601 (2024-01-31, 2024-01-31T12:00) are days. Other spellings of quantities (1,5 or 1.234,5; 10%;
0x1F; 31.01.2024) are refused: as texts they would become one feature each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np

from jaxfed.data.labels import is_nothing
from jaxfed.errors import UsageError

TABLE_ENDINGS = (".csv", ".tsv", ".data", ".csv.gz", ".data.gz")  # of files whose cells are text

_PLAIN = re.compile(r"[-+.0-9eE \n]*")  # a column of such cells is converted at once
_NUMBER = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf(inity)?", re.IGNORECASE
)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([ t][0-9].*)?", re.IGNORECASE)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT = 2**24  # float32 has all whole numbers up to here
_OTHER_SPELLING = re.compile(  # decimal commas and groups of digits, shares, hexadecimals, dates
    r"[+-]?[0-9][0-9.]*,[0-9.,]*|[+-]?[0-9.,]+ ?%|[+-]?0x[0-9a-f]+"
    r"|[0-9]{1,4}[-./][0-9]{1,2}[-./][0-9]{1,4}([ t].*)?",
    re.IGNORECASE,
)


def quantities(cells: Sequence[str], place: Callable[[int], str]) -> np.ndarray | None:
    """float64 [n] of a column of numbers, NaN where a cell is missing; None for texts.

    Args:
        cells: without surrounding spaces.
        place: a row's number -> its location in words, the beginning of errors.

    Raises:
        UsageError: a text among numbers, or quantities that are not written as numbers.
    """
    found = numbers(cells)
    if found is not None:
        return found
    rows = [row for row, cell in enumerate(cells) if not is_nothing(cell)]
    odd = [row for row in rows if not _NUMBER.fullmatch(cells[row])]
    if len(odd) < len(rows):
        raise UsageError(
            f"{place(odd[0])}: {cells[odd[0]]!r} is not a number, others of the column are; correct "
            "it, or leave the row or the column (dataset.drop) out"
        )
    if all(is_a_quantity(cells[row]) for row in odd):
        raise UsageError(
            f"{place(odd[0])}: {cells[odd[0]]!r} is not a number; write numbers with a decimal point "
            "and without groups of digits, dates as 2024-01-31, or leave the column out (dataset.drop)"
        )
    return None


def days(cells: Sequence[str]) -> np.ndarray | None:
    """float64 [n] of a column of dates, days since 1970, NaN where a cell is missing; else None."""
    rows = [row for row, cell in enumerate(cells) if not is_nothing(cell)]
    if not rows or not all(_DATE.fullmatch(cells[row]) for row in rows):
        return None
    found = np.full(len(cells), np.nan)
    for row in rows:
        try:
            time = datetime.fromisoformat(cells[row])
        except ValueError:
            return None
        found[row] = (time.replace(tzinfo=time.tzinfo or UTC) - _EPOCH) / timedelta(days=1)
    return found


def may_be_wide(values: np.ndarray) -> bool:
    """True if float32 may not have all whole numbers among these values."""
    return bool(np.abs(values[np.isfinite(values)]).max(initial=0) > _EXACT)


def is_wide(values: np.ndarray) -> bool:
    """True if different values become one in float32, float64 [n]."""
    known = np.unique(values[np.isfinite(values)])
    with np.errstate(over="ignore"):  # to inf, which Dataset refuses
        rounded = np.unique(known.astype(np.float32))
    return bool(len(rounded) < len(known) and np.isfinite(rounded).all())


def numbers(cells: Sequence[str]) -> np.ndarray | None:
    """float64 [n], NaN where a cell is missing; None if any cell is not written as a number."""
    if _PLAIN.fullmatch("\n".join(cells)) and "" not in cells:
        try:
            return np.array(cells, np.float64)
        except ValueError:
            pass
    rows = [row for row, cell in enumerate(cells) if not is_nothing(cell)]
    if not all(_NUMBER.fullmatch(cells[row]) for row in rows):
        return None
    found = np.full(len(cells), np.nan)
    found[rows] = [float(cells[row]) for row in rows]
    return found


def is_a_quantity(cell: str) -> bool:
    """True if the cell alone may be a number, a share or a date."""
    return bool(_NUMBER.fullmatch(cell) or _OTHER_SPELLING.fullmatch(cell))
