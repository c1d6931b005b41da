"""UCI's tables from their publishers' files, coded as in FedCT's code; `dataset.name` is the folder's name.

ROOT/wine_quality/winequality-{red,white}.csv      1,599 and 4,898 rows
ROOT/adult/adult.data, adult.test                  32,561 and 16,281 rows
ROOT/mushroom/agaricus-lepiota.data                8,124 rows, the class first
ROOT/covertype/covtype.data.gz (or covtype.data)   581,012 rows, the class 1..7 last
ROOT/covertype/covtype.NAME.data.gz                a part of it

FedCT standardizes over all rows, test rows included; `preprocessing.kind="standardized"` over training rows.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from absl import logging

from jaxfed.data.cache import cached_arrays, files_key
from jaxfed.data.dataset import Dataset
from jaxfed.data.readers.guard import guarded
from jaxfed.errors import UsageError

ORIGINS = {  # name -> its files and their publisher
    name: f"{files} of https://archive.ics.uci.edu/dataset/{place}"
    for name, files, place in (
        ("wine_quality", "winequality-red.csv and winequality-white.csv", "186/wine+quality"),
        ("adult", "adult.data and adult.test", "2/adult"),
        ("mushroom", "agaricus-lepiota.data", "73/mushroom"),
        ("covertype", "covtype.data.gz", "31/covertype"),
    )
}
PUBLISHED = {  # rows of the publishers' files
    "adult.data": 32_561,
    "adult.test": 16_281,
    "agaricus-lepiota.data": 8_124,
    "winequality-red.csv": 1_599,
    "winequality-white.csv": 4_898,
    "covtype.data": 581_012,
    "covtype.data.gz": 581_012,
}
WINES = ("red", "white")
_WINE = (
    *("fixed acidity", "volatile acidity", "citric acid", "residual sugar", "chlorides"),
    *("free sulfur dioxide", "total sulfur dioxide", "density", "pH", "sulphates", "alcohol"),
    "quality",
)
INCOMES = ("<=50K", ">50K")
_ADULT = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week"),
    *("native-country", "income"),
)
_OCCUPATIONS = (
    *("Adm-clerical", "Armed-Forces", "Craft-repair", "Exec-managerial", "Farming-fishing"),
    *("Handlers-cleaners", "Machine-op-inspct", "Other-service", "Priv-house-serv"),
    *("Prof-specialty", "Protective-serv", "Sales", "Tech-support", "Transport-moving"),
)
FORESTS = (
    *("spruce/fir", "lodgepole pine", "ponderosa pine", "cottonwood/willow", "aspen"),
    *("Douglas-fir", "krummholz"),
)
_FORMAT = 1  # of Covertype in the cache


def wine_quality(folder: Path) -> Dataset:
    """Wine Quality: is it red or white, by eleven measurements and the quality that tasters gave it?

    float32 [5320, 12], 1,359 red and 3,961 white, no test split. (P. Cortez et al. "Modeling wine preferences
    by data mining from physicochemical properties". Decision Support Systems, 2009.) Published to predict
    quality, 0 to 10, as in FedCT's text (E.2). FedCT's code predicts the type, with quality as a feature;
    only this explains its accuracies of 0.92 to 0.98. So it is done here. Duplicate rows of a type are left
    out, as in FedCT's code; 5,320 of 6,497 remain. FedCT has 5,295: it drops rows with missing values of a
    merged table, while the original files lack none.
    """
    kept = []
    for kind in WINES:
        file, table = _table(folder, f"winequality-{kind}.csv", _WINE)
        x = np.stack([_numbers(file, table[name]) for name in _WINE], axis=1)
        kept.append(x[np.sort(np.unique(x, axis=0, return_index=True)[1])])
    x, y = np.concatenate(kept), np.repeat(np.arange(2, dtype=np.int32), list(map(len, kept)))
    return Dataset("wine_quality", x, y, x[:0], y[:0], 2, WINES)


def adult(folder: Path) -> Dataset:
    """Adult: does a person earn more than $50,000 a year, by the census of 1994?

    (B. Becker, R. Kohavi, 1996.) float32 [32561, 26] and [16281, 26], classes 0 (up to $50,000) and 1; not
    scaled: 12 numbers, then a one-hot code of 14 occupations.

        age, class of work, census weight, years of education, marital status, relationship, race, sex,
        capital gain, capital loss, hours a week, country

    A capital gain of 99,999 and 99 hours a week, which mean this much or more, are replaced by the mean of
    their column in adult.data. FedCT's code uses the mean over all rows, test rows included, and its own
    split of all rows. `dataset.pooled` makes such a split; some rows behind the two means are then test rows.
    It replaces a missing value ("?") by the most frequent one, and treats the race "Other" as missing.
    """
    splits = [_table(folder, name, _ADULT) for name in ("adult.data", "adult.test")]
    (x, y), (x_test, y_test) = (_adults(*split, splits[0][1]) for split in splits)
    return Dataset("adult", x, y, x_test, y_test, 2, INCOMES)


def _adults(
    file: Path, table: Mapping[str, list[str]], train: Mapping[str, list[str]]
) -> tuple[np.ndarray, np.ndarray]:
    """x float32 [n, 26] and y int32 [n] of one file's columns, by means of the training file's."""

    def number(name: str, most: float | None = None) -> np.ndarray:
        """The column's numbers; the largest, which means this much or more, becomes the mean."""
        values, mean = _numbers(file, table[name]), 0.0
        if most is not None:
            mean = float(np.array(train[name], np.float64).mean())
        return np.where(values == most, np.float32(mean), values)

    def coded(name: str, *texts: str, **keywords: int) -> np.ndarray:
        return _codes(file, name, table[name], *texts, **keywords)

    occupation = coded("occupation", *_OCCUPATIONS[:9], f"? {_OCCUPATIONS[9]}", *_OCCUPATIONS[10:])
    columns = (
        number("age"),
        coded(
            "workclass",
            *("", "? Private", "State-gov", "Federal-gov", "Self-emp-not-inc", "Self-emp-inc"),
            *("Local-gov", "Without-pay", "Never-worked"),
        ),
        number("fnlwgt"),
        number("education-num"),
        coded(
            "marital-status",
            *("Widowed", "Divorced", "Separated", "Never-married", "Married-civ-spouse"),
            *("Married-spouse-absent", "Married-AF-spouse"),
        ),
        coded("relationship", "Not-in-family Unmarried Own-child Other-relative", "Husband Wife"),
        coded("race", "White Other", "Black", "Asian-Pac-Islander", "Amer-Indian-Eskimo"),
        coded("sex", "Female", "Male"),
        number("capital-gain", 99_999.0),
        number("capital-loss"),
        number("hours-per-week", 99.0),
        coded("native-country", "", "United-States ?", other=0),
        *(occupation == np.arange(14)[:, None]),
    )
    income = [cell.rstrip(".") for cell in table["income"]]  # dots end test rows
    return np.stack(columns, axis=1, dtype=np.float32), _codes(file, "income", income, *INCOMES)


def mushroom(folder: Path) -> Dataset:
    """Mushroom: edible or poisonous, by 22 properties, each a letter. (J. Schlimmer, 1987.)

    float32 [8124, 21]: the rank of each property's letter among those that occur, from 0; 4,208 edible, 3,916
    poisonous, no test split. An unknown stalk root, "?", is an additional letter, and the constant veil type
    is left out. The numbers impose an order that the letters do not have, which suffices for trees.
    """
    names = tuple(map(str, range(23)))
    file, table = _table(folder, "agaricus-lepiota.data", names)
    y = _codes(file, "class", table["0"], "e", "p")
    kept = [table[name] for name in names if name not in ("0", "16")]
    x = np.stack([np.unique(cells, return_inverse=True)[1] for cells in kept], axis=1)
    x, classes = x.astype(np.float32), ("edible", "poisonous")
    return Dataset("mushroom", x, y, x[:0], y[:0], 2, classes)


def covertype(folder: Path) -> Dataset:
    """Covertype: which of seven kinds of forest grows on 30 x 30 m, by 54 cartographic variables.

    float32 [581012, 54], raw units, classes 0..6; no test split. Parsed once and cached. (J. Blackard, D.
    Dean, 1999.) FedCT uses raw units; networks and graphs need `preprocessing.kind="standardized"`. Without
    the whole file a part of it is read, and its number of rows is logged. The first 15,120 rows are balanced;
    the whole file is not.
    """
    file = _found(folder, "covtype.data.gz", "covtype.data", "covtype.*.data.gz")

    def make(target: Path) -> None:
        with guarded(file):
            table = np.loadtxt(file, dtype=np.int32, delimiter=",", ndmin=2)
        _check_count(file, len(table))
        np.save(target / "x.npy", table[:, :-1].astype(np.float32))
        np.save(target / "y.npy", table[:, -1] - 1)

    arrays = cached_arrays("covertype", files_key([file], _FORMAT, str(file.resolve())), make)
    x, y = arrays["x"], arrays["y"]
    if len(y) != 581_012:
        logging.warning("%s: %d rows of Covertype's %d", file, len(y), 581_012)
    return Dataset("covertype", x, y, x[:0], y[:0], len(FORESTS), FORESTS)


def _numbers(file: Path, cells: list[str]) -> np.ndarray:
    with guarded(file):
        return np.array(cells, np.float64).astype(np.float32)


def _codes(file: Path, name: str, cells: list[str], *texts: str, other: int = -1) -> np.ndarray:
    """int32 [n], the places of the cells among the texts; texts with a space between them have one place."""
    code = {text: place for place, group in enumerate(texts) for text in group.split()}
    found = np.array([code.get(cell, other) for cell in cells], np.int32)
    if (found < 0).any():
        cell = cells[int((found < 0).argmax())]
        wrong = f"column {name!r} has {cell!r}; choose one of {', '.join(map(repr, code))}"
        raise UsageError(f"{file}: {wrong}")
    return found


def _found(folder: Path, *patterns: str) -> Path:
    for pattern in patterns:
        if files := sorted(folder.glob(pattern)):
            return files[0]
    raise UsageError(f"{folder}: no {patterns[0]}; needed are {ORIGINS[folder.name]}")


def _table(folder: Path, name: str, columns: Sequence[str]) -> tuple[Path, dict[str, list[str]]]:
    """A file and its columns, without a header and lines that begin with `|`."""
    file = _found(folder, name)
    with guarded(file), file.open(newline="", encoding="utf-8-sig") as stream:
        lines = csv.reader(stream, delimiter=";" if file.suffix == ".csv" else ",")
        rows = [[cell.strip() for cell in line] for line in lines if line and line[0][:1] != "|"]
        if file.suffix == ".csv" and rows.pop(0) != list(columns):
            raise UsageError(f"{file}: its columns are not {', '.join(columns)}")
        _check_count(file, len(rows))
        return file, dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))


def _check_count(file: Path, count: int) -> None:
    """Refuse a file with another number of rows than published: a truncated download, or a part."""
    published = PUBLISHED.get(file.name, count)
    if count != published:
        raise UsageError(
            f"{file}: {count} rows, but the published file has {published}; download it again, or rename "
            "a part of it and load it as a CSV file"
        )
