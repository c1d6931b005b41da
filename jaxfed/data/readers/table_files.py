"""Files of one table as Arrow columns: CSV and Parquet; and which files are its splits.

A.csv, A.csv.gz, A.tsv, A.data, A.parquet
'FOLDER/*.csv', 'FOLDER/*.parquet'               a pattern; files train*, test* and val* are the splits
FOLDER/*.parquet, FOLDER/data/*.parquet          the same, as on Hugging Face: train-00000-of-00001.parquet
FOLDER/{train,test}/*.parquet

All files have one schema. Cells of a CSV file are texts, and its first line names the columns.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from glob import glob
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import logging

from jaxfed.data.labels import plain_text
from jaxfed.data.readers.guard import guarded
from jaxfed.data.readers.image_folder import TEST_NAMES, TRAIN_NAMES
from jaxfed.data.readers.table_encoder import NO_NAME
from jaxfed.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

TEXT_ENDINGS = (".csv", ".tsv", ".data", ".csv.gz", ".data.gz")
ENDINGS = (".parquet", *TEXT_ENDINGS)
_BLOCK = 2**24  # bytes of a CSV file that are parsed at a time; no line is longer
_BUFFER = 2**16  # bytes of a Parquet column that are read at a time


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
    return any(_files_in(place) for place in (folder / "train", folder, folder / "data"))


def splits_of(folder: Path) -> Splits:
    """The files of a folder in one of the layouts above."""
    if _files_in(folder / "train"):
        places = sorted(filter(Path.is_dir, folder.iterdir()))
        found = {place.name: _files_in(place) for place in places}
        return _chosen(found, [file for files in found.values() for file in files])
    return splits_by_name(_files_in(folder) or _files_in(folder / "data"))


def _files_in(folder: Path) -> list[Path]:
    """The Parquet files in a folder, sorted."""
    return matching(folder / "*.parquet")


class TableFiles:
    """Columns of a table's files; rows of the test split follow those for training.

    Attributes:
        path: the file, folder or pattern, for messages.
        files: of both splits.
        counts: rows of each file.
        num_train: rows of the training split.
        names: names of the columns.
        types: of the columns.
        features: description of each column by Hugging Face's `datasets`; {} without one.

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
        described = _features(first)
        self.features = [described.get(key, {}) for key in self.keys]
        named = [name for name in self.names if name != NO_NAME]
        if twice := next((name for name in named if named.count(name) > 1), None):
            raise UsageError(f"{path}: two columns are named {twice!r}; use different names")
        if sum(self.counts) < 2 - file.name.lower().endswith(TEXT_ENDINGS):
            raise UsageError(f"{path}: {sum(self.counts)} rows; use a table of two or more")
        self.num_train = sum(self.counts[: len(splits.train)])

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


def _features(schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """Hugging Face's description of the columns in the schema."""
    text = (schema.metadata or {}).get(b"huggingface")
    found = json.loads(text)["info"]["features"] if text else {}
    return {name: found[name] for name in schema.names if isinstance(found.get(name), dict)}
