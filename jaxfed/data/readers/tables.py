"""Tables: each row has an example's features, a label and optionally a client. pyarrow reads all formats.

    A.csv, A.csv.gz, A.tsv, A.data, A.parquet, A.feather, A.arrow, A.jsonl
    'FOLDER/*.csv', 'FOLDER/*.parquet'               a pattern; files train*, test* and val* are the splits
    FOLDER/*.parquet, FOLDER/data/*.parquet          the same, as on Hugging Face: train-00000-of-....parquet
    FOLDER/{train,test}/*.parquet                    in any case, and as training, testing, val

All files of a table have the same columns. All formats give the same arrays for the same values. Cells of a
CSV file are texts, named in its first line; `docs/your-data.md` says what pandas reads otherwise.

* The label is the column `label_key`, by default label, class, target or y in any case. Unlabeled rows are
  those of `jaxfed.data.given_examples`.
* Natural clients are the column `client_key`, by default client_id, client or writer. If it is "file" and no
  column has this name, each of several files is a client, and test files are of all.
* Numbers with a decimal point are one feature, NaN where a cell is missing (`Dataset.has_gaps`). Dates of ISO
  8601 are days since 1970, of UTC. x is float32, or float64 if whole numbers above 2^24 or dates would become
  equal; `preprocessing.kind='standardized'` computes in float64.
* Texts are encoded one-hot, in sorted order; all spellings of a missing value are one text. More than 100
  texts, texts among numbers, and numbers or dates in another spelling (1,5) are refused.
* Columns without any value, row identifiers and the index as pandas writes it are left out, and the log names
  them. A row identifier is named id, row number or the like, and has another value in each row.
* A column of images (bytes, or a struct with them) is the example by itself, uint8 [n, h, w, c], sized and
  cached as images of a folder are. Names of classes come from Hugging Face's description in the schema.
* Examples may be arrays in files of their own (`jaxfed.data.readers.arrays`): row i is row i of the table.
* Columns beside images or arrays are left out, with a line.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from jaxfed.data.cache import cached_arrays, files_key
from jaxfed.data.dataset import Dataset, Encoder, dataset_of, has_gaps
from jaxfed.data.given_examples import NUMBER, is_nothing, plain_text
from jaxfed.data.mapped_rows import parts
from jaxfed.data.readers import Splits, guarded
from jaxfed.data.readers.images import Encoded, ImageEncoder, common_shape, decode
from jaxfed.errors import UsageError, did_you_mean, nearest

TEXT_ENDINGS = (".csv", ".tsv", ".data", ".csv.gz", ".data.gz")
ENDINGS = (".parquet", ".feather", ".arrow", ".jsonl", *TEXT_ENDINGS)
_BLOCK = 2**24  # bytes of a CSV file that are parsed at a time; no line is longer
LABELS = ("label", "class", "target", "y")
CLIENTS = ("client_id", "client", "writer")
NO_NAME = "(no name)"
BY_FILE = "file"  # as `client_key` of several files, each of one client
_MOST_TEXTS = 100  # of a column that becomes features
_FORMAT = 2  # raise it whenever the same files give other images
_IDENTIFIER = re.compile(  # names of row identifiers
    r"(row|record|sample|patient|subject|user|case|person|customer)?[ _-]?(id|index|uuid|guid|no|nr|number)"
    r"|row|" + re.escape(NO_NAME),
    re.IGNORECASE,
)
_INDEX = re.compile(  # names of the index as pandas writes it, to Parquet or CSV, by reset_index or read anew
    r"__index_level_[0-9]+__|index|level_[0-9]+|unnamed: 0([._][0-9]+)*", re.IGNORECASE
)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([ t][0-9].*)?", re.IGNORECASE)
# Decimal commas, groups of digits, shares, hexadecimals, infinity, dates.
_OTHER_SPELLING = re.compile(
    r"[+-]?[0-9][0-9.]*,[0-9.,]*|[+-]?[0-9.,]+ ?%|[+-]?0x[0-9a-f]+|[+-]?inf(inity)?"
    r"|[0-9]{1,4}[-./][0-9]{1,2}[-./][0-9]{1,4}([ t].*)?",
    re.IGNORECASE,
)
_EXACT = 2**24  # float32 has all whole numbers up to here
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def number(cell: str) -> float | None:
    """The number in a cell, NaN where it is missing; None if it is written otherwise."""
    if NUMBER.fullmatch(cell):
        return float(cell)
    return np.nan if is_nothing(cell) else None


def days(cell: str) -> float | None:
    """Days from 1970 to the date in a cell, NaN where it is missing; None if it is written otherwise."""
    if not _DATE.fullmatch(cell):
        return np.nan if is_nothing(cell) else None
    try:
        time = datetime.fromisoformat(cell)
    except ValueError:
        return None
    return (time.replace(tzinfo=time.tzinfo or UTC) - _EPOCH) / timedelta(days=1)


def is_wide(values: np.ndarray, beyond: float = _EXACT) -> bool:
    """True if different values, some of them larger than `beyond`, become one in float32; float64 [n]."""
    known = values[np.isfinite(values)]
    if not np.abs(known).max(initial=0) > beyond:
        return False
    known = np.unique(known)
    with np.errstate(over="ignore"):  # to inf, which Dataset refuses
        rounded = np.unique(known.astype(np.float32))
    return bool(len(rounded) < len(known) and np.isfinite(rounded).all())


@dataclass(frozen=True)
class Column:
    """A column of features: numbers, or texts, each of which is a number 0 or 1.

    Attributes:
        name: in the header.
        texts: that occurred, in the order of their numbers; () for a column of numbers.
        are_dates: cells are dates, which become days.
        is_wide: numbers are of 64 bits, since float32 makes some of the training data's equal.
    """

    name: str
    texts: tuple[str, ...] = ()
    are_dates: bool = False
    is_wide: bool = False

    def encoded(self, cells: Sequence[str]) -> np.ndarray:
        """Return numbers [n, 1 or more] of the rows' cells, NaN where one is missing."""
        known = {cell: self._value(cell) for cell in set(cells)}
        values = [known[cell] for cell in cells]
        if None in values:
            row = values.index(None)
            wanted = f"; give a {'date, such as 2024-01-31' if self.are_dates else 'finite number'}"
            if self.texts:
                meant = did_you_mean(nearest(cells[row], self.texts))
                allowed = meant or f"; choose one of {', '.join(map(repr, self.texts))}"
                wanted = f", which is not in the training data{allowed}"
            raise UsageError(f"row {row}: column {self.name!r} has {cells[row]!r}{wanted}")
        if self.texts:
            return np.array(values)[:, None] == np.arange(len(self.texts))
        return np.array(values, np.float64 if self.is_wide else np.float32)[:, None]

    def _value(self, cell: str) -> float | None:
        """The number of a cell, or the index of its text; NaN for a missing number, None for any other cell.

        Missing, true and false texts may be spelled otherwise: pandas makes True of true and TRUE.
        """
        if cell in self.texts:
            return self.texts.index(cell)
        if self.texts:
            form, *forms = (
                "" if is_nothing(each) else each.lower() for each in (cell, *self.texts)
            )
            is_known = form in ("", "true", "false") and forms.count(form) == 1
            return forms.index(form) if is_known else None
        value = days(cell) if self.are_dates else number(cell)
        with np.errstate(over="ignore"):
            return None if value is None or np.isinf(np.float32(value)) else value


