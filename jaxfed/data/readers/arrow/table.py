"""Parquet and Arrow files as a `Table`: features as a CSV file gives them, vectors, arrays or images."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from absl import logging

from jaxfed.data.cache import cached_arrays, files_key
from jaxfed.data.dataset import Dataset
from jaxfed.data.labels import plain_text
from jaxfed.data.readers.arrow.columns import (
    Kind,
    arrays,
    is_bytes,
    kind_of,
    numbers,
    shape_of,
    texts,
    values_of,
)
from jaxfed.data.readers.arrow.files import ArrowFiles
from jaxfed.data.readers.csv_table import dataset_of
from jaxfed.data.readers.image_encoder import ImageEncoder
from jaxfed.data.readers.image_files import Encoded, check_image_size, common_shape, decode
from jaxfed.data.readers.tables.features import Features, features_of
from jaxfed.data.readers.tables.interface import Rows
from jaxfed.data.readers.tables.splits import Splits
from jaxfed.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

_CELLS = 2**20  # read at a time
_IMAGES = 64  # the same of images
_FORMAT = 2  # raise it whenever the same files give other images


def read(
    path: Path,
    splits: Splits,
    label_key: str | None = None,
    client_key: str | None = None,
    drop: Collection[str] | None = None,
    image_size: int | None = None,
    *,
    labels_optional: bool = False,
) -> Dataset:
    """Read Parquet files or Arrow streams; label, clients, texts and gaps as `jaxfed.data.readers.csv_table`.

    Columns of numbers and texts give the arrays of a CSV file with the same values. Lists of numbers of one
    length are one feature an entry. A column of images (bytes, or a struct with them) or of nested lists is
    the example by itself; other columns are then left out, with a line. Images become uint8 [n, h, w, c],
    sized as those of a folder and cached as theirs are. Nested lists of uint8 stay uint8.

    Class names come from Hugging Face's description in the files' schema.

    Args:
        path: the file, folder or pattern, for messages.
        splits: the files of both splits.
        label_key: name of the label's column.
        client_key: name of the clients' column.
        drop: columns that are not features.
        image_size: pixels a side of images.
        labels_optional: as of `jaxfed.data.load`.

    Cost: one pass over a column's pages for each use. Memory: x, and a million cells.

    Raises:
        UsageError: names the file, column and row that cannot be read; rows count from 0.
    """
    table = _ArrowTable(path, splits)

    def features(_: _ArrowTable, places: Sequence[int], label: str) -> Features:
        return table.examples(places, label, image_size)

    return dataset_of(
        table, label_key, client_key, drop or (), features, labels_optional=labels_optional
    )


class _ArrowTable:
    """The `Table` of such files."""

    has_header = True
    delimiter = ","

    def __init__(self, path: Path, splits: Splits) -> None:
        self.path = path
        self._splits = splits
        self._files = ArrowFiles([*splits.train, *splits.test])
        fields = list(self._files.schema)
        self._keys = [field.name for field in fields]
        self.names = list(map(plain_text, self._keys))
        twice = next((name for name in self.names if self.names.count(name) > 1), None)
        if twice is not None:
            raise UsageError(
                f"{path}: two columns are named {twice!r}; use a different name for each"
            )
        self._described = [self._files.features.get(key, {}) for key in self._keys]
        self._kinds = [
            kind_of(field.type, described)
            for field, described in zip(fields, self._described, strict=True)
        ]
        counts = self._files.counts
        of_train = counts[: len(splits.train)]
        self.num_train, self.num_rows = sum(of_train), sum(counts)
        self.num_validation = sum(of_train[len(of_train) - splits.num_validation :])
        if self.num_rows < 2:
            raise UsageError(f"{path}: {self.num_rows} rows; use a table of two or more")
        self.rows = Rows(self._files.files, counts)
        self._shapes = {
            place: self._shape(place)
            for place, kind in enumerate(self._kinds)
            if kind in (Kind.VECTOR, Kind.ARRAY)
        }
        self.numeric: Mapping[int, tuple[int, ...]] = {
            place: self._shapes.get(place, ())
            for place, kind in enumerate(self._kinds)
            if kind in (Kind.NUMBERS, Kind.VECTOR)
        }

    def column(self, place: int) -> list[str]:
        """The cells of one column as texts; classes by their names."""
        return self._texts(place, self.classes(place) or ())

    def labels(self, place: int) -> list[str]:
        """The cells of the label's column; classes by their numbers."""
        return self._texts(place, ())

    def classes(self, place: int) -> Sequence[str] | None:
        """The names that the schema has for the numbers of a column."""
        described = self._described[place]
        names = described.get("names") if described.get("_type") == "ClassLabel" else None
        return list(map(str, names)) if isinstance(names, list) and names else None

    def where(self, place: int) -> Callable[[int], str]:
        """Return a function of a row's number that names the cell: file, column and row."""

        def words(row: int) -> str:
            file, number = self.rows.place(row)
            return self._cell(file, place, number)

        return words

    def batches(self, places: Collection[int]) -> Iterator[dict[int, np.ndarray]]:
        """Some rows at a time."""
        if not places:
            return
        rows = max(1, _CELLS // max(1, sum(math.prod(self.numeric[place]) for place in places)))
        for file, start, columns in self._read(places, rows):
            yield {place: self._numbers(place, file, start, columns[place]) for place in places}

    def examples(self, places: Sequence[int], label: str, image_size: int | None) -> Features:
        """x of both splits: a column of images or arrays if there is one, else features."""
        whole = [place for place in places if self._kinds[place] in (Kind.IMAGE, Kind.ARRAY)]
        if len(whole) > 1:
            named = ", ".join(repr(self.names[place]) for place in whole)
            raise UsageError(
                f"{self.path}: each of the columns {named} is a whole example; leave all but one out "
                "(dataset.drop)"
            )
        others = [repr(self.names[place]) for place in places if place not in whole]
        if whole and others:
            logging.warning(
                "%s: columns beside %r are no features: %s",
                self.path,
                self.names[whole[0]],
                ", ".join(others),
            )
        if whole and self._kinds[whole[0]] == Kind.IMAGE:
            x, x_test = self._images(whole[0], image_size)
            _, height, width, channels = x.shape
            return x, x_test, ImageEncoder(width, height, channels)
        if image_size is not None:
            wrong = f"does not apply to {self.path}, which has no column of images"
            raise UsageError(wrong, key="image_size", value=image_size, allowed="leave it out")
        if whole:
            x = self._arrays(whole[0])
            return x[: self.num_train], x[self.num_train :], None  # rows are arrays
        for place in places:
            if self._kinds[place] == Kind.NONE:
                raise self._unfit(place, "cannot be a feature; leave it out (dataset.drop)")
        return features_of(self, places, label)

    def _read(
        self, places: Collection[int], rows: int, files: Sequence[Path] | None = None
    ) -> Iterator[tuple[Path, int, dict[int, pa.Array]]]:
        """Some rows of these columns at a time, and the file and number of the first."""
        keys = [self._keys[place] for place in places]
        for file, start, columns in self._files.batches(keys, rows, files):
            yield file, start, {place: values_of(columns[self._keys[place]]) for place in places}

    def _texts(self, place: int, names: Sequence[str]) -> list[str]:
        if self._kinds[place] not in (Kind.NUMBERS, Kind.TEXTS):
            raise self._unfit(place, "has neither integers nor names")
        return [
            text
            for _, _, columns in self._read([place], max(1, _CELLS // 16))
            for text in texts(columns[place], names)
        ]

    def _unfit(self, place: int, wrong: str) -> UsageError:
        dtype = " ".join(str(self._files.schema.field(place).type).split())
        return UsageError(f"{self.path}: column {self.names[place]!r} of type {dtype} {wrong}")

    def _shape(self, place: int) -> tuple[int, ...]:
        """Shape of the first list of a column; (1,) where all are missing."""
        for _, _, columns in self._read([place], _IMAGES):
            shape = shape_of(columns[place])
            if shape is not None:
                return shape
        return (1,)

    def _numbers(self, place: int, file: Path, start: int, column: pa.Array) -> np.ndarray:
        if self._kinds[place] == Kind.NUMBERS:
            return numbers(column)
        return arrays(column, self._shapes[place], lambda row: self._cell(file, place, start + row))

    def _cell(self, file: Path, place: int, row: int) -> str:
        return f"{file}: column {self.names[place]!r}, row {row}"

    def _arrays(self, place: int) -> np.ndarray:
        """uint8 or float32 [n, ...] of nested lists; uint8 [n, h, w] gets a channel."""
        shape = self._shapes[place]
        of_bytes = is_bytes(self._files.schema.field(place).type)
        x = np.empty((self.num_rows, *shape), np.uint8 if of_bytes else np.float32)
        done = 0
        for file, start, columns in self._read([place], max(1, _CELLS // max(1, math.prod(shape)))):
            values = self._numbers(place, file, start, columns[place])
            missing = np.flatnonzero(np.isnan(values.reshape(len(values), -1)).any(axis=1))
            if len(missing):
                cell = self._cell(file, place, start + int(missing[0]))
                raise UsageError(f"{cell}: a value is missing; leave the row out")
            with np.errstate(over="ignore"):  # to inf, which Dataset refuses
                x[done : done + len(values)] = values
            done += len(values)
        return x[..., None] if of_bytes and len(shape) == 2 else x

    def _images(self, place: int, image_size: int | None) -> tuple[np.ndarray, np.ndarray]:
        """uint8 [n, h, w, c] of both splits, decoded once and cached."""
        check_image_size(image_size)
        files = self._files.files

        def make(target: Path) -> None:
            shape = common_shape(self._encoded(place, files), image_size)
            numbers = {"train": self.num_train, "test": self.num_rows - self.num_train}
            for split, number in numbers.items():
                encoded = self._encoded(place, getattr(self._splits, split))
                decode(target / f"x-{split}.npy", encoded, shape, number=number)

        paths = [str(file.resolve()) for file in files]
        key = files_key(files, _FORMAT, paths, self.num_train, self._keys[place], image_size)
        cached = cached_arrays(f"images-{files[0].resolve().parent.name}", key, make)
        return cached["x-train"], cached["x-test"]

    def _encoded(self, place: int, files: Sequence[Path]) -> Iterator[Encoded]:
        for file, start, columns in self._read([place], _IMAGES, files):
            for row, value in enumerate(columns[place].to_pylist(), start=start):
                yield Encoded.of(self._cell(file, place, row), value)
