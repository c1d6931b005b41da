"""Read a table from a CSV file: each row has an example's features, a label and optionally a client."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import logging

from jaxfed.data.dataset import Dataset, class_numbers, client_names, client_numbers
from jaxfed.data.labels import is_nothing, plain_text, read_labels
from jaxfed.data.readers.cells import is_a_quantity, quantities
from jaxfed.data.readers.table_encoder import Column, TableEncoder
from jaxfed.errors import UsageError, did_you_mean, nearest

_LABELS = ("label", "class", "target", "y")
_CLIENTS = ("client_id", "client", "writer")
_NO_NAME = "(no name)"
_IDENTIFIER = re.compile(  # names of row identifiers
    r"(row|record|sample|patient|subject|user|case|person|customer)?[ _-]?(id|index|uuid|guid|no|nr|number)"
    r"|row|unnamed: 0",
    re.IGNORECASE,
)
_MOST_TEXTS = 100  # of a column that becomes features
_LINES_LOOKED_AT = 20  # for the delimiter


class _Table(NamedTuple):
    """A table's cells as text; each row is as long as `names`."""

    path: Path
    names: list[str]
    rows: list[list[str]]
    has_header: bool

    def column(self, place: int) -> list[str]:
        """The cells of one column."""
        return [plain_text(row[place]) for row in self.rows]

    def where(self, place: int) -> Callable[[int], str]:
        """Return a function of a row's number that names the cell: file, column and line."""

        def words(row: int) -> str:
            line = row + 1 + self.has_header
            return f"{self.path}: column {self.names[place]!r}, line {line}"

        return words


def read(
    path: Path,
    label_key: str | None = None,
    client_key: str | None = None,
    *,
    drop: Collection[str] = (),
) -> Dataset:
    """Read a CSV file, plain or gzipped; the delimiter is detected (`,`, `;`, tab or `|`).

    A first line in which no feature is a number, or which names the label as below, is a header.

    The label is the column `label_key`. Without `label_key` it is the column named label, class, target or y
    (in any case) or, without a header, the last. `jaxfed.data.labels` defines unlabeled rows. Natural clients
    are the column `client_key`, without it a column named client_id, client or writer.

    All other columns are features. Numbers (`jaxfed.data.readers.cells`) are one feature each, NaN where a
    cell is missing (`Dataset.has_gaps`). A column of texts is encoded one-hot, in the order of the sorted
    texts. More than 100 texts, or texts among numbers, are refused.

    Two kinds of columns are left out: columns without any value, and row identifiers. A row identifier is
    named id, index or the like, or has no name, and has a different value in each row. The log names these
    columns and columns of text.

    Args:
        path: the file.
        label_key: name of the label's column.
        client_key: name of the clients' column.
        drop: columns that are not features.

    Raises:
        UsageError: names the column and line that cannot be read, a line of another length, or, if the label
            column is missing, all columns.
    """
    table = _table(path, label_key)
    names = table.names
    label = _place_of_label(table, label_key)
    client = _place_of_client(table, client_key)
    if label == client:
        raise UsageError(f"is the label's column in {path}", key="client_key", value=names[label])
    dropped = {_place(table, "drop", name) for name in drop}
    for place, role in ((label, "label"), (client, "client")):
        if place in dropped:
            raise UsageError(
                f"is the {role}'s column in {path}", key="drop", value=names[place or 0]
            )
    features = [place for place in range(len(names)) if place not in {label, client, *dropped}]
    x, columns = _features(table, features)
    (labels,) = read_labels([np.array(table.column(label))], f"{path}: column {names[label]!r}")
    (y, nothing), class_names = class_numbers(
        labels.values, labels.values[:0], is_labeled=labels.is_labeled
    )
    clients = None if client is None else _clients(table, client)
    client_id, client_id_test = client_numbers(clients, None)
    return Dataset(
        name=str(path),
        x=x,
        y=y,
        x_test=x[:0],
        y_test=nothing,
        num_classes=len(class_names),
        class_names=class_names,
        client_id=client_id,
        client_id_test=client_id_test,
        client_names=client_names(clients, None),
        has_gaps=bool(np.isnan(x).any()),
        encoder=TableEncoder(columns, tuple(names), names[label], delimiter_of(path)),
    )


def _clients(table: _Table, place: int) -> np.ndarray:
    """str [n], the client of each row."""
    clients = table.column(place)
    for row, client in enumerate(clients):
        if is_nothing(client):
            raise UsageError(
                f"{table.where(place)(row)}: {client!r} names no client; use a name in every row"
            )
    return np.array(clients)