@dataclass(frozen=True)
class TableEncoder:
    """Encoder of rows of a table.

    Attributes:
        columns: of features, in the order of their numbers.
    """

    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of an example's numbers: NAME=TEXT for texts that have one each."""
        names = (
            [f"{each.name}={text}" for text in each.texts] or [each.name] for each in self.columns
        )
        return tuple(chain.from_iterable(names))

    @property
    def accepts(self) -> str:
        """The kinds of rows in words."""
        names = ", ".join(column.name for column in self.columns)
        return f"a dict, a list of dicts or a pandas.DataFrame of the columns {names}"

    def __call__(self, rows: Any) -> np.ndarray:
        """Return [n, d] of the data set's type, NaN where a number is missing."""
        if hasattr(rows, "to_dict"):  # pandas: a frame or one row
            rows = rows.to_dict("records") if getattr(rows, "ndim", 1) == 2 else rows.to_dict()
        if isinstance(rows, Mapping):
            rows = [rows]
        rows = list(rows) if isinstance(rows, Iterable) else [rows]
        wanted, lines = [column.name for column in self.columns], list[list[str]]()
        for i, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise UsageError(f"row {i} is {row!r}; give {self.accepts}")
            cells = {plain_text(str(name)) or NO_NAME: value for name, value in row.items()}
            if lacking := [name for name in wanted if name not in cells]:
                near = did_you_mean(nearest(lacking[0], list(cells)))
                allowed = f"give {', '.join(wanted)}, None where a value is missing"
                raise UsageError(f"row {i}: has no column {lacking[0]!r}{near}; {allowed}")
            lines.append([_text(cells[name]) for name in wanted])
        blocks = [
            column.encoded([line[index] for line in lines])
            for index, column in enumerate(self.columns)
        ]
        return np.concatenate(blocks, axis=1).astype(self.blank().dtype, copy=False)

    def blank(self) -> np.ndarray:
        """Return no rows, float32 [0, d], or float64 if a column is wide."""
        is_any_wide = any(column.is_wide for column in self.columns)
        return np.zeros((0, len(self.names)), np.float64 if is_any_wide else np.float32)


