"""Tables: each row has an example's features, a label and optionally a client.

The label is the column `label_key`. Without `label_key` it is the column named label, class, target or y (in
any case). `jaxfed.data.labels` defines unlabeled rows. Natural clients are the column `client_key`, without
it a column named client_id, client or writer. If `client_key` is "file" and no column has this name, each of
several files is a client, and test files are of all.

All other columns are features. Numbers (`jaxfed.data.readers.table_encoder`) are one feature each, NaN where
a cell is missing (`Dataset.has_gaps`). Dates are days since 1970, of UTC. A column of texts is encoded
one-hot, in the order of the sorted texts; all spellings of a missing value are one text. More than 100 texts,
or texts among numbers, are refused. x is float32. If whole numbers above 2^24 or dates would become equal in
it, x is float64, in which `preprocessing.kind='standardized'` computes.

Three kinds of columns are left out, and the log names them: columns without any value, row identifiers, and
the index as pandas writes it. A row identifier is named id, row number or the like, and has a different value
in each row.

The files are

    A.csv, A.csv.gz, A.tsv, A.data, A.parquet
    'FOLDER/*.csv', 'FOLDER/*.parquet'               a pattern; files train*, test* and val* are the splits
    FOLDER/*.parquet, FOLDER/data/*.parquet          the same, as on Hugging Face: train-00000-of-....parquet
    FOLDER/{train,test}/*.parquet                    in any case, and as training, testing, val

All files have one schema. Cells of a CSV file are texts, and its first line names the columns.

Columns of Parquet files give the same arrays as a CSV file with their values. A column of images (bytes, or a
struct with them) is the example by itself; other columns are then left out, with a line. Images become uint8
[n, h, w, c], sized as those of a folder and cached as theirs are. Class names come from Hugging Face's
description in the files' schema.

Examples may also be arrays in files of their own (`jaxfed.data.readers.arrays`), beside which the table has
labels and clients: row i is row i. Its other columns are then left out, with a line.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from glob import glob
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from absl import logging

from jaxfed.data.cache import cached_arrays, files_key
from jaxfed.data.dataset import Dataset, Encoder, dataset_of, has_gaps
from jaxfed.data.labels import is_nothing, plain_text
from jaxfed.data.mapped_rows import parts
from jaxfed.data.readers.encoders import ImageEncoder
from jaxfed.data.readers.guard import guarded
from jaxfed.data.readers.image_files import Encoded, common_shape, decode
from jaxfed.data.readers.image_folder import TEST_NAMES, TRAIN_NAMES
from jaxfed.data.readers.table_encoder import (
    LABELS,
    NO_NAME,
    Column,
    TableEncoder,
    days,
    index_columns,
    is_wide,
    numbers,
)
from jaxfed.errors import UsageError, did_you_mean, nearest

if TYPE_CHECKING:
    import pyarrow as pa

TEXT_ENDINGS = (".csv", ".tsv", ".data", ".csv.gz", ".data.gz")
ENDINGS = (".parquet", *TEXT_ENDINGS)
_BLOCK = 2**24  # bytes of a CSV file that are parsed at a time; no line is longer
_BUFFER = 2**16  # bytes of a Parquet column that are read at a time
CLIENTS = ("client_id", "client", "writer")
BY_FILE = "file"  # as `client_key` of several files, each of one client
_MOST_TEXTS = 100  # of a column that becomes features
_CELLS = 2**20  # of a Parquet file, read at a time
_IMAGES = 64  # the same of images
_FORMAT = 2  # raise it whenever the same files give other images
_IDENTIFIER = re.compile(  # names of row identifiers
    r"(row|record|sample|patient|subject|user|case|person|customer)?[ _-]?(id|index|uuid|guid|no|nr|number)"
    r"|row|" + re.escape(NO_NAME),
    re.IGNORECASE,
)
_QUANTITY = re.compile(  # other spellings: decimal commas and groups of digits, shares, dates
    r"[-+]?[0-9][0-9.,]* ?%?|[0-9]{1,4}[-./][0-9]{1,2}[-./][0-9]{1,4}([ t].*)?", re.IGNORECASE
)


class Splits(NamedTuple):
    """Files of a table, in the order of their rows; `test` may be empty."""

    train: list[Path]
    test: list[Path]


def matching(pattern: Path) -> list[Path]:
    """The files that a pattern matches, sorted; a path without `*` is itself."""
    found = map(Path, glob(str(pattern))) if "*" in str(pattern) else [pattern]
    return sorted(file for file in found if file.is_file())


def splits_by_name(files: Sequence[Path]) -> Splits:
    """Files train* (training*) and test* are splits; without the first all files are for training.

    The first of test, testing, val, valid and validation that exists is the test split. Other files are not
    read, and a line names them.
    """

    def named(name: str) -> list[Path]:
        return [file for file in files if re.match(rf"{name}([^a-z]|$)", file.name.lower())]

    train = [file for name in TRAIN_NAMES for file in named(name)]
    return _chosen({"train": train, **{name: named(name) for name in TEST_NAMES}}, files)


def _chosen(splits: Mapping[str, list[Path]], files: Sequence[Path]) -> Splits:
    """Select the splits by their names, out of all files; the others are logged."""
    if not splits.get("train"):
        return Splits(list(files), [])
    test = next((splits[name] for name in TEST_NAMES if splits.get(name)), [])
    found = Splits(splits["train"], test)
    others = [str(file) for file in files if file not in found.train and file not in found.test]
    if others:
        text = "%s: files of no split are not read: %s"
        logging.warning(text, files[0].parent, ", ".join(others))
    return found


def recognizes(folder: Path) -> bool:
    """True for a folder in one of the layouts above."""
    return folder.is_dir() and bool(splits_of(folder).train)


def splits_of(folder: Path) -> Splits:
    """The files of a folder in one of the layouts above; none where it is in another."""
    places = sorted(filter(Path.is_dir, folder.iterdir()))
    found = {place.name.lower(): _files_in(place) for place in places}
    if train := next((found[name] for name in TRAIN_NAMES if found.get(name)), []):
        files = [file for files in found.values() for file in files]
        return _chosen({**found, "train": train}, files)
    return splits_by_name(_files_in(folder) or found.get("data", []))


def _files_in(folder: Path) -> list[Path]:
    """The Parquet files in a folder, sorted."""
    return matching(folder / "*.parquet")


def read(
    path: Path,
    splits: Splits,
    label_key: str | None = None,
    client_key: str | None = None,
    drop: Collection[str] | None = None,
    image_size: int | None = None,
    arrays: tuple[np.ndarray, np.ndarray] | None = None,
) -> Dataset:
    """Read the files of a table; `path` is the file, folder or pattern, for messages.

    `arrays` are the examples of its rows, of the training and of the test split. Errors name the file, column
    and line or row. Cost: a million cells of texts a second. Memory: twice that of x, and the text of CSV
    files.
    """
    table = Table(path, splits)
    names = table.names
    label = _place(table, "label_key", label_key, LABELS)
    if label is None:
        wrong = f"no column of {path} is named {', '.join(LABELS[:-1])} or {LABELS[-1]}"
        allowed = f"name the label's column out of {', '.join(names)}"
        raise UsageError(wrong, key="label_key", allowed=allowed)
    is_by_file = client_key == BY_FILE and len(table.files) > 1 and BY_FILE not in names
    client = None if is_by_file else _place(table, "client_key", client_key, CLIENTS)
    dropped = {_place(table, "drop", name) for name in drop or ()}
    for key, place, others in (("client_key", client, {label}), ("drop", label, dropped)):
        if place is not None and place in others:
            raise UsageError(f"is the label's column in {path}", key=key, value=names[place])
    places = [place for place in range(len(names)) if place not in {label, client, *dropped}]
    clients: Sequence[np.ndarray | None] = (None, None)
    own = table.num_train
    if client is not None:
        named = _clients(table, client)
        clients = (named[:own], named[own:])
    elif is_by_file:
        clients = (_names_of_files(table), None)
    if arrays is None:
        x, encoder = _examples(table, places, names[label], image_size)
    else:
        _log(table, "columns beside the arrays are no features: %s", places)
        x, encoder = arrays, None
    if image_size is not None and not isinstance(encoder, ImageEncoder):
        wrong = f"does not apply to {path}, which has no column of images"
        raise UsageError(wrong, key="image_size", value=image_size, allowed="leave it out")
    x, x_test = x if isinstance(x, tuple) else (x[:own], x[own:])
    for name, part, number in (("train", x, own), ("test", x_test, len(table) - own)):
        if len(part) != number:
            wrong = f"{len(part)} examples and {number} rows of the table in the {name} split"
            raise UsageError(f"{path}: {wrong}; row i of the arrays is row i of the table")
    where = f"{path}: column {names[label]!r}"
    y, y_test = np.split(np.array(table.texts(label), np.str_), [own])
    data = dataset_of(
        path,
        [(x, y), (x_test, y_test)],
        where=where,
        class_names=table.classes(label) or None,
        clients=clients,
        has_gaps=isinstance(encoder, TableEncoder) and has_gaps(x, x_test),
        encoder=encoder,
    )
    found = np.unique(data.y[data.is_labeled])
    if len(found) == 1:
        wrong = f"each row with a label is of class {data.class_names[found[0]]!r}"
        raise UsageError(f"{where}: {wrong}; two classes are needed")
    return data


class Table:
    """Columns of a table's files; rows of the test split follow those for training.

    Attributes:
        path: the file, folder or pattern, for messages.
        files: of both splits.
        counts: rows of each file.
        num_train: rows of the training split.
        names: names of the columns.
        types: of the columns.
        features: description of each column by Hugging Face's `datasets`; {} without one.
        kinds: of each column: "number", "text", "image" (its bytes), or "none": it cannot be a feature.

    Raises:
        UsageError: a file cannot be read, or has another schema than the first.
    """

    def __init__(self, path: Path, splits: Splits) -> None:
        self.path, self.splits = path, splits
        self.files = [*splits.train, *splits.test]
        self._tables: dict[Path, pa.Table] = {}
        schemas = list(map(self._schema, self.files))
        self.counts = [number for _, number in schemas]
        first, file = schemas[0][0], self.files[0]
        for other, (schema, _) in zip(self.files, schemas, strict=True):
            for mine, wanted in zip_longest(_columns(schema), _columns(first), fillvalue="none"):
                if mine != wanted:
                    wrong = f"column {mine} where {file} has {wanted}"
                    raise UsageError(f"{other}: {wrong}; all files need the same columns")
        self.keys, self.types = first.names, first.types
        self.names = [plain_text(key) or NO_NAME for key in self.keys]
        described = _descriptions(first)
        self.features = [described.get(key, {}) for key in self.keys]
        self.kinds = list(map(_kind_of, self.types, self.features))
        named = [name for name in self.names if name != NO_NAME]
        if twice := next((name for name in named if named.count(name) > 1), None):
            raise UsageError(f"{path}: two columns are named {twice!r}; use different names")
        if len(self) < 2 - file.name.lower().endswith(TEXT_ENDINGS):
            raise UsageError(f"{path}: {len(self)} rows; use a table of two or more")
        self.num_train = sum(self.counts[: len(splits.train)])

    def __len__(self) -> int:
        """Rows of all files."""
        return sum(self.counts)

    def chunks(
        self, place: int, rows: int, files: Sequence[Path] | None = None
    ) -> Iterator[tuple[Path, int, pa.Array]]:
        """Some rows of a column at a time: file, number of the first of these rows in it, values."""
        for file in self.files if files is None else files:
            start = 0
            for column in self._column(file, place, rows):
                column = getattr(column, "storage", column)
                dictionary = hasattr(column, "dictionary_decode")
                yield file, start, column.dictionary_decode() if dictionary else column
                start += len(column)

    def where(self, place: int, row: int) -> str:
        """Name a cell by file, column, and the row's number in the file."""
        for file, count in zip(self.files, self.counts, strict=True):
            if row < count:
                return self.cell(file, place, row)
            row -= count
        raise IndexError(row)

    def cell(self, file: Path, place: int, row: int) -> str:
        """Name a cell of a file."""
        is_text = file.name.lower().endswith(TEXT_ENDINGS)
        number = f"line {row + 2}" if is_text else f"row {row}"
        return f"{file}: column {self.names[place]!r}, {number}"

    def _schema(self, file: Path) -> tuple[pa.Schema, int]:
        """The file's columns and number of rows; rows of texts are read."""
        import pyarrow.parquet as pq

        with guarded(file):
            if file.suffix.lower() == ".parquet":
                with pq.ParquetFile(file) as parquet:
                    return parquet.schema_arrow, parquet.metadata.num_rows
            self._tables[file] = table = _lines(file)
            return table.schema, table.num_rows

    def _column(self, file: Path, place: int, rows: int) -> Iterator[pa.Array]:
        import pyarrow.parquet as pq

        with guarded(file):
            if file in self._tables:
                yield from self._tables[file].column(place).chunks
                return
            # Else all columns of a row group would be in memory at once, which may be the whole file.
            with pq.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False) as parquet:
                key = [self.keys[place]]
                for batch in parquet.iter_batches(rows, columns=key, use_threads=False):
                    batch.validate(full=True)  # a damaged offset would crash the process
                    yield batch.column(0)

    def classes(self, place: int) -> list[str]:
        """The names that the schema has for the numbers of a column."""
        described = self.features[place]
        names = described.get("names") if described.get("_type") == "ClassLabel" else None
        return list(map(str, names)) if isinstance(names, list) else []

    def texts(self, place: int, names: Sequence[str] = ()) -> list[str]:
        """The cells of a column, "" where missing; class numbers are replaced by `names`, if given."""
        if self.kinds[place] not in ("number", "text"):
            raise self.unfit(place, "has neither integers nor names")
        found: list[str] = []
        for _, _, column in self.chunks(place, max(1, _CELLS // 16)):
            known = {
                value: plain_text(str(names[value] if names and 0 <= value < len(names) else value))
                for value in column.unique().drop_null().to_pylist()
            }
            found += [known.get(value, "") for value in column.to_pylist()]  # NaN is never found
        return found

    def numbers(self, place: int) -> np.ndarray:
        """float64 [n] of a column of numbers, NaN where missing."""
        found = [np.zeros(0)]
        for _, _, column in self.chunks(place, _CELLS):
            values = np.full(len(column), np.nan)
            is_there = column.is_valid().to_numpy(zero_copy_only=False)
            values[is_there] = column.drop_null().to_numpy(zero_copy_only=False)
            found.append(values)
        return np.concatenate(found)

    def unfit(self, place: int, wrong: str) -> UsageError:
        """Error for a column of a type that cannot be used."""
        dtype = " ".join(str(self.types[place]).split())
        return UsageError(f"{self.path}: column {self.names[place]!r} of type {dtype} {wrong}")


def is_number(dtype: pa.DataType) -> bool:
    """True for integers and floating numbers."""
    import pyarrow.types as types

    return types.is_integer(dtype) or types.is_floating(dtype)


def _columns(schema: pa.Schema) -> list[str]:
    """Names and types of the columns; numbers of all types are alike."""
    kinds = ("number" if is_number(dtype) else str(dtype) for dtype in schema.types)
    return [f"{name!r} ({kind})" for name, kind in zip(schema.names, kinds, strict=True)]


def _lines(file: Path) -> pa.Table:
    """All lines of a CSV file that are not empty, as columns of texts.

    The delimiter is the one of comma, semicolon, tab and bar that the header has most of.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", newline="", encoding="utf-8-sig") as stream:
        header = next(filter(str.strip, stream), "")
    delimiter = max(",;\t|", key=header.count)
    width = len(next(csv.reader([header], delimiter=delimiter), []))
    table = arrow_csv.read_csv(
        file,
        arrow_csv.ReadOptions(use_threads=False, autogenerate_column_names=True, block_size=_BLOCK),
        arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        arrow_csv.ConvertOptions(column_types={f"f{place}": pa.string() for place in range(width)}),
    )
    names = [column[0].as_py() for column in table.columns]
    return table.slice(1).rename_columns(names)


def _descriptions(schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """Hugging Face's description of the columns in the schema."""
    text = (schema.metadata or {}).get(b"huggingface")
    found = json.loads(text)["info"]["features"] if text else {}
    return {name: found[name] for name in schema.names if isinstance(found.get(name), dict)}


def _kind_of(dtype: pa.DataType, feature: Mapping[str, Any]) -> str:
    """`Table.kinds`, by a column's type and its description by `datasets`, which may be empty."""
    import pyarrow.types as types

    dtype = getattr(dtype, "storage_type", dtype)
    dtype = dtype.value_type if types.is_dictionary(dtype) else dtype
    described = feature.get("_type")
    if is_number(dtype):
        return "text" if described == "ClassLabel" else "number"
    if types.is_struct(dtype) and dtype.get_field_index("bytes") >= 0:
        return "image" if described in (None, "Image") else "none"
    if types.is_binary(dtype) or types.is_large_binary(dtype):
        return "image"
    return "none" if types.is_nested(dtype) else "text"


# Clients.


def _place(table: Table, option: str, name: str | None, usual: Sequence[str] = ()) -> int | None:
    """The place of the column with this name; without a name that of the first usual one, or None."""
    if name is None:
        small = [name.lower() for name in table.names]
        return next((small.index(name) for name in usual if name in small), None)
    name = plain_text(name)
    if name not in table.names:
        meant = did_you_mean(nearest(name, table.names))
        wrong = f"no such column in {table.path}; the columns are {', '.join(table.names)}{meant}"
        raise UsageError(wrong, key=option, value=name)
    return table.names.index(name)


def _clients(table: Table, place: int) -> np.ndarray:
    """str [n], the client of each row."""
    clients = table.texts(place, table.classes(place))
    for row, client in enumerate(clients):
        if is_nothing(client):
            cell = table.where(place, row)
            raise UsageError(f"{cell}: {client!r} names no client; use a name in every row")
    return np.array(clients)


def _names_of_files(table: Table) -> np.ndarray:
    """str [n], the name of each training row's file without its ending."""
    files = table.splits.train
    names = [file.name.removesuffix(".gz").rpartition(".")[0] for file in files]
    if twice := next((name for name in names if names.count(name) > 1), None):
        wrong, allowed = f"two files are named {twice}", "give each client's file another name"
        raise UsageError(wrong, key="client_key", value=BY_FILE, allowed=allowed)
    return np.repeat(names, table.counts[: len(files)])


# Features, or whole examples.

_Examples = tuple[np.ndarray | tuple[np.ndarray, np.ndarray], Encoder]


def _examples(table: Table, places: list[int], label: str, image_size: int | None) -> _Examples:
    """x: a column of images if there is one, else features; and the encoder of other rows."""
    index = [place for place in places if table.names[place] in index_columns(table.names)]
    _log(table, "columns that are no features: %s (the index of pandas)", index)
    places = [place for place in places if place not in index]
    text = f"column {label!r} is the label, and %s a feature, unless dataset.drop leaves it out"
    _log(table, text, [place for place in places if table.names[place].lower() in LABELS])
    whole = [place for place in places if table.kinds[place] == "image"]
    if len(whole) > 1:
        named = ", ".join(repr(table.names[place]) for place in whole)
        wrong = f"each of the columns {named} is a whole example"
        raise UsageError(f"{table.path}: {wrong}; leave all but one out (dataset.drop)")
    for example in whole:
        others = [place for place in places if place != example]
        _log(table, f"columns beside {table.names[example]!r} are no features: %s", others)
        x = _images(table, example, image_size)
        _, height, width, channels = x[0].shape
        return x, ImageEncoder(width, height, channels)
    for place in places:
        if table.kinds[place] == "none":
            advice = "leave it out (dataset.drop), or save vectors as an .npy file beside the table"
            raise table.unfit(place, f"cannot be a feature; {advice}")
    return _features(table, places)


def _log(table: Table, text: str, places: Sequence[int]) -> None:
    """Log a text about these columns, if there are some."""
    if places:
        named = ", ".join(repr(table.names[place]) for place in places)
        logging.warning(f"%s: {text}", table.path, named)


def _features(table: Table, places: Sequence[int]) -> _Examples:
    """float32 or float64 [n, d] of all rows, NaN where a cell is missing, and the encoder of other rows."""
    columns: list[Column] = []
    found: list[np.ndarray] = []  # [n, k] of each column
    empty, identifiers = list[int](), list[int]()
    for place in places:
        name = table.names[place]
        may_number_rows = _IDENTIFIER.fullmatch(name) is not None
        column = Column(name, classes=tuple(map(plain_text, table.classes(place))))
        if table.kinds[place] == "number" and not may_number_rows:
            values = table.numbers(place)[:, None]
            if np.isnan(values).all():
                empty.append(place)
                continue
        else:
            cells = table.texts(place, table.classes(place))
            own = cells[: table.num_train]
            if all(map(is_nothing, cells)):
                empty.append(place)
                continue
            if may_number_rows and len(set(own)) == len(own):
                identifiers.append(place)
                continue
            column, values = _encoded(table, place, column, cells)
        if not column.texts:
            beyond = {"beyond": 0} if column.are_dates else {}
            column = replace(column, is_wide=is_wide(values, **beyond))
            with np.errstate(over="ignore"):  # to inf, which Dataset refuses
                values = values if column.is_wide else values.astype(np.float32)
        columns.append(column)
        found.append(values)
    _log(table, "columns that are no features: %s (no value)", empty)
    _log(table, "columns that are no features: %s (they number the rows)", identifiers)
    if encoded := [f"{column.name} ({len(column.texts)})" for column in columns if column.texts]:
        text = "%s: columns of text become one feature a text (0 or 1): %s"
        logging.warning(text, table.path, ", ".join(encoded))
    if not columns:
        raise UsageError(f"{table.path}: none of the columns {', '.join(table.names)} is a feature")
    encoder = TableEncoder(tuple(columns), tuple(table.names))
    x = np.concatenate(found, axis=1, dtype=encoder.blank().dtype)
    num_gaps = sum(int(np.isnan(part).any(axis=1).sum()) for part in parts(x))
    if num_gaps:
        logging.warning(
            "%s: %d of %d rows miss a value: it becomes the median of the training rows, and each column "
            "with gaps gets an indicator beside it",
            table.path,
            num_gaps,
            len(x),
        )
    return x, encoder


def _encoded(
    table: Table, place: int, column: Column, cells: list[str]
) -> tuple[Column, np.ndarray]:
    """Numbers [n, 1] of a column of dates or numbers, or one-hot codes [n, k] of texts."""
    if (values := days(cells)) is not None:
        return replace(column, are_dates=True), values[:, None]
    if (values := numbers(cells)) is not None:
        return column, values[:, None]
    known = [cell for cell in dict.fromkeys(cells) if not is_nothing(cell)]
    odd = [cell for cell in known if numbers([cell]) is None]
    if len(odd) < len(known) or all(map(_QUANTITY.fullmatch, odd)):
        raise UsageError(
            f"{table.where(place, cells.index(odd[0]))}: {odd[0]!r} is not a number; write numbers with a "
            "decimal point and dates as 2024-01-31, or leave the row or the column (dataset.drop) out"
        )
    missing = sorted(filter(is_nothing, set(cells)))  # one text, the first of them
    texts = sorted({*known, *missing[:1]})
    if len(texts) > _MOST_TEXTS:
        raise UsageError(
            f"{table.path}: column {column.name!r} has {len(texts)} different texts; up to {_MOST_TEXTS} "
            "become features: leave the column out (dataset.drop), or make numbers of it"
        )
    code = {text: number for number, text in enumerate(texts)}
    if len(missing) > 1:
        code |= dict.fromkeys(missing, code[missing[0]])
        text = "%s: column %r: %s are one text, for a missing value"
        logging.warning(text, table.path, column.name, ", ".join(map(repr, missing)))
    codes = np.fromiter((code[cell] for cell in cells), np.uint8, len(cells))
    return replace(column, texts=tuple(texts)), codes[:, None] == np.arange(len(texts))


def _images(table: Table, place: int, image_size: int | None) -> tuple[np.ndarray, np.ndarray]:
    files, num_train = table.files, table.num_train

    def encoded(files: Sequence[Path]) -> Iterator[Encoded]:
        for file, start, column in table.chunks(place, _IMAGES, files):
            for row, value in enumerate(column.to_pylist(), start=start):
                yield Encoded.of(table.cell(file, place, row), value)

    def make(target: Path) -> None:
        shape = common_shape(encoded(files), image_size)
        numbers = {"train": num_train, "test": len(table) - num_train}
        for split, number in numbers.items():
            images = encoded(getattr(table.splits, split))
            decode(target / f"x-{split}.npy", images, shape, number=number)

    paths = [str(file.resolve()) for file in files]
    key = files_key(files, _FORMAT, paths, num_train, table.keys[place], image_size)
    cached = cached_arrays(f"images-{files[0].resolve().parent.name}", key, make)
    return cached["x-train"], cached["x-test"]
