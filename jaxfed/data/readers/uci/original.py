"""Cells of an original file: find the file, check its width, and convert to numbers or codes."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxfed.errors import UsageError

PUBLISHED = {  # rows of the publishers' files
    "adult.data": 32_561,
    "adult.test": 16_281,
    "agaricus-lepiota.data": 8_124,
    "winequality-red.csv": 1_599,
    "winequality-white.csv": 4_898,
    "covtype.data": 581_012,
    "covtype.data.gz": 581_012,
}


def found(folder: Path, names: Sequence[str], origin: str) -> Path:
    """The first of these files that exists in the folder.

    Raises:
        UsageError: none exists; says where to get them.
    """
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise UsageError(f"{folder}: no {' or '.join(names)}; {origin} has it")


def cells(file: Path, width: int, delimiter: str = ",") -> np.ndarray:
    """str [n, width], without surrounding spaces; skips empty lines and those that begin with `|`.

    Raises:
        UsageError: a line of another width, or no lines.
    """
    with file.open(newline="", encoding="utf-8-sig") as stream:
        rows = filter(None, csv.reader(stream, delimiter=delimiter))
        lines = [line for line in rows if not line[0].startswith("|")]
    for number, line in enumerate(lines, start=1):
        if len(line) != width:
            raise UsageError(f"{file}: row {number} has {len(line)} cells; use {width}")
    if not lines:
        raise UsageError(f"{file}: no rows")
    return np.array([[cell.strip() for cell in line] for line in lines])


def check_count(file: Path, count: int) -> None:
    """Refuse a file with another number of rows than published: a truncated download, or a part.

    Raises:
        UsageError: names the actual and the expected number.
    """
    published = PUBLISHED.get(file.name, count)
    if count != published:
        raise UsageError(
            f"{file}: {count} rows, but the published file has {published}; download it again, or rename "
            "a part of it and load it as a CSV file"
        )


def numbers(file: Path, texts: np.ndarray) -> np.ndarray:
    """float64 of the same shape.

    Raises:
        UsageError: the first cell that is not a number.
    """
    try:
        return texts.astype(np.float64)
    except ValueError as error:
        raise UsageError(f"{file}: {error}; use numbers") from error


def codes(file: Path, column: str, texts: np.ndarray, meanings: Mapping[str, int]) -> np.ndarray:
    """int64 [n], the code of each text [n].

    Raises:
        UsageError: a text that has no code.
    """
    kinds, places = np.unique(texts, return_inverse=True)
    for kind in kinds.tolist():
        if kind not in meanings:
            raise UsageError(
                f"{file}: column {column!r} has {kind!r}; choose one of {', '.join(map(repr, meanings))}"
            )
    return np.array([meanings[kind] for kind in kinds.tolist()], np.int64)[places]