def _text(value: Any) -> str:
    """A cell as the reader of a file has it."""
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]")  # of nanoseconds item() would be an integer
    if isinstance(value, np.generic):
        value = value.item()  # of all its digits: 0.1 of float16 is 0.0999...
    is_no_time = isinstance(value, datetime) and value != value
    return "" if is_no_time else plain_text(str(value))


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
    and line or row. Cost: a million cells of texts a second. Memory: the table, and twice that of x.
    """
    table = Table(path, splits)
    names, num_train = table.names, table.num_train
    label = _column_index(table, "label_key", label_key, LABELS)
    if label is None:
        wrong = f"no column of {path} is named {', '.join(LABELS[:-1])} or {LABELS[-1]}"
        allowed = f"name the label's column out of {', '.join(names)}"
        raise UsageError(wrong, key="label_key", allowed=allowed)
    is_by_file = client_key == BY_FILE and len(table.files) > 1 and BY_FILE not in names
    client = None if is_by_file else _column_index(table, "client_key", client_key, CLIENTS)
    dropped = {_column_index(table, "drop", name) for name in drop or ()}
    for key, index, others in (("client_key", client, {label}), ("drop", label, dropped)):
        if index is not None and index in others:
            raise UsageError(f"is the label's column in {path}", key=key, value=names[index])
    indices = [index for index in range(len(names)) if index not in {label, client, *dropped}]
    if arrays is None:
        (x, x_test), encoder = _examples(table, indices, names[label], image_size)
    else:
        _log(table, "columns beside the arrays are no features: %s", indices)
        (x, x_test), encoder = arrays, None
    if image_size is not None and not isinstance(encoder, ImageEncoder):
        wrong = f"does not apply to {path}, which has no column of images"
        raise UsageError(wrong, key="image_size", value=image_size, allowed="leave it out")
    sizes = ("train", x, num_train), ("test", x_test, len(table) - num_train)
    for name, part, number in sizes:
        if len(part) != number:
            wrong = f"{len(part)} examples and {number} rows of the table in the {name} split"
            raise UsageError(f"{path}: {wrong}; row i of the arrays is row i of the table")
    y, y_test = np.split(np.array(table.texts(label, is_label=True), np.str_), [num_train])
    return dataset_of(
        path,
        [(x, y), (x_test, y_test)],
        where=f"{path}: column {names[label]!r}",
        class_names=table.classes[label] or None,
        clients=(None, None) if client is None and not is_by_file else _clients(table, client),
        has_gaps=isinstance(encoder, TableEncoder) and has_gaps(x, x_test),
        encoder=encoder,
    )


class Table:
    """Columns of a table's files; rows of the test split follow those for training.

    Attributes:
        path: the file, folder or pattern, for messages.
        splits, files: of each split, and of both.
        num_train: rows of the training split.
        names, columns: names of the columns, and their values as arrays of pyarrow.
        classes: of each column, names of the numbers in it; [] if they have none.
        kinds: of each column: "number", "text", "image" (its bytes), or "none": it cannot be a feature.

    Raises:
        UsageError: a file cannot be read, or has other columns than the first.
    """

    def __init__(self, path: Path, splits: Splits) -> None:
        import pyarrow as pa

        self.path, self.splits, self.files = path, splits, [*splits.train, *splits.test]
        tables = list(map(_table, self.files))
        self.counts = [table.num_rows for table in tables]
        self.num_train = sum(self.counts[: len(splits.train)])
        keys = tables[0].column_names
        for file, table in zip(self.files, tables, strict=True):
            if table.column_names != keys:
                wrong = f"columns {table.column_names} where {self.files[0]} has {keys}"
                raise UsageError(f"{file}: {wrong}; all files need the same columns")
        self.names = [plain_text(key) or NO_NAME for key in keys]
        twice = (name for name in self.names if self.names.count(name) > 1 and name != NO_NAME)
        if name := next(twice, None):
            raise UsageError(f"{path}: two columns are named {name!r}; use different names")
        if len(self) < 2 - self.files[0].name.lower().endswith(TEXT_ENDINGS):
            raise UsageError(f"{path}: {len(self)} rows; use a table of two or more")
        unique = [f"{index}: {name}" for index, name in enumerate(self.names)]
        numbered = [table.rename_columns(unique) for table in tables]
        joint = pa.concat_tables(numbered, promote_options="permissive")
        self.columns = list(map(_plain, joint.columns))
        # Hugging Face's description of the columns in the schema.
        text = (tables[0].schema.metadata or {}).get(b"huggingface")
        described = json.loads(text)["info"]["features"] if text else {}
        features = [each if isinstance(each, dict) else {} for each in map(described.get, keys)]
        self.kinds = list(map(_kind_of, self.columns, features))
        self.classes = [feature.get("names") or [] for feature in features]

    def __len__(self) -> int:
        """Rows of all files."""
        return sum(self.counts)

    def where(self, index: int, row: int) -> str:
        """Name a cell by file, column, and the line or row in the file."""
        ends = np.cumsum(self.counts)
        number = int(np.searchsorted(ends, row, side="right"))
        file, row = self.files[number], row - int(ends[number] - self.counts[number])
        is_text = file.name.lower().endswith(TEXT_ENDINGS)
        return f"{file}: column {self.names[index]!r}, {f'line {row + 2}' if is_text else f'row {row}'}"

    def texts(self, index: int, *, is_label: bool = False) -> list[str]:
        """The cells of a column, "" where missing; numbers of classes, but for a label, are their names."""
        if self.kinds[index] not in ("number", "text"):
            dtype = " ".join(str(self.columns[index].type).split())
            raise UsageError(
                f"{self.path}: column {self.names[index]!r} of type {dtype} has neither numbers nor texts; "
                "save vectors as an .npy file beside the table, and leave other columns out (dataset.drop)"
            )
        column, names = self.columns[index], [] if is_label else self.classes[index]
        known = {
            value: plain_text(str(names[value] if names and 0 <= value < len(names) else value))
            for value in column.unique().drop_null().to_pylist()
        }
        return [known.get(value, "") for value in column.to_pylist()]  # NaN is never found


def _table(file: Path) -> Any:
    """The pyarrow.Table of a file."""
    from pyarrow import OSFile, ipc, parquet
    from pyarrow import json as arrow_json

    def arrow(file: Path) -> Any:  # pyarrow.feather crashes on a damaged file of its first version
        return ipc.open_file(OSFile(str(file))).read_all()

    def objects(file: Path) -> Any:
        with file.open("rb") as stream:
            start = stream.read(2**10).lstrip(b"\xef\xbb\xbf \r\n\t")
        if not start.startswith(b"{"):  # pyarrow crashes if null is the first value
            raise ValueError("its first line is no JSON object")
        return arrow_json.read_json(file)

    readers = {".feather": arrow, ".arrow": arrow, ".jsonl": objects}
    readers[".parquet"] = lambda file: parquet.ParquetFile(file).read()
    with guarded(file):
        table = readers.get(file.suffix.lower(), _lines)(file)
        table.validate(full=True)  # a damaged offset would crash the process
        return table


def _lines(file: Path) -> Any:
    """All lines of a CSV file that are not empty, as columns of texts.

    The delimiter is the one of comma, semicolon, tab and bar that the header has most of.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", newline="", encoding="utf-8-sig") as stream:
        header = next(filter(str.strip, stream), "")
    delimiter = max(",;\t|", key=header.count)
    names = next(csv.reader([header], delimiter=delimiter), [])
    return arrow_csv.read_csv(
        file,
        arrow_csv.ReadOptions(block_size=_BLOCK, use_threads=False),  # errors name the row
        arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
    )


