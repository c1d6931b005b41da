"""Files of one table as Arrow columns: CSV, Parquet, Arrow streams; and which files are its splits.

A.csv, A.csv.gz, A.tsv, A.data, A.parquet, A.arrow
'FOLDER/*.csv', 'FOLDER/*.parquet'               a pattern; files train*, test* and val* are the splits
FOLDER/*.parquet, FOLDER/data/*.parquet          the same, as on Hugging Face: train-00000-of-00001.parquet
FOLDER/{train,test}/*.parquet
FOLDER/{data-*.arrow,state.json}                 `datasets.Dataset.save_to_disk`
FOLDER/{train,test}/{data-*.arrow,state.json}    `datasets.DatasetDict.save_to_disk`

All files have one schema. Cells of a CSV file are texts.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import glob
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import logging

from jaxfed.data.labels import plain_text
from jaxfed.data.readers.cells import TABLE_ENDINGS, is_a_quantity
from jaxfed.data.readers.guard import guarded
from jaxfed.data.readers.image_folder import TEST_NAMES, TRAIN_NAMES, chosen_splits
from jaxfed.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

ARROW_ENDINGS = (".parquet", ".arrow")
ENDINGS = (*ARROW_ENDINGS, *TABLE_ENDINGS)
LABELS = ("label", "class", "target", "y")
NO_NAME = "(no name)"
_LINES_LOOKED_AT = 20  # for the delimiter
_BLOCK = 2**24  # bytes of a CSV file that are parsed at a time; no line is longer
_BUFFER = 2**16  # bytes of a Parquet column that are read at a time
_STATE = "state.json"  # of `save_to_disk`: names the files


class Splits(NamedTuple):
    """Files of a table, in the order of their rows; `test` may be empty.

    The last `num_validation` files of `train` are for validation.
    """

    train: list[Path]
    test: list[Path]
    num_validation: int = 0


def matching(pattern: Path) -> list[Path]:
    """The files that a pattern matches, sorted."""
    return sorted(file for file in map(Path, glob(str(pattern))) if file.is_file())


def splits_by_name(files: Sequence[Path]) -> Splits:
    """Files train* (training*) and test* are splits; without the first all files are for training.

    The first of test, testing, val, valid and validation that exists is the test split. The first of the last
    three that exists beside a test split is for validation. Other files are not read, and a line names them.
    """

    def named(name: str) -> list[Path]:
        return [file for file in files if re.match(rf"{name}([^a-z]|$)", file.name.lower())]

    train = [file for name in TRAIN_NAMES for file in named(name)]
    return _chosen({"train": train, **{name: named(name) for name in TEST_NAMES}}, files)


def _chosen(splits: Mapping[str, Sequence[Path]], files: Sequence[Path]) -> Splits:
    """Select the training and the test split by their names, out of all files; the others are logged."""
    if not splits.get("train"):
        return Splits(list(files), [])
    names = [name for name in splits if name != "train" and splits[name]]
    test, validation = (
        [] if place is None else list(splits[names[place]]) for place in chosen_splits(names)
    )
    found = Splits([*splits["train"], *validation], test, len(validation))
    others = [str(file) for file in files if file not in found.train and file not in found.test]
    if others:
        text = "%s: files of no split are not read: %s"
        logging.warning(text, files[0].parent, ", ".join(others))
    return found


def recognizes(folder: Path) -> bool:
    """True for a folder in one of the layouts above."""
    return bool(_split_folders(folder) or _files_in(folder) or _files_in(folder / "data"))


def splits_of(folder: Path) -> Splits:
    """The files of a folder in one of the layouts above."""
    if folders := _split_folders(folder):
        found = {place.name: _files_in(place) for place in folders}
        return _chosen(found, [file for files in found.values() for file in files])
    return splits_by_name(_files_in(folder) or _files_in(folder / "data"))


def _files_in(folder: Path) -> list[Path]:
    """The Parquet files in a folder or, without one, its Arrow files, in the order of their rows."""
    if (folder / _STATE).is_file():
        with guarded(folder / _STATE):
            listed = json.loads((folder / _STATE).read_text(encoding="utf-8"))["_data_files"]
            return [folder / Path(file["filename"]).name for file in listed]
    parquet, arrow = (
        sorted(file for file in folder.glob(f"*{ending}") if file.is_file())
        for ending in ARROW_ENDINGS
    )
    # `Dataset.map` of Hugging Face leaves its caches beside the data.
    return parquet or [file for file in arrow if not file.name.startswith("cache-")]


def _split_folders(folder: Path) -> list[Path]:
    """The folders of splits; none without train/."""
    if not _files_in(folder / "train"):
        return []
    return sorted(place for place in folder.iterdir() if place.is_dir() and _files_in(place))


class TableFiles:
    """Columns of a table's files; rows of the test split follow those for training.

    Attributes:
        path: the file, folder or pattern, for messages.
        files: of both splits.
        counts: rows of each file.
        num_train: rows of the training split, those for validation last.
        num_validation: number of these.
        names: names of the columns; their places if a CSV file has no header.
        has_header: False for CSV files without a header.
        types: of the columns.
        features: description of each column by Hugging Face's `datasets`; {} without one.
        delimiter: of the cells in a line of text.

    Raises:
        UsageError: a file cannot be read, or has another schema than the first.
    """

    def __init__(self, path: Path, splits: Splits, label_key: str | None) -> None:
        self.path, self.splits = path, splits
        self.files = [*splits.train, *splits.test]
        self.has_header, self.delimiter = True, ","
        self._texts: dict[Path, pa.Table] = {}
        first = self.files[0]
        if first.name.lower().endswith(TABLE_ENDINGS):
            self._read_texts(label_key)
            self.keys = self._texts[first].column_names
            self.counts = [self._texts[file].num_rows for file in self.files]
            self.types = self._texts[first].schema.types
            described = {}
        else:
            found = list(map(_schema, self.files))
            schema, self.counts = found[0][0], [count for _, count in found]
            for file, (other, _) in zip(self.files, found, strict=True):
                self._check_schema(file, other, schema)
            self.keys, self.types = schema.names, schema.types
            self.names = list(map(plain_text, self.keys))
            described = _features(schema, first)
        self.features = [described.get(key, {}) for key in self.keys]
        named = [name for name in self.names if name != NO_NAME]
        if twice := next((name for name in named if named.count(name) > 1), None):
            where = " in the first line, which is taken for a header" * bool(self._texts)
            wrong = f"two columns are named {twice!r}{where}; use a different name for each"
            raise UsageError(f"{path}: {wrong}")
        number = sum(self.counts) + bool(self._texts and self.has_header and self.names)
        if number < 2:
            wrong = "lines" if self._texts else "rows"
            raise UsageError(f"{path}: {number} {wrong}; use a table of two or more")
        of_train = self.counts[: len(splits.train)]
        self.num_train = sum(of_train)
        self.num_validation = sum(of_train[len(of_train) - splits.num_validation :])

    def chunks(
        self, place: int, rows: int, files: Sequence[Path] | None = None
    ) -> Iterator[tuple[Path, int, pa.Array]]:
        """Some rows of a column at a time: file, number of the first of these rows in it, values."""
        for file in self.files if files is None else files:
            start = 0
            for column in self._column(file, place, rows):
                yield file, start, _plain(column)
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
        number = f"line {row + 1 + self.has_header}" if self._texts else f"row {row}"
        return f"{file}: column {self.names[place]!r}, {number}"

    def _column(self, file: Path, place: int, rows: int) -> Iterator[pa.Array]:
        if self._texts:
            yield from self._texts[file].column(place).chunks
            return
        with guarded(file):
            for batch in _batches(file, self.keys[place], rows):
                batch.validate(full=True)  # a damaged offset would crash the process
                yield batch

    def _read_texts(self, label_key: str | None) -> None:
        """Read all CSV files; the first line of the first decides whether all have a header."""
        first = self.files[0]
        for file in self.files:
            delimiter, width = _form(file)
            table = self._texts[file] = _lines(file, delimiter, width)
            if file is first:
                header, self.delimiter = _first_row(table), delimiter
                self.has_header = _is_header(table, label_key)
            elif self.has_header and _first_row(table) != header:
                raise _differs(file, first, _first_row(table), header)
            elif table.num_columns != len(header):
                found = f"line 1 has {table.num_columns} columns, the first {len(header)}"
                raise UsageError(f"{file}: {found}")
            self._texts[file] = table.slice(int(self.has_header))
        self.names = list(map(str, range(len(header))))
        if (
            self.has_header
        ):  # without a name: an index as pandas writes it, or a spreadsheet's empty column
            names = list(map(plain_text, header))
            self.names = [NO_NAME if name in ("", NO_NAME) else name for name in names]

    def _check_schema(self, file: Path, schema: pa.Schema, first: pa.Schema) -> None:
        if schema.names != first.names:
            raise _differs(file, self.files[0], schema.names, first.names)
        for mine, other in zip(schema, first, strict=True):
            if mine.type != other.type and not (is_number(mine.type) and is_number(other.type)):
                raise UsageError(
                    f"{file}: column {mine.name!r} has type {mine.type}, in {self.files[0]} it is "
                    f"{other.type}; all files need one schema"
                )


def is_number(dtype: pa.DataType) -> bool:
    """True for integers and floating numbers."""
    import pyarrow.types as types

    return types.is_integer(dtype) or types.is_floating(dtype)


def _plain(column: pa.Array) -> pa.Array:
    """The column without dictionary or extension."""
    column = getattr(column, "storage", column)
    return column.dictionary_decode() if hasattr(column, "dictionary_decode") else column


def _form(file: Path) -> tuple[str, int]:
    """The delimiter and the number of cells in a line; 0 of an empty file.

    The delimiter gives the first lines an equal number of cells, above one; commas are tried last.
    """
    with (
        guarded(file),
        (gzip.open if file.suffix == ".gz" else open)(
            file, "rt", newline="", encoding="utf-8-sig"
        ) as stream,
    ):
        lines = list(islice(stream, _LINES_LOOKED_AT))
    widths = {
        delimiter: [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
        for delimiter in ";\t|,"
    }
    alike = (each for each, of in widths.items() if len(set(of)) == 1 and of[0] > 1)
    most = max(",;\t|", key=(lines or [""])[0].count)
    delimiter = next(alike, most)
    return delimiter, (widths[delimiter] or [0])[0]


def _lines(file: Path, delimiter: str, width: int) -> pa.Table:
    """All lines of a CSV file that are not empty, the first included, as columns of texts."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    if not width:
        return pa.table({})
    odd: list[Any] = []

    def refuse(row: Any) -> str:
        odd.append(row)
        return "error"

    with guarded(file):
        try:
            return arrow_csv.read_csv(
                file,
                arrow_csv.ReadOptions(
                    use_threads=False, autogenerate_column_names=True, block_size=_BLOCK
                ),
                arrow_csv.ParseOptions(
                    delimiter=delimiter, newlines_in_values=True, invalid_row_handler=refuse
                ),
                arrow_csv.ConvertOptions(
                    column_types={f"f{place}": pa.string() for place in range(width)}
                ),
            )
        except pa.ArrowInvalid:
            if not odd:
                raise
    line, found, wanted = odd[0].number, odd[0].actual_columns, odd[0].expected_columns
    raise UsageError(f"{file}: line {line} has {found} columns, the first {wanted}")


