"""CSV files, plain or gzipped, as a `Table`: header, delimiter, rows of equal length."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TextIO

import numpy as np

from jaxfed.data.labels import is_nothing, plain_text
from jaxfed.data.readers.cells import is_a_quantity
from jaxfed.data.readers.tables.interface import (
    CLIENTS,
    LABELS,
    NO_NAME,
    Cells,
    Rows,
    may_number_rows,
)
from jaxfed.data.readers.tables.splits import Splits, differs
from jaxfed.errors import UsageError

_LINES_LOOKED_AT = 20  # for the delimiter
_CELLS = 2**16  # read at a time


@dataclasses.dataclass
class _Table:
    """The `Table` of CSV files; a column that is dropped has no cells."""

    path: Path
    names: list[str]
    has_header: bool
    num_train: int
    num_validation: int
    num_rows: int
    rows: Rows
    cells: list[Cells | None]
    delimiter: str
    numeric: Mapping[int, tuple[int, ...]] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        """Numbers, one a cell."""
        numeric = (place for place, cells in enumerate(self.cells) if cells and cells.is_numeric)
        self.numeric = dict.fromkeys(numeric, ())

    def column(self, place: int) -> list[str]:
        """The cells of one column."""
        cells = self.cells[place]
        return [] if cells is None else cells.texts()

    def where(self, place: int) -> Callable[[int], str]:
        """Return a function of a row's number that names the cell: file, column and line."""

        def words(row: int) -> str:
            file, number = self.rows.place(row)
            return f"{file}: column {self.names[place]!r}, line {number + 1 + self.has_header}"

        return words

    def batches(self, places: Collection[int]) -> Iterator[dict[int, np.ndarray]]:
        """Chunks of rows, as they were read."""
        columns = [cells.numbers() for place in places if (cells := self.cells[place])]
        for chunks in zip(*columns, strict=True):
            yield dict(zip(places, chunks, strict=True))

    labels = column

    def classes(self, place: int) -> None:
        """None: a CSV file has no list of classes."""


def read_files(
    path: Path, splits: Splits, keys: Sequence[str | None], drop: Collection[str]
) -> _Table:
    """Read all files, a chunk of rows at a time; the columns `drop` are passed over."""
    files = [*splits.train, *splits.test]
    first, has_header = _first_line(files[0], keys[0])
    names = (
        [plain_text(cell) for cell in first] if has_header else list(map(str, range(len(first))))
    )
    nameless = [place for place, name in enumerate(names) if name in ("", NO_NAME)]
    for place in nameless:
        names[place] = NO_NAME  # an index as pandas writes it, or an empty column of a spreadsheet
    named = [name for name in names if name != NO_NAME]
    twice = next((name for name in named if named.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"{path}: {twice!r} occurs twice in the first line, which is taken for a header; use a different "
            "name for each column"
        )
    texts = {*LABELS, *CLIENTS, *(plain_text(key).lower() for key in keys if key)}
    last = None if has_header else len(names) - 1
    dropped = set(map(plain_text, drop))
    cells = [
        None
        if name in dropped
        else Cells(keeps_texts=name.lower() in texts or may_number_rows(name) or place == last)
        for place, name in enumerate(names)
    ]
    header = first if has_header else None
    counts = [_add_rows(file, files[0], len(names), header, cells) for file in files]
    if sum(counts) + has_header < 2:
        lines = sum(counts) + (has_header and bool(first))
        raise UsageError(f"{path}: {lines} lines; use a table of two or more")
    of_train = counts[: len(splits.train)]
    num_train, num_validation = (
        sum(of_train),
        sum(of_train[len(of_train) - splits.num_validation :]),
    )
    rows, delimiter = Rows(files, counts), _delimiter_of(files[0])
    table = _Table(
        *(path, names, has_header, num_train, num_validation, sum(counts), rows, cells, delimiter)
    )
    for place in filter(None, nameless):
        column = table.column(place)
        if not all(map(is_nothing, column)) and len(set(column)) < len(column):
            raise UsageError(f"{path}: column {place + 1} has no name in the header; name it")
    return table


def _first_line(file: Path, label_key: str | None) -> tuple[list[str], bool]:
    """The cells of the first line, and True if it is a header."""
    lines = _lines(file)
    first = next(lines, [])
    return first, _is_header(first, lines, label_key)


def _add_rows(
    file: Path,
    first: Path,
    width: int,
    header: list[str] | None,
    cells: Sequence[Cells | None],
) -> int:
    """Add the rows of a file to the columns; return their number."""
    lines = enumerate(_lines(file), start=1)
    if header is not None:
        names = next(lines, (1, []))[1]
        if names != header:
            raise differs(file, first, names, header)
    count = 0
    while chunk := list(islice(lines, max(1, _CELLS // max(width, 1)))):
        for number, row in chunk:
            if len(row) != width:
                raise UsageError(f"{file}: line {number} has {len(row)} columns, the first {width}")
        for place, column in enumerate(cells):
            if column is not None:
                column.add([plain_text(row[place]) for _, row in chunk])
        count += len(chunk)
    return count


def _is_header(first: Sequence[str], lines: Iterator[list[str]], label_key: str | None) -> bool:
    """True if the first line names columns; `lines` are the others."""
    first = [cell.strip() for cell in first]
    if not any(map(is_a_quantity, first[:-1])):
        return True
    # Columns may be named by numbers, as pandas does: then a label name that no row has marks a header.
    names = {cell for cell in first if not is_a_quantity(cell)}
    names = {cell for cell in names if cell == label_key or cell.lower() in LABELS}
    while names and (line := next(lines, None)) is not None:
        names.difference_update(map(str.strip, line))
    return bool(names)


def lines_of(path: Path, delimiter: str | None = None) -> list[list[str]]:
    """The cells of each line that is not empty; the delimiter is given, or detected from the first lines.

    Raises:
        UsageError: not a CSV file, or another encoding than UTF-8.
    """
    return list(_lines(path, delimiter))


def _lines(path: Path, delimiter: str | None = None) -> Iterator[list[str]]:
    """The lines of `lines_of`, one at a time."""
    try:
        delimiter = delimiter or _delimiter_of(path)
        with _opened(path) as file:
            yield from filter(None, csv.reader(file, delimiter=delimiter))
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: not a CSV file in UTF-8 ({error}); save it in UTF-8, for example by "
            "iconv -f windows-1252 -t utf-8"
        ) from error
    except (csv.Error, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(f"{path}: not a CSV file ({error})") from error


def _opened(path: Path) -> TextIO:
    opener = gzip.open if path.suffix == ".gz" else open
    return opener(path, "rt", newline="", encoding="utf-8-sig")


def _delimiter_of(path: Path) -> str:
    """The delimiter that gives all lines an equal number of cells, above one; commas are tried last."""
    with _opened(path) as file:
        lines = list(islice(file, _LINES_LOOKED_AT))
    for delimiter in ";\t|,":
        widths = {len(row) for row in csv.reader(lines, delimiter=delimiter) if row}
        if len(widths) == 1 and widths.pop() > 1:
            return delimiter
    first = lines[0] if lines else ""
    return max(",;\t|", key=first.count)