def _plain(column: Any) -> Any:
    """A column's values, without extension types and dictionaries."""
    import pyarrow.types as types

    dtype = getattr(column.type, "storage_type", column.type)
    return column.cast(dtype.value_type if types.is_dictionary(dtype) else dtype)


def _kind_of(column: Any, feature: dict[str, Any]) -> str:
    """`Table.kinds`, by a column's type and its description by `datasets`, which may be empty."""
    import pyarrow.types as types

    dtype, described = column.type, feature.get("_type")
    if types.is_integer(dtype) or types.is_floating(dtype):
        return "text" if described == "ClassLabel" else "number"
    if types.is_struct(dtype) and dtype.get_field_index("bytes") >= 0:
        return "image" if described in (None, "Image") else "none"
    if types.is_binary(dtype) or types.is_large_binary(dtype):
        return "image"
    return "none" if types.is_nested(dtype) or types.is_duration(dtype) else "text"


def _column_index(
    table: Table, option: str, name: str | None, usual: Sequence[str] = ()
) -> int | None:
    """The index of the column with this name; without a name that of the first usual one, or None."""
    if name is None:
        small = [name.lower() for name in table.names]
        return next((small.index(name) for name in usual if name in small), None)
    name = plain_text(name)
    if name not in table.names:
        meant = did_you_mean(nearest(name, table.names))
        wrong = f"no such column in {table.path}; the columns are {', '.join(table.names)}{meant}"
        raise UsageError(wrong, key=option, value=name)
    return table.names.index(name)


