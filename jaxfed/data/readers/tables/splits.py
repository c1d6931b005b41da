"""Files of one table, and its two splits by their names.

Files named train*, test* and val* (valid*, validation*) are the splits, as Hugging Face names them:
train-00000-of-00001.parquet. Without test*, val* is the test split. All files have one schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from glob import glob
from pathlib import Path
from typing import NamedTuple

from absl import logging

from jaxfed.data.readers.image_folder import TEST_NAMES, TRAIN_NAMES, chosen_splits
from jaxfed.errors import UsageError


class Splits(NamedTuple):
    """Files of a table, in the order of their rows; `test` may be empty.

    The last `num_validation` files of `train` are for validation.
    """

    train: list[Path]
    test: list[Path]
    num_validation: int = 0


def is_pattern(name: str) -> bool:
    """True for a name with a `*`, which stands for several files."""
    return "*" in name


def matching(pattern: Path) -> list[Path]:
    """The files that a pattern matches, sorted."""
    return sorted(file for file in map(Path, glob(str(pattern))) if file.is_file())


def splits_by_name(files: Sequence[Path]) -> Splits:
    """Files train* (training*) and test* are splits; without the first all files are for training.

    The first of test, testing, val, valid and validation that exists is the test split. The first of the last
    three that exists beside a test split is for validation. Other files are not read, and a line names them.
    """
    train = [file for name in TRAIN_NAMES for file in _named(files, name)]
    return chosen({"train": train, **{name: _named(files, name) for name in TEST_NAMES}}, files)


def chosen(splits: Mapping[str, Sequence[Path]], files: Sequence[Path]) -> Splits:
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
        logging.warning(
            "%s: files of no split are not read: %s", files[0].parent, ", ".join(others)
        )
    return found


def _named(files: Sequence[Path], name: str) -> list[Path]:
    return [file for file in files if re.match(rf"{name}([^a-z]|$)", file.name.lower())]


def differs(file: Path, first: Path, names: Sequence[str], wanted: Sequence[str]) -> UsageError:
    """Error for a file whose columns are not those of the first."""
    pairs = zip([*names, None], [*wanted, None], strict=False)
    mine, other = next(pair for pair in pairs if pair[0] != pair[1])
    if other is None or (mine is not None and mine not in wanted):
        return UsageError(f"{file}: column {mine!r} is not in {first}; all files need one schema")
    if other not in names:
        return UsageError(f"{file}: no column {other!r}, {first} has it; all files need one schema")
    return UsageError(
        f"{file}: column {mine!r} stands where {first} has {other!r}; all files need one schema"
    )
