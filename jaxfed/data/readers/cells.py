"""Parse a column of a table: numbers with a decimal point, or texts; with or without missing cells.

Other spellings of quantities (1,5 or 1.234,5; 10%; 0x1F; 2024-01-31) are refused: as texts they would become
one feature each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from jaxfed.data.labels import is_nothing
from jaxfed.errors import UsageError

TABLE_ENDINGS = (".csv", ".tsv", ".data", ".csv.gz", ".data.gz")  # of files whose cells are text

_PLAIN = re.compile(r"[-+.0-9eE \n]*")  # a column of such cells is converted at once
_NUMBER = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf(inity)?", re.IGNORECASE
)
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
            "and without groups of digits, dates as numbers of days, or leave the column out (dataset.drop)"
        )
    return None


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
