"""Parse a column of a table: numbers, shares, dates, or texts; with or without missing cells.

Numbers have a decimal point, or a decimal comma throughout the column. Groups of thousands are read where
they are unambiguous (1.234,5 and 1,234.5). 10% is 0.1. Dates (2024-01-31, with or without a time; 31.01.2024;
31/01/2024 or 01/31/2024 where the column shows the order) become days since 1970.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import numpy as np

from jaxfed.data.labels import is_nothing
from jaxfed.errors import UsageError

_PLAIN = re.compile(r"[-+.0-9eE \n]*")  # a column of such cells is converted at once
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_WITH_COMMA = re.compile(r"[+-]?([0-9]+|[0-9]{1,3}(\.[0-9]{3})+)(,[0-9]+)?([eE][+-]?[0-9]+)?")
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]+)?|[+-]?[0-9]+(\.[0-9]+)?")
_EITHER = re.compile(r"[+-]?[0-9]{1,3},[0-9]{3}")  # a decimal comma, or thousands
_HEX = re.compile(r"[+-]?0[xX][0-9a-fA-F]+")
_INFINITE = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
_DATES = (
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%d %H:%M:%S.%f",
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
)
_TWO_WAYS = {"%d/%m/%Y", "%m/%d/%Y"}
_LIKE_A_DATE = re.compile(r"[0-9]{1,4}[-./][0-9]{1,2}[-./][0-9]{1,4}([ T].*)?")
_SECONDS_A_DAY = 86_400


def quantities(cells: Sequence[str], place: Callable[[int], str]) -> np.ndarray | None:
    """float64 [n] of a column of numbers, shares or dates, NaN where a cell is missing; None for texts.

    Args:
        cells: without surrounding spaces.
        place: a row's number -> its location in words, the beginning of errors.

    Raises:
        UsageError: a text among numbers; ambiguous or hexadecimal numbers.
    """
    if _PLAIN.fullmatch("\n".join(cells)) and "" not in cells:
        try:
            return np.array(cells, np.float64)
        except ValueError:
            pass
    rows = [row for row, cell in enumerate(cells) if not is_nothing(cell)]
    present = [cells[row] for row in rows]
    if not present:
        return np.full(len(cells), np.nan)
    values = _numbers(present, rows, place)
    if values is None:
        values = _days(present, rows, place)
    if values is None:
        _check_texts(present, rows, place)
        return None
    found = np.full(len(cells), np.nan)
    found[rows] = values
    return found


def is_a_quantity(cell: str) -> bool:
    """True if the cell alone may be a number, a share or a date."""
    forms = (_NUMBER, _INFINITE, _WITH_COMMA, _THOUSANDS, _HEX, _LIKE_A_DATE)
    return any(form.fullmatch(cell.removesuffix("%")) for form in forms)


def _numbers(
    present: Sequence[str], rows: Sequence[int], place: Callable[[int], str]
) -> list[float] | None:
    if all(_NUMBER.fullmatch(cell) or _INFINITE.fullmatch(cell) for cell in present):
        return [float(cell) for cell in present]
    if all(cell.endswith("%") for cell in present):
        shares = _numbers([cell[:-1].rstrip() for cell in present], rows, place)
        return None if shares is None else [share / 100 for share in shares]
    has_comma = [row for row, cell in zip(rows, present, strict=True) if "," in cell]
    if not has_comma:
        return None
    commas = [cell for cell in present if "," in cell]
    by_comma = all(map(_WITH_COMMA.fullmatch, present))
    by_thousands = all(map(_THOUSANDS.fullmatch, present))
    if by_comma and by_thousands and all(map(_EITHER.fullmatch, commas)):
        raise UsageError(
            f"{place(has_comma[0])}: {commas[0]!r} may have a decimal comma or a group of thousands; write "
            "numbers with a decimal point and without groups"
        )
    if by_comma:
        return [float(cell.replace(".", "").replace(",", ".")) for cell in present]
    if by_thousands:
        return [float(cell.replace(",", "")) for cell in present]
    return None


def _days(
    present: Sequence[str], rows: Sequence[int], place: Callable[[int], str]
) -> list[float] | None:
    if not all(map(_LIKE_A_DATE.fullmatch, present)):
        return None
    texts = [cell.replace("T", " ").removesuffix("Z") for cell in present]
    fitting = {form: _parsed(texts, form) for form in _DATES}
    found = {form: days for form, days in fitting.items() if days is not None}
    if not found:
        mixed = [_first_parsed(text) for text in texts]
        return None if any(days is None for days in mixed) else [d for d in mixed if d is not None]
    if found.keys() >= _TWO_WAYS and found["%d/%m/%Y"] != found["%m/%d/%Y"]:
        raise UsageError(
            f"{place(rows[0])}: dates such as {present[0]!r} can be read in two ways; write them as "
            "year-month-day, 2024-01-31"
        )
    return next(iter(found.values()))


def _parsed(texts: Sequence[str], form: str) -> list[float] | None:
    try:
        return [_since_1970(datetime.strptime(text, form)) for text in texts]
    except ValueError:
        return None


def _first_parsed(text: str) -> float | None:
    """Days since 1970 of a date with or without a time, by the first format that parses it; else None."""
    for form in (form for form in _DATES if form not in _TWO_WAYS):
        days = _parsed([text], form)
        if days is not None:
            return days[0]
    return None


def _since_1970(time: datetime) -> float:
    return time.replace(tzinfo=UTC).timestamp() / _SECONDS_A_DAY


def _check_texts(present: Sequence[str], rows: Sequence[int], place: Callable[[int], str]) -> None:
    """Check that all cells are texts; a few texts among numbers are a mistake in the data."""
    hexadecimal = [row for row, cell in enumerate(present) if _HEX.fullmatch(cell)]
    if hexadecimal:
        first = hexadecimal[0]
        raise UsageError(
            f"{place(rows[first])}: {present[first]!r} is a hexadecimal number; write decimal ones, or "
            "leave the column out (dataset.drop)"
        )
    are_numbers = [bool(_NUMBER.fullmatch(cell)) for cell in present]
    if any(are_numbers):
        first = are_numbers.index(False)
        raise UsageError(
            f"{place(rows[first])}: {present[first]!r} is not a number, others of the column are; correct "
            "it, or leave the row or the column (dataset.drop) out"
        )