def _first_row(table: pa.Table) -> list[str]:
    return [column[0].as_py() for column in table.columns]


def _is_header(table: pa.Table, label_key: str | None) -> bool:
    first = [cell.strip() for cell in _first_row(table)]
    if not any(map(is_a_quantity, first[:-1])):
        return True
    # Columns may be named by numbers, as pandas does: then a label name that no row has marks a header.
    names = {cell for cell in first if not is_a_quantity(cell)}
    names = {cell for cell in names if cell == label_key or cell.lower() in LABELS}
    for column in table.slice(1).columns if names else ():
        names.difference_update(cell.strip() for cell in column.unique().to_pylist())
    return bool(names)


def _schema(file: Path) -> tuple[pa.Schema, int]:
    with guarded(file):
        if file.suffix.lower() == ".parquet":
            import pyarrow.parquet as pq

            with pq.ParquetFile(file) as parquet:
                return parquet.schema_arrow, parquet.metadata.num_rows
        with _stream(file) as reader:
            return reader.schema, sum(batch.num_rows for batch in reader)


def _batches(file: Path, key: str, rows: int) -> Iterator[pa.Array]:
    if file.suffix.lower() == ".parquet":
        import pyarrow.parquet as pq

        # Else all columns of a row group would be in memory at once, which may be the whole file.
        with pq.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False) as parquet:
            for batch in parquet.iter_batches(rows, columns=[key], use_threads=False):
                yield batch.column(0)
        return
    with _stream(file) as reader:
        for batch in reader:  # mapped: what is not looked at is not read
            column = batch.column(reader.schema.names.index(key))
            yield from (column.slice(start, rows) for start in range(0, len(column), rows))


