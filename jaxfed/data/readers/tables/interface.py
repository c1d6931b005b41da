"""A table as `jaxfed.data.readers.csv_table` reads features from it, whatever its format."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import numpy as np

from jaxfed.data.readers.cells import may_be_wide, numbers
from jaxfed.errors import UsageError

LABELS = ("label", "class", "target", "y")
CLIENTS = ("client_id", "client", "writer")
NO_NAME = "(no name)"
BY_FILE = "file"  # as `client_key` of several files, each of one client
_IDENTIFIER = re.compile(  # names of row identifiers
    r"(row|record|sample|patient|subject|user|case|person|customer)?[ _-]?(id|index|uuid|guid|no|nr|number)"
    r"|row",
    re.IGNORECASE,
)
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


def may_number_rows(name: str) -> bool:
    """True for the name of a row identifier: id and the like, or none."""
    return name == NO_NAME or _IDENTIFIER.fullmatch(name) is not None


class Table(Protocol):
    """A table's columns; rows of the test split follow those for training.

    Attributes:
        path: its file, folder or pattern, for messages.
        names: of the columns.
        has_header: False if `names` are places.
        num_train: rows of the training split, those for validation last.
        num_validation: number of these.
        num_rows: rows of both splits.
        rows: their files.
        numeric: place of each column whose values are known to be numbers -> shape of a cell, (k,) for lists.
        delimiter: of the cells in a line of text.
    """

    path: Path
    names: list[str]
    has_header: bool
    num_train: int
    num_validation: int
    num_rows: int
    rows: Rows
    numeric: Mapping[int, tuple[int, ...]]
    delimiter: str

    def column(self, place: int) -> list[str]:
        """The cells of one column as texts."""

    def where(self, place: int) -> Callable[[int], str]:
        """Return a function of a row's number that names the cell: file, column and row."""

    def batches(self, places: Collection[int]) -> Iterator[Mapping[int, np.ndarray]]:
        """Numeric columns, some rows at a time: place -> [rows] or [rows, features], NaN where missing."""

    def labels(self, place: int) -> list[str]:
        """The cells of the label's column; numbers of classes if these have names (`classes`)."""

    def classes(self, place: int) -> Sequence[str] | None:
        """Names of the classes whose numbers a column holds; None for any other column."""


class Cells:
    """The cells of one column, compact: four bytes a number up to 2^24, and each text of a chunk once.

    Args:
        keeps_texts: numbers are kept as they are spelled, for labels and names.
    """

    def __init__(self, *, keeps_texts: bool) -> None:
        self._keeps_texts = keeps_texts
        self._chunks: list[np.ndarray | list[str]] = []

    def add(self, cells: list[str]) -> None:
        """Append some rows, without surrounding spaces."""
        values = None if self._keeps_texts else numbers(cells)
        if values is None or np.isnan(values).all():
            known: dict[str, str] = {}
            self._chunks.append([known.setdefault(cell, cell) for cell in cells])
        else:
            self._chunks.append(values if may_be_wide(values) else values.astype(np.float32))

    @property
    def is_numeric(self) -> bool:
        """True if all cells are numbers or missing, and one at least is a number."""
        chunks = [numbers(chunk) if isinstance(chunk, list) else chunk for chunk in self._chunks]
        has_number = any(isinstance(chunk, np.ndarray) for chunk in self._chunks)
        return has_number and all(chunk is not None for chunk in chunks)

    def texts(self) -> list[str]:
        """All cells; numbers as Python writes them."""
        return [
            cell if isinstance(cell, str) else "" if np.isnan(cell) else repr(float(cell))
            for chunk in self._chunks
            for cell in chunk
        ]

    def numbers(self) -> Iterator[np.ndarray]:
        """Chunks of a numeric column, NaN where a cell is missing."""
        for chunk in self._chunks:
            yield chunk if isinstance(chunk, np.ndarray) else np.full(len(chunk), np.nan, "f4")


class Rows:
    """Files and how many rows each has: a row's number -> its file and its number there."""

    def __init__(self, files: Sequence[Path], counts: Sequence[int]) -> None:
        self._files, self._starts = files, [0, *accumulate(counts)]

    def place(self, row: int) -> tuple[Path, int]:
        """The row's file, and its number in that file."""
        number = bisect_right(self._starts, row) - 1
        return self._files[number], row - self._starts[number]

    @property
    def are_of_several_files(self) -> bool:
        """True for more than one file."""
        return len(self._files) > 1

    def file_names(self, num_rows: int) -> np.ndarray:
        """str [num_rows], the name of each of the first rows' file, without its ending.

        Raises:
            UsageError: two of these files have one name.
        """
        files = self._files[: bisect_left(self._starts, num_rows)]
        names = [file.name.removesuffix(".gz").rpartition(".")[0] for file in files]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            alike = [str(file) for file, name in zip(files, names, strict=True) if name == twice]
            raise UsageError(
                f"{' and '.join(alike[:2])} have one name",
                key="client_key",
                value=BY_FILE,
                allowed="give each client's file another name",
            )
        return np.repeat(names, np.diff(self._starts)[: len(files)])