def _clients(table: Table, index: int | None) -> Sequence[np.ndarray | None]:
    """The client of each row, str [n], of both splits; without a column that of each training file."""
    if index is not None:
        clients = table.texts(index)
        if nameless := list(filter(is_nothing, clients)):
            cell = table.where(index, clients.index(nameless[0]))
            raise UsageError(f"{cell}: {nameless[0]!r} names no client; use a name in every row")
        return np.split(np.array(clients), [table.num_train])
    names = [file.name.removesuffix(".gz").rpartition(".")[0] for file in table.splits.train]
    if twice := next((name for name in names if names.count(name) > 1), None):
        wrong, allowed = f"two files are named {twice}", "give each client's file another name"
        raise UsageError(wrong, key="client_key", value=BY_FILE, allowed=allowed)
    return np.repeat(names, table.counts[: len(names)]), None


# Features, or whole examples.

_Examples = tuple[tuple[np.ndarray, np.ndarray], Encoder]


def _examples(table: Table, indices: list[int], label: str, image_size: int | None) -> _Examples:
    """x of both splits: a column of images if there is one, else features; and the encoder of other rows."""
    pandas_index = [index for index in indices if _INDEX.fullmatch(table.names[index])]
    pandas_index += [0] if 0 in indices and table.names[0] == NO_NAME else []
    _log(table, "columns that are no features: %s (the index of pandas)", pandas_index)
    indices = [index for index in indices if index not in pandas_index]
    text = f"column {label!r} is the label, and %s a feature, unless dataset.drop leaves it out"
    _log(table, text, [index for index in indices if table.names[index].lower() in LABELS])
    whole = [index for index in indices if table.kinds[index] == "image"]
    if len(whole) > 1:
        named = ", ".join(repr(table.names[index]) for index in whole)
        wrong = f"each of the columns {named} is a whole example"
        raise UsageError(f"{table.path}: {wrong}; leave all but one out (dataset.drop)")
    for example in whole:
        others = [index for index in indices if index != example]
        _log(table, f"columns beside {table.names[example]!r} are no features: %s", others)
        return _images(table, example, image_size)
    return _features(table, indices)


def _log(table: Table, text: str, indices: Sequence[int]) -> None:
    """Log a text about these columns, if there are some."""
    if indices:
        named = ", ".join(repr(table.names[index]) for index in indices)
        logging.warning(f"%s: {text}", table.path, named)