@contextmanager
def _stream(file: Path) -> Iterator[Any]:
    import pyarrow as pa

    with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as reader:
        yield reader


def _features(schema: pa.Schema, file: Path) -> dict[str, dict[str, Any]]:
    """Hugging Face's description of the columns, in the schema or in dataset_info.json beside the file."""
    text = (schema.metadata or {}).get(b"huggingface")
    beside = file.parent / "dataset_info.json"
    if text is None and not (file.suffix == ".arrow" and beside.is_file()):
        return {}
    with guarded(beside if text is None else file):
        if text is None:
            found = json.loads(beside.read_text(encoding="utf-8"))["features"]
        else:
            found = json.loads(text)["info"]["features"]
        return {name: found[name] for name in schema.names if isinstance(found.get(name), dict)}


def _differs(file: Path, first: Path, names: Sequence[str], wanted: Sequence[str]) -> UsageError:
    pairs = zip([*names, None], [*wanted, None], strict=False)
    mine, other = next(pair for pair in pairs if pair[0] != pair[1])
    if other is None or (mine is not None and mine not in wanted):
        wrong = f"column {mine!r} is not in {first}"
    elif other not in names:
        wrong = f"no column {other!r}, {first} has it"
    else:
        wrong = f"column {mine!r} stands where {first} has {other!r}"
    return UsageError(f"{file}: {wrong}; all files need one schema")
