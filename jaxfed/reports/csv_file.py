"""Rows of numbers as a CSV file, as all reports write them."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_csv(path: Path, columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a line a row, in UTF-8; what a row lacks, or has None of, is empty.

    Raises:
        ValueError: a row with a key that is no column.
    """
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
