"""Readers of data sets in files, and what they share: names of splits, and a guard against damaged files."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import NamedTuple

from absl import logging

from jaxfed.errors import UsageError
from jaxfed.host import storage

TRAIN_NAMES = ("train", "training")
TEST_NAMES = ("test", "testing", "val", "valid", "validation")
_ROOT = Path(__file__).parents[2]


@contextmanager
def guarded(name: object) -> Iterator[None]:
    """Turn whatever a built-in reader raises into a `UsageError` that names its file or data set.

    A full disk stays an `OSError`, which entries handle. The error names the line in this package, to
    distinguish a bug from a damaged file. Readers registered by a user are not guarded.
    """
    try:
        yield
    except (UsageError, ModuleNotFoundError):
        raise
    except MemoryError as error:
        raise UsageError(
            f"{name}: reading it takes more memory than is available ({_words(error)})"
        ) from error
    except Exception as error:
        if isinstance(error, OSError) and storage.is_full(error):
            raise
        if isinstance(error, FileNotFoundError) and error.filename == str(name):
            raise UsageError(f"{name}: there is no such file") from error
        words = _words(error)
        is_text = isinstance(error, UnicodeDecodeError) or "utf8" in words.lower()
        advice = "; save text in UTF-8, for example by iconv -f windows-1252 -t utf-8" * is_text
        raise UsageError(
            f"{name}: cannot be read, it is damaged or has another format ({words}){advice}"
        ) from error


def _words(error: BaseException) -> str:
    """The error's kind and message in one line, and where in this package it came from."""
    text = " ".join(str(error).split())[:200]
    ours = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if _ROOT in Path(frame.filename).parents
    ]
    line = f", {Path(ours[-1].filename).name} line {ours[-1].lineno}" if ours else ""
    return f"{type(error).__name__}: {text}{line}"


class Splits(NamedTuple):
    """Files of a table, in the order of their rows; `test` may be empty."""

    train: list[Path]
    test: list[Path]


def matching(pattern: Path) -> list[Path]:
    """The files and broken links that a pattern matches, sorted; a path without `*` is itself."""
    paths = map(Path, glob(str(pattern))) if "*" in str(pattern) else [pattern]
    return sorted(p for p in paths if p.is_file() or (p.is_symlink() and not p.exists()))


def without_training(test: Path) -> UsageError:
    """Return the error of a test split whose training split cannot be told by its name."""
    return UsageError(
        f"{test}: a test split by its name, and nothing beside it is named train; name the training split "
        f"so, or {test.name} otherwise if it is for training"
    )


def splits_by_name(files: Sequence[Path], folder: Path | None = None) -> Splits:
    """Files train* (training*) and test* are splits; files of which none or all are test* are for training.

    The first of test, testing, val, valid and validation that exists is the test split. Other files are not
    read, and a line names them. Below a `folder`, folders of these names are splits, too.

    Raises:
        UsageError: test files beside others, none of which is train*.
    """

    def called(file: Path) -> str:
        parent = file.parent.name.lower()
        is_split = folder not in (None, file.parent) and parent in (*TRAIN_NAMES, *TEST_NAMES)
        return parent if is_split else file.name.lower()

    def named(*names: str) -> list[Path]:
        split = re.compile(rf"({'|'.join(names)})([^a-z]|$)")
        return [file for file in files if split.match(called(file))]

    if not (train := named(*TRAIN_NAMES)):
        if 0 < len(tests := named(*TEST_NAMES)) < len(files):
            raise without_training(tests[0])
        return Splits(list(files), [])
    splits = Splits(train, next(filter(None, map(named, TEST_NAMES)), []))
    if others := [str(file) for file in files if file not in splits.train + splits.test]:
        text = "%s: files of no split are not read: %s"
        logging.warning(text, files[0].parent, ", ".join(others))
    return splits