def _features(table: Table, indices: Sequence[int]) -> _Examples:
    """float32 or float64 [n, d] of all rows, NaN where a cell is missing, and the encoder of other rows."""
    columns, blocks = list[Column](), list[np.ndarray]()  # [n, k] of each column
    empty, identifiers = list[int](), list[int]()
    for index in indices:
        name = table.names[index]
        may_number_rows = _IDENTIFIER.fullmatch(name) is not None
        if table.kinds[index] == "number" and not may_number_rows:
            floats = table.columns[index].cast("float64", safe=False)
            column, values = Column(name), floats.to_numpy()[:, None]
        else:
            cells = table.texts(index)
            if may_number_rows and len(set(cells[: table.num_train])) == table.num_train:
                identifiers.append(index)
                continue
            column, values = _encoded(table, index, cells)
        if np.isnan(values).all():
            empty.append(index)
            continue
        if not column.texts:
            beyond = 0 if column.are_dates else _EXACT
            column = replace(column, is_wide=is_wide(values, beyond))
            with np.errstate(over="ignore"):  # to inf, which Dataset refuses
                values = values if column.is_wide else values.astype(np.float32)
        columns.append(column)
        blocks.append(values)
    _log(table, "columns that are no features: %s (no value)", empty)
    _log(table, "columns that are no features: %s (they number the rows)", identifiers)
    if encoded := [f"{column.name} ({len(column.texts)})" for column in columns if column.texts]:
        text = "%s: columns of text become one feature a text (0 or 1): %s"
        logging.warning(text, table.path, ", ".join(encoded))
    if not columns:
        raise UsageError(f"{table.path}: none of the columns {', '.join(table.names)} is a feature")
    encoder = TableEncoder(tuple(columns))
    x = np.concatenate(blocks, axis=1, dtype=encoder.blank().dtype)
    if num_gaps := sum(int(np.isnan(part).any(axis=1).sum()) for part in parts(x)):
        text = "%s: %d of %d rows miss a value; medians of the training rows replace them, with an indicator"
        logging.warning(text, table.path, num_gaps, len(x))
    return (x[: table.num_train], x[table.num_train :]), encoder


def _encoded(table: Table, index: int, cells: list[str]) -> tuple[Column, np.ndarray]:
    """Numbers [n, 1] of a column of dates or numbers, or one-hot codes [n, k] of texts."""
    column = Column(table.names[index])
    for read in (days, number):
        known = {cell: read(cell) for cell in set(cells)}
        if None not in known.values():
            values = np.array([known[cell] for cell in cells])
            return replace(column, are_dates=read is days), values[:, None]
    texts = sorted(cell for cell in known if not is_nothing(cell))
    odd = [text for text in texts if known[text] is None]
    if len(odd) < len(texts) or all(map(_OTHER_SPELLING.fullmatch, odd)):
        row = next(row for row, cell in enumerate(cells) if cell in odd)
        raise UsageError(
            f"{table.where(index, row)}: {cells[row]!r} is not a number; write numbers with a decimal point "
            "and without groups of digits, dates as 2024-01-31, or leave the row or the column "
            "(dataset.drop) out"
        )
    texts = sorted([*texts, *sorted(filter(is_nothing, known))[:1]])  # one text for missing
    if len(texts) > _MOST_TEXTS:
        raise UsageError(
            f"{table.path}: column {column.name!r} has {len(texts)} different texts; up to {_MOST_TEXTS} "
            "become features: leave the column out (dataset.drop), or make numbers of it"
        )
    column = replace(column, texts=tuple(texts))
    return column, column.encoded(cells)


def _images(table: Table, index: int, image_size: int | None) -> _Examples:
    num_train = table.num_train

    def make(target: Path) -> None:
        cells = enumerate(table.columns[index].to_pylist())
        images = [Encoded.of(table.where(index, row), cell) for row, cell in cells]
        shape = common_shape(images, image_size)
        decode(target / "x-train.npy", images[:num_train], shape)
        decode(target / "x-test.npy", images[num_train:], shape)

    paths = [str(file.resolve()) for file in table.files]
    key = files_key(table.files, _FORMAT, paths, num_train, table.names[index], image_size)
    cached = cached_arrays(f"images-{table.files[0].resolve().parent.name}", key, make)
    _, height, width, channels = cached["x-train"].shape
    return (cached["x-train"], cached["x-test"]), ImageEncoder(width, height, channels)
