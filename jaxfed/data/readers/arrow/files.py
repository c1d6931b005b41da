"""Parquet files and Arrow streams: their places, schemas and record batches.

FOLDER/*.parquet, FOLDER/data/*.parquet      train-00000-of-00001.parquet, as on Hugging Face
FOLDER/{train,test}/*.parquet
FOLDER/{data-*.arrow,state.json}             `datasets.Dataset.save_to_disk`
FOLDER/{train,test}/{data-*.arrow,state.json}    `datasets.DatasetDict.save_to_disk`
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxfed.data.readers.arrow.columns import is_number
from jaxfed.data.readers.tables.splits import Splits, chosen, differs, splits_by_name
from jaxfed.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

ENDINGS = (".parquet", ".arrow")
_INFO = b"huggingface"  # key of a schema's metadata
_BUFFER = 2**16  # bytes of a Parquet column that are read at a time
_STATE = "state.json"  # of `save_to_disk`: names the files
_OF_CACHES = "cache-"  # files that `datasets` leaves beside a saved set


def recognizes(folder: Path) -> bool:
    """True for a folder in one of the layouts above."""
    return bool(_split_folders(folder) or files_in(folder) or files_in(folder / "data"))


def splits_of(folder: Path) -> Splits:
    """The files of a folder in one of the layouts above."""
    folders = _split_folders(folder)
    if folders:
        found = {place.name: files_in(place) for place in folders}
        return chosen(found, [file for files in found.values() for file in files])
    return splits_by_name(files_in(folder) or files_in(folder / "data"))


def files_in(folder: Path) -> list[Path]:
    """The Parquet files in a folder or, without one, its Arrow files, in the order of their rows."""
    if (folder / _STATE).is_file():
        try:
            listed = json.loads((folder / _STATE).read_text(encoding="utf-8"))["_data_files"]
            return [folder / Path(file["filename"]).name for file in listed]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UsageError(f"{folder / _STATE}: names no files ({_words(error)})") from error
    parquet, arrow = (
        sorted(file for file in folder.glob(f"*{ending}") if file.is_file()) for ending in ENDINGS
    )
    return parquet or [file for file in arrow if not file.name.startswith(_OF_CACHES)]


def _split_folders(folder: Path) -> list[Path]:
    """The folders of splits; none without train/."""
    if not files_in(folder / "train"):
        return []
    return sorted(place for place in folder.iterdir() if place.is_dir() and files_in(place))


class ArrowFiles:
    """Files of one schema.

    Attributes:
        files: in the order of their rows.
        schema: of the first file.
        counts: rows of each file.
        features: description of each column by Hugging Face's `datasets`; empty without one.

    Raises:
        UsageError: pyarrow is missing, a file cannot be read or has another schema.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise UsageError(
                f"{files[0]}: reading it needs pyarrow; pip install pyarrow"
            ) from error
        self.files = list(files)
        found = [_schema(file) for file in files]
        self.schema, self.counts = found[0][0], [count for _, count in found]
        for file, (schema, _) in zip(files, found, strict=True):
            self._check(file, schema)
        self.features = _features(self.schema, files[0])

    def _check(self, file: Path, schema: pa.Schema) -> None:
        """Refuse a schema that is not the first file's; numbers may have several types."""
        if schema.names != self.schema.names:
            raise differs(file, self.files[0], schema.names, self.schema.names)
        for mine, first in zip(schema, self.schema, strict=True):
            if mine.type != first.type and not (is_number(mine.type) and is_number(first.type)):
                raise UsageError(
                    f"{file}: column {mine.name!r} has type {mine.type}, in {self.files[0]} it is "
                    f"{first.type}; all files need one schema"
                )

    def batches(
        self, names: Sequence[str], rows: int, files: Sequence[Path] | None = None
    ) -> Iterator[tuple[Path, int, dict[str, pa.Array]]]:
        """Some rows at a time: file, number of the first of these rows in it, and the columns `names`."""
        for file in self.files if files is None else files:
            start = 0
            with _readable(file):
                for batch in _batches(file, names, rows):
                    columns = {name: batch.column(batch.schema.names.index(name)) for name in names}
                    for column in columns.values():
                        column.validate(full=True)  # a damaged offset would crash the process
                    yield file, start, columns
                    start += batch.num_rows


def _schema(file: Path) -> tuple[pa.Schema, int]:
    """A file's schema and its number of rows."""
    with _readable(file):
        if file.suffix.lower() == ".parquet":
            import pyarrow.parquet as pq

            with pq.ParquetFile(file) as parquet:
                return parquet.schema_arrow, parquet.metadata.num_rows
        with _stream(file) as reader:
            return reader.schema, sum(batch.num_rows for batch in reader)


def _batches(file: Path, names: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
    if file.suffix.lower() == ".parquet":
        import pyarrow.parquet as pq

        # Else all columns of a row group would be in memory at once, which may be the whole file.
        with pq.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False) as parquet:
            yield from parquet.iter_batches(rows, columns=list(names), use_threads=False)
        return
    with _stream(file) as reader:
        for batch in reader:  # mapped: what is not looked at is not read
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)


@contextmanager
def _stream(file: Path) -> Iterator[Any]:
    import pyarrow as pa

    with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as reader:
        yield reader


def _features(schema: pa.Schema, file: Path) -> dict[str, dict[str, Any]]:
    """Hugging Face's description of the columns, in the schema or in dataset_info.json beside the file."""
    text = (schema.metadata or {}).get(_INFO)
    beside = file.parent / "dataset_info.json"
    try:
        if text is not None:
            found = json.loads(text)["info"]["features"]
        elif file.suffix == ".arrow" and beside.is_file():
            found = json.loads(beside.read_text(encoding="utf-8"))["features"]
        else:
            return {}
        return {name: found[name] for name in schema.names if isinstance(found.get(name), dict)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        place = beside if text is None else file
        raise UsageError(f"{place}: no description of its columns ({_words(error)})") from error


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Turn pyarrow's errors over a damaged file into one line."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        kind = "a Parquet file" if file.suffix.lower() == ".parquet" else "an Arrow stream"
        raise UsageError(f"{file}: not {kind}, or damaged ({_words(error)})") from error


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