def _table(path: Path, label_key: str | None) -> _Table:
    lines = lines_of(path)
    if len(lines) < 2:
        raise UsageError(f"{path}: {len(lines)} lines; use a table of two or more")
    has_header = _is_header(lines, label_key)
    rows = lines[1:] if has_header else lines
    width = len(lines[0])
    for number, row in enumerate(lines, start=1):
        if len(row) != width:
            raise UsageError(f"{path}: line {number} has {len(row)} columns, the first {width}")
    names = [plain_text(cell) for cell in lines[0]] if has_header else list(map(str, range(width)))
    nameless = [place for place, name in enumerate(names) if name in ("", _NO_NAME)]
    for place in nameless:
        cells = [plain_text(row[place]) for row in rows]
        if not all(map(is_nothing, cells)) and len(set(cells)) < len(cells):
            raise UsageError(f"{path}: column {place + 1} has no name in the header; name it")
        names[place] = _NO_NAME  # an index as pandas writes it, or an empty column of a spreadsheet
    named = [name for name in names if name != _NO_NAME]
    twice = next((name for name in named if named.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"{path}: {twice!r} occurs twice in the first line, which is taken for a header; use a different "
            "name for each column"
        )
    return _Table(path, names, rows, has_header)


def _is_header(lines: Sequence[Sequence[str]], label_key: str | None) -> bool:
    first = [cell.strip() for cell in lines[0]]
    if not any(map(is_a_quantity, first[:-1])):
        return True
    # Columns may be named by numbers, as pandas does: then a label name that no row has marks a header.
    return any(
        (cell == label_key or cell.lower() in _LABELS)
        and not any(cell in map(str.strip, line) for line in lines[1:])
        for cell in first
        if not is_a_quantity(cell)
    )


def _place_of_label(table: _Table, label_key: str | None) -> int:
    if label_key is not None:
        return _place(table, "label_key", label_key)
    place = _known(table.names, _LABELS)
    if place is not None:
        return place
    if not table.has_header:
        return len(table.names) - 1
    raise UsageError(
        f"no column of {table.path} is named {', '.join(_LABELS[:-1])} or {_LABELS[-1]}",
        key="label_key",
        allowed=f"name the label's column out of {', '.join(table.names)}",
    )


def _place_of_client(table: _Table, client_key: str | None) -> int | None:
    if client_key is not None:
        return _place(table, "client_key", client_key)
    return _known(table.names, _CLIENTS)


def _place(table: _Table, option: str, name: str) -> int:
    name = plain_text(name)
    if name not in table.names:
        meant = did_you_mean(nearest(name, table.names))
        wrong = f"no such column in {table.path}; the columns are {', '.join(table.names)}{meant}"
        raise UsageError(wrong, key=option, value=name)
    return table.names.index(name)


def _known(names: Sequence[str], wanted: Sequence[str]) -> int | None:
    """Index of the first of the wanted names that exists, or None."""
    small = [name.lower() for name in names]
    return next((small.index(name) for name in wanted if name in small), None)


def _features(table: _Table, places: Sequence[int]) -> tuple[np.ndarray, tuple[Column, ...]]:
    """float32 [n, d], NaN where a cell is missing, and the columns that these numbers encode."""
    columns: list[np.ndarray] = []
    kept: list[Column] = []
    encoded: list[str] = []
    left_out: list[str] = []
    for place in places:
        cells, name = table.column(place), table.names[place]
        if all(map(is_nothing, cells)):
            left_out.append(f"{name!r} (no value)")
            continue
        if _numbers_rows(name, cells):
            left_out.append(f"{name!r} (numbers the rows)")
            continue
        values = quantities(cells, table.where(place))
        if values is None:
            kinds, numbers = _kinds(table, place, cells)
            columns.append(np.eye(len(kinds), dtype=np.float32)[numbers])
            kept.append(Column(name, tuple(kinds), tuple(range(len(kinds))), len(kinds)))
            encoded.append(f"{name} ({columns[-1].shape[1]})")
            continue
        with np.errstate(over="ignore"):  # to inf, which Dataset refuses
            columns.append(values.astype(np.float32)[:, None])
            kept.append(Column(name))
    if left_out:
        logging.warning("%s: columns that are no features: %s", table.path, ", ".join(left_out))
    if encoded:
        logging.warning(
            "%s: columns of text become one feature a text (0 or 1): %s",
            table.path,
            ", ".join(encoded),
        )
    if not columns:
        raise UsageError(f"{table.path}: none of the columns {', '.join(table.names)} is a feature")
    x = np.concatenate(columns, axis=1)
    num_gaps = int(np.isnan(x).any(axis=1).sum())
    if num_gaps:
        logging.warning(
            "%s: %d of %d rows miss a value: it becomes the median of the training rows, and each column "
            "with gaps gets an indicator beside it",
            table.path,
            num_gaps,
            len(x),
        )
    return x, tuple(kept)


def _numbers_rows(name: str, cells: Sequence[str]) -> bool:
    """True for a row identifier: a name such as id, or none, and distinct values."""
    is_named_so = name == _NO_NAME or _IDENTIFIER.fullmatch(name) is not None
    return is_named_so and len(set(cells)) == len(cells)


def _kinds(table: _Table, place: int, cells: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Return the distinct texts of a column, sorted, and the number of each cell's."""
    kinds, numbers = np.unique(cells, return_inverse=True)
    if len(kinds) > _MOST_TEXTS:
        raise UsageError(
            f"{table.path}: column {table.names[place]!r} has {len(kinds)} different texts; up to "
            f"{_MOST_TEXTS} become features: leave the column out (dataset.drop), or make numbers of it"
        )
    return kinds.tolist(), numbers


def lines_of(path: Path, delimiter: str | None = None) -> list[list[str]]:
    """The cells of each line that is not empty; the delimiter is given, or detected from the first lines.

    Raises:
        UsageError: not a CSV file.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", newline="", encoding="utf-8-sig") as file:
            if delimiter is None:
                delimiter = _delimiter(list(islice(file, _LINES_LOOKED_AT)))
                file.seek(0)
            return [row for row in csv.reader(file, delimiter=delimiter) if row]
    except (UnicodeDecodeError, csv.Error, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(f"{path}: not a CSV file ({error})") from error


def delimiter_of(path: Path) -> str:
    """The delimiter of a file that `lines_of` has read."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", newline="", encoding="utf-8-sig") as file:
        return _delimiter(list(islice(file, _LINES_LOOKED_AT)))


def _delimiter(lines: Sequence[str]) -> str:
    """The delimiter that gives all lines an equal number of cells, above one; commas are tried last."""
    for delimiter in ";\t|,":
        widths = {len(row) for row in csv.reader(lines, delimiter=delimiter) if row}
        if len(widths) == 1 and widths.pop() > 1:
            return delimiter
    first = lines[0] if lines else ""
    return max(",;\t|", key=first.count)
