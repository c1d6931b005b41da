"""Write rows of numbers and names as a CSV file; used for all tables of this package.

A text that a spreadsheet would run as a formula (it begins with =, +, -, @, a tab or a line break) gets a
leading apostrophe, unless it is a number or a row of numbers.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxfed.host import storage

_FORMULA = re.compile(r"[=+\-@\t\r\n]")
_NUMBERS = re.compile(r"([-+]?([0-9.]+([eE][-+]?[0-9]+)?|nan|inf)( |$))+")


def write_csv(path: Path, columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one line per row, in UTF-8; missing values and None are empty.

    Raises:
        ValueError: a row with a key that is not a column.
        OSError: for example, the disk is full; an existing file is unchanged.
    """
    with storage.whole_file(path) as stream:
        writer = csv.DictWriter(stream, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _inert(value) for key, value in row.items()} for row in rows)


def _inert(value: Any) -> Any:
    is_formula = isinstance(value, str) and _FORMULA.match(value)
    return f"'{value}" if is_formula and not _NUMBERS.fullmatch(value) else value
