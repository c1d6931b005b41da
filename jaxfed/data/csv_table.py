"""A table in a CSV file: one example a row, numeric features, a label, perhaps a client."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from pathlib import Path

import numpy as np

from jaxfed.data.dataset import Dataset, class_numbers, client_numbers
from jaxfed.errors import UsageError

_LABELS = ("label", "class", "target", "y")
_CLIENTS = ("client_id", "client", "writer")
_INTEGER = re.compile("-?[0-9]{1,18}")  # of 64 bits; labels of other forms are names


def read(path: Path, label_key: str | None = None) -> Dataset:
    """Read a CSV file, plain or gzipped, its delimiter found out (`,`, `;`, tab or `|`).

    The label is the column `label_key`; without one the column named label, class, target or y, else the
    last. A column named
    client_id, client or writer gives natural clients. All other columns must be numbers. A first line in
    which no feature is a number is a header.

    Raises:
        UsageError: names the column and line that is no number, or a line of another length.
    """
    lines = _lines(path)
    if len(lines) < 2:
        raise UsageError(f"{path}: {len(lines)} lines, but a table of two or more is needed")
    has_header = not any(_is_number(cell) for cell in lines[0][:-1])
    header = [cell.strip() for cell in lines[0]] if has_header else []
    rows = lines[1:] if has_header else lines
    width = len(rows[0])
    for number, row in enumerate(rows, start=1 + has_header):
        if len(row) != width:
            raise UsageError(f"{path}: line {number} has {len(row)} columns, others have {width}")
    names = header or [str(column) for column in range(width)]
    if label_key is not None and label_key not in names:
        raise UsageError(f"{path}: label_key={label_key!r}: the columns are {', '.join(names)}")
    candidates = _LABELS if label_key is None else (label_key,)
    label = next((names.index(name) for name in candidates if name in names), width - 1)
    client = next((names.index(name) for name in _CLIENTS if name in names), None)
    features = [column for column in range(width) if column not in (label, client)]
    if not features:
        raise UsageError(f"{path}: columns {', '.join(names)}, but none of them is a feature")
    x = np.empty((len(rows), len(features)), np.float32)
    for place, column in enumerate(features):
        try:
            with np.errstate(over="ignore"):  # to inf, which Dataset refuses
                x[:, place] = [row[column] for row in rows]
        except ValueError as error:
            line, cell = next(
                (line, row[column])
                for line, row in enumerate(rows, start=1 + has_header)
                if not _is_number(row[column])
            )
            raise UsageError(
                f"{path}: column {names[column]!r}, line {line}: {cell!r} is not a number; "
                "features must be numeric"
            ) from error
    labels = np.array([row[label].strip() for row in rows])
    if all(map(_INTEGER.fullmatch, labels)):
        labels = labels.astype(np.int64)
    (y, nothing), class_names = class_numbers(labels, labels[:0])
    clients = None if client is None else np.array([row[client].strip() for row in rows])
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
    )


def _lines(path: Path) -> list[list[str]]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            delimiter = max(",;\t|", key=first.count)
            file.seek(0)
            return [row for row in csv.reader(file, delimiter=delimiter) if row]
    except (UnicodeDecodeError, csv.Error, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(f"{path}: not a CSV file ({error})") from error


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
